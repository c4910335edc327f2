package schema

import (
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// MayBeSensitive reports whether an Any of typeURL and value contains a field that is
// annotated udpa.annotations.sensitive, also in a nested Any, or anything that cannot be
// checked: a type that is not embedded, a field that the embedded type does not define,
// or malformed bytes. Content for which it returns false may be stored unencrypted.
func MayBeSensitive(typeURL string, value []byte) bool {
	types, err := Types()
	if err != nil {
		return true
	}
	s := scanner{types: types}
	return s.any(typeURL, value, protowire.DefaultRecursionLimit)
}

// A scanner searches encoded messages for sensitive fields. It does not decode them into
// messages, since it reads every resource of a relay.
type scanner struct{ types Resolver }

// any reports whether the content of an Any may be sensitive. An empty Any is not.
func (s scanner) any(typeURL string, value []byte, depth int) bool {
	if typeURL == "" {
		return len(value) > 0
	}
	typ, err := s.types.FindMessageByURL(typeURL)
	if err != nil {
		return true
	}
	return s.message(shapeFor(typ.Descriptor()), value, depth)
}

func (s scanner) message(m *messageShape, b []byte, depth int) bool {
	if depth == 0 {
		return true
	}
	switch m.name {
	case "google.protobuf.Any":
		typeURL, value, ok := splitAny(b)
		return !ok || s.any(typeURL, value, depth-1)
	case "xds.type.v3.TypedStruct", "udpa.type.v1.TypedStruct":
		return s.typedStruct(m, b)
	}
	for len(b) > 0 {
		num, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return true
		}
		n := protowire.ConsumeFieldValue(num, typ, b[tag:])
		if n < 0 || s.field(m, num, typ, b[tag:], depth) {
			return true
		}
		b = b[tag+n:]
	}
	return false
}

// field reports whether a field may be sensitive. Its value is at the beginning of b.
func (s scanner) field(m *messageShape, num protowire.Number, typ protowire.Type, b []byte, depth int) bool {
	switch field, known := m.fields[num]; {
	case !known || field.sensitive:
		return true
	case field.message == nil:
		return false
	case typ != protowire.BytesType:
		return true
	default:
		val, _ := protowire.ConsumeBytes(b)
		return s.message(shapeFor(field.message), val, depth-1)
	}
}

// typedStruct decodes a TypedStruct as the message that it represents: its bytes alone
// do not show which fields are sensitive.
func (s scanner) typedStruct(m *messageShape, b []byte) bool {
	w := walker{types: s.types, redact: true, unknown: UnknownError.content}
	_, err := w.content(prefix+string(m.name), b, false)
	return err != nil || w.changed
}

// splitAny returns the two fields of an encoded Any; ok is false if b is not an Any.
func splitAny(b []byte) (typeURL string, value []byte, ok bool) {
	for len(b) > 0 {
		num, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 || typ != protowire.BytesType {
			return "", nil, false
		}
		val, n := protowire.ConsumeBytes(b[tag:])
		switch {
		case n < 0:
			return "", nil, false
		case num == 1:
			typeURL = string(val)
		case num == 2:
			value = val
		default:
			return "", nil, false
		}
		b = b[tag+n:]
	}
	return typeURL, value, true
}

// A messageShape has the properties of a type that a scanner uses.
type messageShape struct {
	name   protoreflect.FullName
	fields map[protowire.Number]fieldShape
}

type fieldShape struct {
	sensitive bool
	message   protoreflect.MessageDescriptor // nil for a scalar
}

var shapes sync.Map // of messageShape, by full name

// shapeFor returns the shape of a type. It builds each shape once.
func shapeFor(d protoreflect.MessageDescriptor) *messageShape {
	if m, ok := shapes.Load(d.FullName()); ok {
		return m.(*messageShape)
	}
	m := &messageShape{name: d.FullName(), fields: make(map[protowire.Number]fieldShape, d.Fields().Len())}
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		m.fields[fd.Number()] = fieldShape{sensitive: sensitive(fd), message: fd.Message()}
	}
	stored, _ := shapes.LoadOrStore(d.FullName(), m)
	return stored.(*messageShape)
}

// Redact returns the value of an Any without fields that are annotated udpa.annotations.sensitive,
// also in nested Anys. It omits what cannot be checked: the content of an Any of a type that is not
// embedded, and fields that the embedded type does not define.
//
// Errors: value, or the value of an Any inside it, is malformed.
func Redact(typeURL string, value []byte) ([]byte, error) {
	if !MayBeSensitive(typeURL, value) {
		return value, nil
	}
	types, err := Types()
	if err != nil {
		return nil, err
	}
	w := walker{types: types, redact: true, unknown: func(string, []byte) ([]byte, error) { return nil, nil }, drop: true}
	return w.content(typeURL, value, false)
}
