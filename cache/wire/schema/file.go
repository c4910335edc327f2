package schema

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// The messages of a file.
const (
	responseType = prefix + "envoy.service.discovery.v3.DiscoveryResponse"
	wrapperType  = prefix + "envoy.service.discovery.v3.Resource"
)

// A Document is the content of one file of a file origin.
type Document struct {
	Version   string     // version_info; empty if the file has none
	TypeURL   string     // type_url; if empty, the resources may be of several types
	Resources []Resource // in the order of the file; names are unique within a type
}

// A Resource is one resource of a [Document].
type Resource struct {
	TypeURL string
	Name    string // never empty

	// Value is the resource, encoded deterministically: equal content has equal bytes in
	// every format. Only the binary format can contain a type that is not embedded; its
	// bytes are not changed.
	Value []byte

	// Version and Aliases are set only if the file wraps the resource in an
	// envoy.service.discovery.v3.Resource. Wrapper is that message, encoded
	// deterministically, with the other fields such as a TTL.
	Version string
	Aliases []string
	Wrapper []byte
}

// A format reads a DiscoveryResponse.
type format struct {
	extensions []string
	into       func(Resolver, []byte, protoreflect.Message) error

	// line returns the line on which a resource starts, 0 if unknown.
	line func(data []byte, index int) int
}

var formats = []format{
	{[]string{".json"}, responseJSON, resourceLine},
	{[]string{".yaml", ".yml"}, responseYAML, resourceLine},
	{[]string{".txtpb", ".textproto", ".pb_text", ".prototext"}, textInto, nil},
	{[]string{".pb", ".bin"}, responseBinary, nil},
}

// IsFile reports whether [ParseFile] supports the extension of a file.
func IsFile(name string) bool {
	_, err := formatOf(name)
	return err == nil
}

func formatOf(name string) (format, error) {
	ext := strings.ToLower(filepath.Ext(name))
	var known []string
	for _, f := range formats {
		if slices.Contains(f.extensions, ext) {
			return f, nil
		}
		known = append(known, f.extensions...)
	}
	return format{}, fmt.Errorf("%s: unknown extension %q, known are %s", name, ext, strings.Join(known, " "))
}

