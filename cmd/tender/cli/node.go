package cli

import (
	"fmt"
	"io"
	"os"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire/schema"
)

// A FoundNode is the Node of a client, and its position in a file.
type FoundNode struct {
	*corepb.Node
	File string // path, or "stdin"
	Line int    // first line of the Node, from 1
}

// ReadNodes reads the Nodes in a file, or in stdin if file is "-". Each is a Node in JSON or YAML, or in the field node
// of an object, such as the bootstrap of an Envoy.
func ReadNodes(file string, stdin io.Reader) (nodes []FoundNode, err error) {
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
		nodes = append(nodes, FoundNode{n, file, line})
		return n
	})
	if err != nil {
		return nil, fmt.Errorf("%w; allowed: a Node (envoy.config.core.v3.Node) in JSON or YAML, or an object with one in its field node", err)
	}
	return nodes, nil
}
