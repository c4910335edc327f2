package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Unknown is what [JSONOptions.Marshal] does with an Any whose type is not embedded.
type Unknown int

const (
	// UnknownError returns an [UnknownTypeError].
	UnknownError Unknown = iota
	// UnknownBase64 encodes it as {"@type": …, "value": "<base64>"}.
	UnknownBase64
	// UnknownDigest encodes it as {"@type": …, "value": "<size and SHA-256>"}, since the
	// content may contain secrets.
	UnknownDigest
)

// JSONOptions are the options for encoding a resource as JSON. The zero value gives
// complete proto3 canonical JSON, for programs.
type JSONOptions struct {
	// Redact replaces string and bytes fields that are annotated
	// udpa.annotations.sensitive by "[redacted]" and omits other sensitive fields,
	// including all fields of a sensitive message. Use it for everything that is
	// displayed. The result may not be valid JSON of the type.
	Redact bool

	// ProtoNames spells field names as the .proto files and Envoy's documentation do
	// (connect_timeout), not in lowerCamelCase (connectTimeout). Parsers accept both.
	ProtoNames bool

	// Unknown selects the encoding of an Any whose type is not embedded.
	Unknown Unknown
}

// MarshalJSON is [JSONOptions.Marshal] with the zero options.
func MarshalJSON(typeURL string, value []byte) ([]byte, error) {
	return JSONOptions{}.Marshal(typeURL, value)
}

// Marshal returns an Any of typeURL and value as compact JSON: an object with
// "@type" first, then the fields in their order of declaration.
// Nested Anys are encoded in the same way.
//
// Errors: [UnknownTypeError] unless o.Unknown allows the type; otherwise value, or
// the value of an Any inside it, is malformed.
func (o JSONOptions) Marshal(typeURL string, value []byte) ([]byte, error) {
	types, err := Types()
	if err != nil {
		return nil, err
	}
	w := walker{types: types, redact: o.Redact, unknown: o.Unknown.content}
	value, err = w.content(typeURL, value, false)
	if err != nil {
		return nil, fmt.Errorf("marshal json: %w", err)
	}
	b, err := protojson.MarshalOptions{Resolver: orPlaceholder{types}, AllowPartial: true, UseProtoNames: o.ProtoNames}.Marshal(&anypb.Any{TypeUrl: typeURL, Value: value})
	if err != nil {
		return nil, fmt.Errorf("marshal json: %w", tidy(err))
	}
	if w.changed {
		quoted := []byte(`"` + base64.StdEncoding.EncodeToString([]byte(redacted)) + `"`)
		b = bytes.ReplaceAll(b, quoted, []byte(`"`+redacted+`"`))
	}
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil { // protojson varies its white space
		return nil, fmt.Errorf("marshal json: %w", err)
	}
	return out.Bytes(), nil
}

// content returns the replacement for the content of an Any of an unknown type.
func (u Unknown) content(typeURL string, value []byte) ([]byte, error) {
	switch u {
	case UnknownBase64:
		return placeholder(base64.StdEncoding.EncodeToString(value)), nil
	case UnknownDigest:
		return placeholder(fmt.Sprintf("%d bytes, sha256 %x", len(value), sha256.Sum256(value))), nil
	default:
		return nil, &UnknownTypeError{TypeURL: typeURL}
	}
}

// placeholder encodes a google.protobuf.StringValue, which is {"@type": …, "value": "text"}
// in the JSON of an Any. It replaces content that cannot be encoded.
func placeholder(text string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), text)
}

// orPlaceholder resolves an unknown type to the type of a [placeholder].
type orPlaceholder struct{ Resolver }

func (r orPlaceholder) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	typ, err := r.Resolver.FindMessageByURL(url)
	if errors.Is(err, protoregistry.NotFound) {
		return new(wrapperspb.StringValue).ProtoReflect().Type(), nil
	}
	return typ, err
}

// UnmarshalJSON reads one message with its "@type" from JSON and returns its type
// URL and its deterministic encoding.
//
// Errors: [UnknownTypeError] if the type, or the type of a nested Any, is not embedded.
func UnmarshalJSON(data []byte) (typeURL string, value []byte, err error) {
	types, err := Types()
	if err != nil {
		return "", nil, err
	}
	m := new(anypb.Any)
	if err := jsonInto(types, data, m.ProtoReflect()); err != nil {
		return "", nil, fmt.Errorf("unmarshal resource: %w", err)
	}
	if m.GetTypeUrl() == "" {
		return "", nil, errors.New("unmarshal resource: no type")
	}
	value, err = canonical(types, m.GetTypeUrl(), m.GetValue())
	return m.GetTypeUrl(), value, err
}

func jsonInto(types Resolver, data []byte, m protoreflect.Message) error {
	r := noting{Resolver: types}
	return r.explain((protojson.UnmarshalOptions{Resolver: &r, AllowPartial: true}).Unmarshal(data, m.Interface()))
}

func textInto(types Resolver, data []byte, m protoreflect.Message) error {
	r := noting{Resolver: types}
	return r.explain((prototext.UnmarshalOptions{Resolver: &r, AllowPartial: true}).Unmarshal(data, m.Interface()))
}

// canonical encodes a resource deterministically, including nested Anys of known types.
// The content of an Any of an unknown type is not changed.
func canonical(types Resolver, typeURL string, value []byte) ([]byte, error) {
	w := walker{types: types, unknown: func(_ string, value []byte) ([]byte, error) { return value, nil }}
	return w.content(typeURL, value, false)
}

// noting records the first type that was not found: protojson and prototext return only
// the text of that error.
type noting struct {
	Resolver
	missing *UnknownTypeError
}

func (r *noting) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	typ, err := r.Resolver.FindMessageByURL(url)
	if errors.Is(err, protoregistry.NotFound) && r.missing == nil {
		r.missing = &UnknownTypeError{TypeURL: url}
	}
	return typ, err
}

// explain returns err with its parsed position, and with the missing type as its
// cause.
func (r *noting) explain(err error) error {
	if err == nil {
		return nil
	}
	p := tidy(err)
	if r.missing != nil {
		p.cause, p.text = r.missing, r.missing.Error()
	}
	return p
}