// ParseFile reads a file of a file origin. Its extension is the format: .json,
// .yaml .yml, .txtpb .textproto .pb_text .prototext (text), .pb .bin (binary).
//
// The file holds one envoy.service.discovery.v3.DiscoveryResponse, whose resources
// may be wrapped in envoy.service.discovery.v3.Resource. In JSON and YAML it may
// also be a plain list of resources with "@type", or one such resource.
//
// Every error begins with name, and with line and column where they are known:
// "mesh.yaml:12: unknown field …". An [UnknownTypeError] is its cause where JSON,
// YAML or text name a type that is not embedded. An empty file is an error: a
// file that is just being written must not look like one that removes everything.
func ParseFile(name string, data []byte) (*Document, error) {
	f, err := formatOf(name)
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("%s: file is empty", name)
	}
	types, err := Types()
	if err != nil {
		return nil, err
	}
	typ, err := types.FindMessageByURL(responseType)
	if err != nil {
		return nil, fmt.Errorf("%s: find %s: %w", name, responseType, err)
	}
	m := typ.New()
	if err := f.into(types, data, m); err != nil {
		var p *positioned
		if errors.As(err, &p) {
			if p.line == 0 && strings.HasSuffix(p.text, "EOF") {
				p.line = bytes.Count(bytes.TrimSpace(data), []byte("\n")) + 1
			}
			return nil, p.inFile(name)
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	doc, bad, err := newDocument(types, m)
	if err != nil {
		p := &positioned{text: fmt.Sprintf("resources[%d]: %v", bad, err), cause: err}
		if f.line != nil {
			p.line = f.line(data, bad)
		}
		return nil, p.inFile(name)
	}
	return doc, nil
}

// newDocument returns the contents of a DiscoveryResponse. With an error, bad is the index
// of the invalid resource.
func newDocument(types Resolver, m protoreflect.Message) (doc *Document, bad int, err error) {
	fields := m.Descriptor().Fields()
	doc = &Document{
		Version: m.Get(fields.ByName("version_info")).String(),
		TypeURL: m.Get(fields.ByName("type_url")).String(),
	}
	type key struct{ typeURL, name string }
	first := make(map[key]int)
	resources := m.Get(fields.ByName("resources")).List()
	for i := range resources.Len() {
		r, err := newResource(types, resources.Get(i).Message())
		if err != nil {
			return nil, i, err
		}
		if doc.TypeURL != "" && r.TypeURL != doc.TypeURL {
			return nil, i, fmt.Errorf("type %q in a response of type %q", r.TypeURL, doc.TypeURL)
		}
		k := key{r.TypeURL, r.Name}
		if j, ok := first[k]; ok {
			return nil, i, fmt.Errorf("name %q is a duplicate of resources[%d]", r.Name, j)
		}
		first[k] = i
		doc.Resources = append(doc.Resources, r)
	}
	return doc, 0, nil
}

// newResource reads the Any of a resource, wrapped or not.
func newResource(types Resolver, any protoreflect.Message) (Resource, error) {
	var r Resource
	typeURL, value := openAny(any)
	value, err := canonical(types, typeURL, value)
	if err != nil {
		return r, err
	}
	if typeURL == wrapperType {
		if typeURL, value, err = r.unwrap(types, value); err != nil {
			return r, err
		}
	}
	if typeURL == "" {
		return r, errors.New("no type")
	}
	r.TypeURL, r.Value = typeURL, value
	if r.Name == "" {
		r.Name, _ = ResourceName(typeURL, value)
	}
	if r.Name == "" {
		return r, fmt.Errorf("no name in a resource of type %q; wrap a resource without a name field in a %s", typeURL, wrapperType)
	}
	return r, nil
}

// unwrap sets the fields of an envoy.service.discovery.v3.Resource, and returns the Any
// in it.
func (r *Resource) unwrap(types Resolver, wrapper []byte) (typeURL string, value []byte, err error) {
	typ, err := types.FindMessageByURL(wrapperType)
	if err != nil {
		return "", nil, fmt.Errorf("find %s: %w", wrapperType, err)
	}
	m := typ.New()
	if err := proto.Unmarshal(wrapper, m.Interface()); err != nil {
		return "", nil, fmt.Errorf("decode %s: %w", wrapperType, err)
	}
	fields := typ.Descriptor().Fields()
	body := fields.ByName("resource")
	if !m.Has(body) {
		return "", nil, errors.New("the wrapper has no resource")
	}
	r.Wrapper = wrapper
	r.Version = m.Get(fields.ByName("version")).String()
	r.Name = m.Get(fields.ByName("name")).String()
	if r.Name == "" {
		name := m.Get(fields.ByName("resource_name")).Message()
		r.Name = name.Get(name.Descriptor().Fields().ByName("name")).String()
	}
	aliases := m.Get(fields.ByName("aliases")).List()
	for i := range aliases.Len() {
		r.Aliases = append(r.Aliases, aliases.Get(i).String())
	}
	typeURL, value = openAny(m.Get(body).Message())
	return typeURL, value, nil
}

func responseBinary(types Resolver, data []byte, m protoreflect.Message) error {
	if err := (proto.UnmarshalOptions{Resolver: types}).Unmarshal(data, m.Interface()); err != nil {
		return tidy(fmt.Errorf("not a DiscoveryResponse: %w", err))
	}
	return nil
}

// responseJSON reads a JSON file of any shape as a DiscoveryResponse.
func responseJSON(types Resolver, data []byte, m protoreflect.Message) error {
	shape := shapeOf(data)
	if shape == shapeTypedResponse {
		return anyInto(types, data, m)
	}
	before, after := around[shape].before, around[shape].after
	err := jsonInto(types, slices.Concat([]byte(before), data, []byte(after)), m)
	var p *positioned
	if errors.As(err, &p) && p.line == 1 {
		p.column = max(1, p.column-len(before))
	}
	return err
}

// anyInto reads the JSON of a DiscoveryResponse with "@type".
func anyInto(types Resolver, data []byte, m protoreflect.Message) error {
	outer := new(anypb.Any)
	if err := jsonInto(types, data, outer.ProtoReflect()); err != nil {
		return err
	}
	return responseBinary(types, outer.GetValue(), m)
}
