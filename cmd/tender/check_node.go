package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay"
)

// A foundNode is a client's Node, and where it was found.
type foundNode struct {
	*corepb.Node
	file string
	line int
}

// A nodeGroup is the nodes that a relay serves from one view.
type nodeGroup struct {
	key      string
	upstream *corepb.Node // what the origin is shown
	nodes    []foundNode
}

// checkNodes sorts the Nodes in files into groups and prints them.
func checkNodes(cmd *cobra.Command, environ, files []string) error {
	cfg, err := relay.LoadConfig(environ)
	if err != nil {
		return err
	}
	var found []foundNode
	for _, file := range files {
		nodes, err := readNodes(file, cmd.InOrStdin())
		if err != nil {
			return err
		}
		found = append(found, nodes...)
	}
	out, err := describeGroups(cfg, groupNodes(cfg, found))
	if err != nil {
		return err
	}
	if _, err := cmd.OutOrStdout().Write(out); err != nil {
		return fmt.Errorf("print groups: %w", err)
	}
	return nil
}

// readNodes reads the Nodes of a file, or of stdin for "-".
func readNodes(file string, stdin io.Reader) (nodes []foundNode, err error) {
	var data []byte
	if file == "-" {
		file = "stdin"
		data, err = io.ReadAll(stdin)
	} else {
		data, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	err = schema.ParseMessages(file, data, "node", func(line int) proto.Message {
		n := new(corepb.Node)
		nodes = append(nodes, foundNode{n, file, line})
		return n
	})
	if err != nil {
		return nil, fmt.Errorf("%w; allowed: a Node (envoy.config.core.v3.Node) in JSON or YAML, or an object with one in its field node", err)
	}
	return nodes, nil
}

// groupNodes returns the groups in the order of their first nodes.
func groupNodes(cfg relay.Config, found []foundNode) (groups []*nodeGroup) {
	byKey := make(map[string]*nodeGroup)
	for _, n := range found {
		key, upstream := cfg.Group(version, n.Node)
		g := byKey[key]
		if g == nil {
			g = &nodeGroup{key: key, upstream: upstream}
			byKey[key] = g
			groups = append(groups, g)
		}
		g.nodes = append(g.nodes, n)
	}
	return groups
}

// describeGroups returns what is printed.
func describeGroups(cfg relay.Config, groups []*nodeGroup) ([]byte, error) {
	var b bytes.Buffer
	for i, g := range groups {
		if i > 0 {
			b.WriteByte('\n')
		}
		nodes := "1 node"
		if len(g.nodes) > 1 {
			nodes = fmt.Sprintf("%d nodes", len(g.nodes))
		}
		fmt.Fprintf(&b, "group %s: %s\n", cli.Printable(g.key), nodes)
		if err := g.describe(&b, cfg); err != nil {
			return nil, err
		}
	}
	if len(cfg.Origin) > 0 && strings.HasPrefix(cfg.Origin[0], "file:") {
		b.WriteString("\nTENDER_ORIGIN is a directory, which sees no node and tells all groups the same.\n")
	}
	return b.Bytes(), nil
}

// describe writes what the origin sees of the group, and what it does not see of
// each node.
func (g *nodeGroup) describe(b *bytes.Buffer, cfg relay.Config) error {
	shown, shownFields, err := nodeJSON(g.upstream)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "  the origin sees %s\n", cli.Printable(shown))
	for _, n := range g.nodes {
		_, fields, err := nodeJSON(n.Node)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", n.file, n.line, err)
		}
		rest := "shown in full"
		if hidden := unseen("", fields, shownFields); len(hidden) > 0 {
			rest = "not shown: " + strings.Join(hidden, ", ")
		}
		fmt.Fprintf(b, "  %s:%d  %s  %s\n", cli.Printable(n.file), n.line, cli.OrDash(n.GetId()), cli.Printable(rest))
		for _, field := range unfilled(cfg, n.Node) {
			fmt.Fprintf(b, "    it has no %s, which Envoys and gRPC clients fill in themselves\n", field)
		}
		if len(cfg.Rollout) > 0 {
			fmt.Fprintf(b, "    %s\n", cli.Printable(stageOf(cfg, n.Node)))
		}
	}
	return nil
}

// unfilled returns the fields of the group's key that a node on file lacks and the
// client's software adds.
func unfilled(cfg relay.Config, n *corepb.Node) (fields []string) {
	if n.GetUserAgentName() == "" && slices.Contains(cfg.NodeGroupBy, "user_agent_name") {
		fields = append(fields, "user_agent_name")
	}
	if n.GetUserAgentVersionType() == nil && slices.Contains(cfg.NodeGroupBy, "user_agent_version") {
		fields = append(fields, "user_agent_version")
	}
	return fields
}

// stageOf returns in which stage of TENDER_ROLLOUT a node is served changes.
func stageOf(cfg relay.Config, n *corepb.Node) string {
	isRelay := n.GetUserAgentName() == "tender"
	if at := cfg.Rollout.Cohort(n, isRelay); at < len(cfg.Rollout) {
		return fmt.Sprintf("rollout stage %d of %d: %v", at+1, len(cfg.Rollout), cfg.Rollout[at])
	}
	return "in no rollout stage: it is served changes after the last one"
}

// nodeJSON returns a node as one line of JSON, with the field names of TENDER_NODE_GROUP_BY, and as the decoded value.
func nodeJSON(n *corepb.Node) (string, any, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(n)
	if err != nil {
		return "", nil, fmt.Errorf("print node: %w", err)
	}
	var line bytes.Buffer
	if err := json.Compact(&line, text); err != nil { // protojson varies its blanks
		return "", nil, fmt.Errorf("print node: %w", err)
	}
	var fields any
	err = json.Unmarshal(text, &fields)
	return line.String(), fields, err
}

// unseen returns the paths to what a client's value has and the shown one has not,
// or not the same. Of an object of which nothing is shown, that is its own path.
func unseen(path string, client, shown any) (paths []string) {
	switch client := client.(type) {
	case map[string]any:
		shown, ok := shown.(map[string]any)
		if !ok && path != "" {
			return []string{path}
		}
		for _, name := range slices.Sorted(maps.Keys(client)) {
			value, ok := shown[name]
			if !ok {
				value = absent{}
			}
			paths = append(paths, unseen(strings.TrimPrefix(path+"."+name, "."), client[name], value)...)
		}
		return paths
	case []any:
		return unseenItems(path, client, shown)
	}
	if reflect.DeepEqual(client, shown) {
		return nil
	}
	return []string{path}
}

// absent is what is shown of a field that is not there; null is something else.
type absent struct{}

// unseenItems returns the items of a list of which others are shown, or else the
// list's own path.
func unseenItems(path string, client []any, shown any) (paths []string) {
	if reflect.DeepEqual(any(client), shown) {
		return nil
	}
	list, _ := shown.([]any)
	for _, item := range client {
		if _, isText := item.(string); !isText {
			return []string{path}
		}
		if !slices.Contains(list, item) {
			paths = append(paths, fmt.Sprintf("%s[%s]", path, item))
		}
	}
	return paths
}
