package schema

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// redacted replaces a secret, as in Envoy's config dump.
const redacted = "[redacted]"

// A walker rewrites a dynamic message in place, down through every nested Any:
// each Any of a known type is decoded, walked, and encoded deterministically.
type walker struct {
	types Resolver

	// redact replaces fields that are annotated udpa.annotations.sensitive.
	redact bool

	// unknown returns the replacement for the content of an Any of an unknown type,
	// or an error that ends the walk.
	unknown func(typeURL string, value []byte) ([]byte, error)

	// drop omits fields that the embedded type does not define.
	drop bool

	// changed is set once redact has replaced a field.
	changed bool
}

// content decodes the content of an Any, walks it and encodes it.
func (w *walker) content(typeURL string, value []byte, secret bool) ([]byte, error) {
	typ, err := w.types.FindMessageByURL(typeURL)
	if errors.Is(err, protoregistry.NotFound) {
		if secret && w.redact {
			w.changed = true
			return placeholder(redacted), nil
		}
		return w.unknown(typeURL, value)
	}
	if err != nil {
		return nil, fmt.Errorf("resolve %q: %w", typeURL, err)
	}
	m := typ.New()
	if err := (proto.UnmarshalOptions{AllowPartial: true, Resolver: w.types}).Unmarshal(value, m.Interface()); err != nil {
		return nil, fmt.Errorf("decode %s: %w", m.Descriptor().FullName(), err)
	}
	if err := w.message(m, secret); err != nil {
		return nil, err
	}
	return marshal(m.Interface())
}

// message walks m. secret reports that m is part of a sensitive field, so that all
// its fields are redacted.
func (w *walker) message(m protoreflect.Message, secret bool) error {
	switch m.Descriptor().FullName() {
	case "google.protobuf.Any":
		return w.any(m, secret)
	case "xds.type.v3.TypedStruct", "udpa.type.v1.TypedStruct":
		if w.redact && !secret {
			return w.typedStruct(m)
		}
	case "google.protobuf.Value":
		if w.redact && secret {
			// A Value must have a kind, so it cannot be cleared.
			w.changed = true
			m.Set(m.Descriptor().Fields().ByName("string_value"), protoreflect.ValueOfString(redacted))
			return nil
		}
	}
	if w.drop || w.redact && secret {
		m.SetUnknown(nil)
	}
	var err error
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		err = w.field(m, fd, v, secret || sensitive(fd))
		return err == nil
	})
	return err
}

func (w *walker) field(m protoreflect.Message, fd protoreflect.FieldDescriptor, v protoreflect.Value, secret bool) error {
	kind := fd
	if fd.IsMap() {
		kind = fd.MapValue()
	}
	if kind.Message() == nil {
		if w.redact && secret {
			w.changed = true
			w.scalars(m, fd, v, kind.Kind())
		}
		return nil
	}
	switch {
	case fd.IsMap():
		var err error
		v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
			err = w.message(v.Message(), secret)
			return err == nil
		})
		return err
	case fd.IsList():
		for i := range v.List().Len() {
			if err := w.message(v.List().Get(i).Message(), secret); err != nil {
				return err
			}
		}
		return nil
	default:
		return w.message(v.Message(), secret)
	}
}

// scalars replaces the strings and bytes of a field, and clears a field of any
// other kind.
func (w *walker) scalars(m protoreflect.Message, fd protoreflect.FieldDescriptor, v protoreflect.Value, kind protoreflect.Kind) {
	var replacement protoreflect.Value
	switch kind {
	case protoreflect.StringKind:
		replacement = protoreflect.ValueOfString(redacted)
	case protoreflect.BytesKind:
		replacement = protoreflect.ValueOfBytes([]byte(redacted))
	default:
		m.Clear(fd)
		return
	}
	switch {
	case fd.IsMap():
		v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
			v.Map().Set(k, replacement)
			return true
		})
	case fd.IsList():
		for i := range v.List().Len() {
			v.List().Set(i, replacement)
		}
	default:
		m.Set(fd, replacement)
	}
}

func (w *walker) any(m protoreflect.Message, secret bool) error {
	typeURL, value := openAny(m)
	if typeURL == "" {
		if w.drop {
			m.Clear(m.Descriptor().Fields().ByName("value"))
		}
		return nil
	}
	value, err := w.content(typeURL, value, secret)
	if err != nil {
		return err
	}
	m.Set(m.Descriptor().Fields().ByName("value"), protoreflect.ValueOfBytes(value))
	return nil
}

// typedStruct redacts a TypedStruct, which is a message of a named type encoded as a
// Struct: it is decoded as that type to find its sensitive fields. If decoding fails,
// all strings are redacted.
func (w *walker) typedStruct(m protoreflect.Message) error {
	typeURL := m.Get(m.Descriptor().Fields().ByName("type_url")).String()
	fd := m.Descriptor().Fields().ByName("value")
	if !m.Has(fd) {
		return nil
	}
	value := m.Get(fd).Message()
	inner := *w
	inner.changed = false
	text, err := inner.structAs(typeURL, value)
	if err != nil {
		return w.message(value, true)
	}
	if !inner.changed {
		return nil // keep the original, which may have fields that the embedded type does not define
	}
	w.changed = true
	clean := m.NewField(fd)
	if err := (protojson.UnmarshalOptions{Resolver: w.types}).Unmarshal(text, clean.Message().Interface()); err != nil {
		return fmt.Errorf("redact %s: %w", typeURL, err)
	}
	m.Set(fd, clean)
	return nil
}

// structAs decodes a Struct as a message of a type, walks the message, and returns it as JSON.
func (w *walker) structAs(typeURL string, value protoreflect.Message) ([]byte, error) {
	typ, err := w.types.FindMessageByURL(typeURL)
	if err != nil {
		return nil, err
	}
	text, err := protojson.MarshalOptions{Resolver: w.types}.Marshal(value.Interface())
	if err != nil {
		return nil, err
	}
	m := typ.New()
	if err := (protojson.UnmarshalOptions{Resolver: w.types, DiscardUnknown: true, AllowPartial: true}).Unmarshal(text, m.Interface()); err != nil {
		return nil, err
	}
	if err := w.message(m, false); err != nil {
		return nil, err
	}
	return protojson.MarshalOptions{Resolver: orPlaceholder{w.types}, AllowPartial: true}.Marshal(m.Interface())
}

// openAny returns the two fields of a google.protobuf.Any.
func openAny(m protoreflect.Message) (typeURL string, value []byte) {
	fields := m.Descriptor().Fields()
	return m.Get(fields.ByName("type_url")).String(), m.Get(fields.ByName("value")).Bytes()
}

// marshal encodes m deterministically: the bytes depend on the content only, and are
// equal to those of the generated Go types.
func marshal(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return b, nil
}

// sensitive reports whether a field is annotated udpa.annotations.sensitive. It is the only unknown option that the
// embedded types have (gen.go).
func sensitive(fd protoreflect.FieldDescriptor) bool {
	return len(fd.Options().ProtoReflect().GetUnknown()) > 0
}
