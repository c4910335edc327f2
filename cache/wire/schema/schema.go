// Package schema knows the xDS types that people read and write: it turns a
// resource's bytes into JSON and back, redacts secrets, and reads the files of a
// file origin.
//
// The relay forwards resources without these types. It needs them to display
// resources, to read files, and to find the resources that may hold secrets. They are
// an embedded, compressed descriptor set of less than 130 KB, and are built when a
// function first needs them. The package depends on no generated Envoy package.
//
// The package is not a stable API: programs that embed Tender use package relay.
package schema

import (
	"bytes"
	"compress/gzip"
	_ "embed" // for the descriptor set
	"fmt"
	"io"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

//go:generate go run gen.go

//go:embed types.binpb.gz
var compressed []byte

// A Resolver finds message and extension types by name. It fits the Resolver
// fields of protojson, prototext and proto options.
type Resolver interface {
	protoregistry.MessageTypeResolver
	protoregistry.ExtensionTypeResolver
}

// Types returns the embedded types as dynamic messages. The first call builds
// them, which takes some tens of milliseconds and some megabytes that stay; it
// may be called at any time from any goroutine.
//
// An error means that the program was built with a broken descriptor set.
func Types() (Resolver, error) { return load() }

var load = sync.OnceValues(func() (Resolver, error) {
	files, err := unpack(compressed)
	if err != nil {
		return nil, fmt.Errorf("load embedded types: %w", err)
	}
	return dynamicpb.NewTypes(files), nil
})

func unpack(b []byte) (*protoregistry.Files, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	set := new(descriptorpb.FileDescriptorSet)
	// The empty resolver keeps udpa.annotations.sensitive as unknown bytes, where
	// sensitive looks for it, whatever else is linked into the program.
	if err := (proto.UnmarshalOptions{Resolver: new(protoregistry.Types)}).Unmarshal(raw, set); err != nil {
		return nil, err
	}
	return protodesc.NewFiles(set)
}

// An UnknownTypeError means that a type is not embedded: its content can be relayed, but
// neither displayed nor encoded as text.
type UnknownTypeError struct {
	TypeURL string // of the resource, or of an Any inside it
}

// Error implements error.
func (e *UnknownTypeError) Error() string { return fmt.Sprintf("unknown type %q", e.TypeURL) }
