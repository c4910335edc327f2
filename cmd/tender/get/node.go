package get

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cmd/tender/cli"
)

// A nodeChoice has the flags from which the Node is made that get sends.
type nodeChoice struct {
	file      string // with a Node; "-" is stdin
	group     string // key or name of a node group
	id        string
	cluster   string
	userAgent string
	locality  string   // region/zone/sub_zone
	metadata  []string // KEY=VALUE
}

// add adds the flags to a command.
func (c *nodeChoice) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.group, "group", "", "send a Node of the node group with this `key` or name")
	f.StringVar(&c.file, "node-file", "", "`file` with the Node to send, or a bootstrap with one, in YAML or JSON; - is stdin")
	f.StringVar(&c.id, "node-id", "", "node `id` to send (default that of --node-file or --group, or tender-get/HOSTNAME)")
	f.StringVar(&c.cluster, "cluster", "", "node `cluster` to send")
	f.StringVar(&c.cluster, "node-cluster", "", "node `cluster` to send")
	f.StringVar(&c.locality, "locality", "", "locality to send: `region/zone/sub_zone`; parts may be empty or absent at the end")
	f.StringArrayVar(&c.metadata, "metadata", nil, "metadata to send: `key=text`; a dot in the key is a level, as in TENDER_NODE_GROUP_BY")
	f.StringVar(&c.userAgent, "user-agent", "", "user agent `name` to send (default that of --node-file or --group, where absent envoy; else tender-get)")
	_ = f.MarkDeprecated("node-cluster", "use --cluster") // fails only for an unknown flag
	cli.CompleteFile(cmd, "node-file")
}

// make returns the Node to send. Flags replace what the file or the member of a group has. version is the user agent
// version of a Node that comes from neither. member returns a Node of a group.
func (c *nodeChoice) make(version string, stdin io.Reader, member func(string) (*corepb.Node, error)) (*corepb.Node, error) {
	n, err := c.base(version, stdin, member)
	if err != nil {
		return nil, err
	}
	n.Id, n.Cluster = cmp.Or(c.id, n.GetId()), cmp.Or(c.cluster, n.GetCluster())
	n.UserAgentName = cmp.Or(c.userAgent, n.GetUserAgentName(), "envoy") // Envoys fill it in themselves
	if c.locality != "" {
		parts := strings.SplitN(c.locality, "/", 4)
		if len(parts) > 3 {
			return nil, cli.UsageError{Cause: fmt.Errorf("--locality=%s: want region/zone/sub_zone", c.locality)}
		}
		parts = append(parts, "", "")
		n.Locality = &corepb.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
	}
	for _, text := range c.metadata {
		key, value, ok := strings.Cut(text, "=")
		path := strings.Split(key, ".")
		if !ok || slices.Contains(path, "") {
			return nil, cli.UsageError{Cause: fmt.Errorf("--metadata=%s: want key=text", text)}
		}
		if n.Metadata == nil {
			n.Metadata = new(structpb.Struct)
		}
		setMetadata(n.Metadata, path, value)
	}
	return n, nil
}

// base returns the Node of the file, a Node of the group, or else that of tender get.
func (c *nodeChoice) base(version string, stdin io.Reader, member func(string) (*corepb.Node, error)) (*corepb.Node, error) {
	host, _ := os.Hostname() // empty on error
	own := "tender-get/" + host
	switch {
	case c.group != "" && c.file != "":
		return nil, cli.UsageError{Cause: errors.New("--group and --node-file exclude one another")}
	case c.group != "":
		n, err := member(c.group)
		if err != nil {
			return nil, fmt.Errorf("--group=%s: %w", c.group, err)
		}
		n.Id = cmp.Or(n.Id, own)
		return n, nil
	case c.file == "":
		return &corepb.Node{
			Id: own, UserAgentName: "tender-get",
			UserAgentVersionType: &corepb.Node_UserAgentVersion{UserAgentVersion: version},
		}, nil
	}
	found, err := cli.ReadNodes(c.file, stdin)
	if err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("--node-file=%s: the file has %d Nodes, want one", c.file, len(found))
	}
	return found[0].Node, nil
}

// setMetadata sets the text at a path. It replaces values on the path that are not objects.
func setMetadata(s *structpb.Struct, path []string, text string) {
	if s.Fields == nil {
		s.Fields = make(map[string]*structpb.Value)
	}
	if len(path) == 1 {
		s.Fields[path[0]] = structpb.NewStringValue(text)
		return
	}
	inner := s.GetFields()[path[0]].GetStructValue()
	if inner == nil {
		inner = new(structpb.Struct)
		s.Fields[path[0]] = structpb.NewStructValue(inner)
	}
	setMetadata(inner, path[1:], text)
}
