package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay"
)

// A nodeGroup contains the Nodes that a relay serves from one view per origin.
type nodeGroup struct {
	key      string       // as TENDER_NODE_GROUP_BY forms it, such as user_agent_name=envoy
	upstream *corepb.Node // the Node that the relay sends to the origin for this group
	nodes    []cli.FoundNode
}

// checkNodes reads Nodes from files, groups them by TENDER_NODE_GROUP_BY, and prints the groups.
func checkNodes(cmd *cobra.Command, environ, files []string) error {
	cfg, err := relay.LoadConfig(environ)
	if err != nil {
		return err
	}
	var found []cli.FoundNode
	for _, file := range files {
		nodes, err := cli.ReadNodes(file, cmd.InOrStdin())
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

// groupNodes groups Nodes by the key that a relay with this configuration uses. Groups are in order of their first
// Node.
func groupNodes(cfg relay.Config, found []cli.FoundNode) (groups []*nodeGroup) {
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

// describeGroups returns the output of tender check --node.
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
		b.WriteString("\nTENDER_ORIGIN is a directory: it ignores the Node, and all groups get the same resources.\n")
	}
	return b.Bytes(), nil
}

// describe writes the Node that the origin receives for the group. For each client Node, it writes the fields that the
// origin does not receive.
func (g *nodeGroup) describe(b *bytes.Buffer, cfg relay.Config) error {
	shown, shownFields, err := nodeJSON(g.upstream)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "  the origin sees %s\n", cli.Printable(shown))
	for _, n := range g.nodes {
		_, fields, err := nodeJSON(n.Node)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", n.File, n.Line, err)
		}
		rest := "shown in full"
		if hidden := unseen("", fields, shownFields); len(hidden) > 0 {
			rest = "not shown: " + strings.Join(hidden, ", ")
		}
		fmt.Fprintf(b, "  %s:%d  %s  %s\n", cli.Printable(n.File), n.Line, cli.OrDash(n.GetId()), cli.Printable(rest))
		for _, field := range unfilled(cfg, n.Node) {
			fmt.Fprintf(b, "    it has no %s, which Envoys and gRPC clients fill in themselves\n", field)
		}
		if len(cfg.Rollout) > 0 {
			fmt.Fprintf(b, "    %s\n", cli.Printable(stageOf(cfg, n.Node)))
		}
	}
	return nil
}

// unfilled returns the fields of TENDER_NODE_GROUP_BY that are missing in a Node from a file, because Envoy and gRPC
// set them when they connect. The group of such a client differs from the printed one.
func unfilled(cfg relay.Config, n *corepb.Node) (fields []string) {
	if n.GetUserAgentName() == "" && slices.Contains(cfg.NodeGroupBy, "user_agent_name") {
		fields = append(fields, "user_agent_name")
	}
	if n.GetUserAgentVersionType() == nil && slices.Contains(cfg.NodeGroupBy, "user_agent_version") {
		fields = append(fields, "user_agent_version")
	}
	return fields
}

// stageOf returns the stage of TENDER_ROLLOUT in which a client with this Node receives changes.
func stageOf(cfg relay.Config, n *corepb.Node) string {
	isRelay := n.GetUserAgentName() == "tender"
	if at := cfg.Rollout.Cohort(n, isRelay); at < len(cfg.Rollout) {
		return fmt.Sprintf("rollout stage %d of %d: %v", at+1, len(cfg.Rollout), cfg.Rollout[at])
	}
	return "in no rollout stage: it is served changes after the last one"
}

// nodeJSON returns a Node as one line of JSON, and the same JSON decoded. Field names are those of
// TENDER_NODE_GROUP_BY, such as user_agent_name.
func nodeJSON(n *corepb.Node) (string, any, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(n)
	if err != nil {
		return "", nil, fmt.Errorf("print node: %w", err)
	}
	var line bytes.Buffer
	if err := json.Compact(&line, text); err != nil { // protojson inserts random spaces
		return "", nil, fmt.Errorf("print node: %w", err)
	}
	var fields any
	err = json.Unmarshal(text, &fields)
	return line.String(), fields, err
}

// unseen compares two decoded JSON values, and returns the paths of values in client that shown lacks or that differ
// there. If shown lacks a whole object, the only path is that of the object. path is the path of both values, empty for
// a Node.
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

// absent stands for a field that shown lacks. It differs from nil, which is JSON null.
type absent struct{}

// unseenItems is unseen for a list. The paths name the texts that shown lacks, such as client_features[a]. If an item
// is not a text, the only path is that of the list.
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
