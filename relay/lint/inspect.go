package lint

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	// mostFindings is the maximum number of findings per resource.
	mostFindings = 20

	// deepest is the maximum depth of nested messages of type Any. Each level is decoded separately.
	deepest = 16
)

// none are the facts of a resource without findings and references. Facts are compared with it by pointer.
var none = new(Facts)

// Inspect returns the facts of a resource. They are empty if Checks is false for the type. Inspect decodes the
// resource, which needs a multiple of its size in memory until Inspect returns.
func Inspect(typeURL string, value []byte) *Facts {
	if !Checks(typeURL) {
		return none
	}
	var in inspection
	in.decode(typeURL, value)
	if len(in.Findings) == 0 && len(in.References) == 0 && !in.OnDemand {
		return none
	}
	return &in.Facts
}

// An inspection walks over the messages of one resource and collects its facts.
type inspection struct {
	Facts
	seen map[Reference]bool // references added so far
	path []string           // fields from the resource to the current message
	any  int                // number of messages of type Any around the current message
	more int                // number of findings dropped because of mostFindings
}

// add adds a finding about the current message, or about one of its fields if field is not empty.
func (in *inspection) add(kind Kind, field, detail string) {
	if len(in.Findings) >= mostFindings {
		in.more++
		in.Findings[mostFindings-1].Detail = fmt.Sprintf("%d more findings", in.more+1)
		return
	}
	path := in.path
	if field != "" {
		path = append(path[:len(path):len(path)], field)
	}
	if len(path) > 0 {
		detail = strings.Join(path, ".") + ": " + detail
	}
	in.Findings = append(in.Findings, Finding{Kind: kind, Detail: detail})
}

// refer adds a reference, unless the name is empty or the reference was already added.
func (in *inspection) refer(typeURL, name string) {
	r := Reference{typeURL, name}
	if name == "" || in.seen[r] {
		return
	}
	if in.seen == nil {
		in.seen = make(map[Reference]bool)
	}
	in.seen[r] = true
	in.References = append(in.References, r)
}

// decode checks an encoded message and all messages in it. It ignores types that are not checked.
func (in *inspection) decode(typeURL string, value []byte) {
	m, ok := newMessage(typeURL)
	if !ok {
		return
	}
	if err := proto.Unmarshal(value, m); err != nil {
		in.add(Undecodable, "", "not of type "+strings.TrimPrefix(typeURL, typePrefix)+": "+plain(err))
		return
	}
	in.violations("", m.ValidateAll())
	in.message(m.ProtoReflect())
}

// plain returns the text of an error without the prefix that the protobuf library adds, which varies at random.
func plain(err error) string {
	text := err.Error()
	if _, rest, ok := strings.Cut(text, ":"); ok && strings.HasPrefix(text, "proto") {
		text = rest
	}
	return strings.TrimLeft(text, " \u00a0")
}

// A violation is an error of a generated validator. Reason describes the rule and never contains a value.
type violation interface {
	Field() string
	Reason() string
	Cause() error
}

// violations adds the errors of generated validators as findings. path leads from the current message to the message
// that was validated.
func (in *inspection) violations(path string, err error) {
	var all interface{ AllErrors() []error }
	var one violation
	switch {
	case err == nil:
	case errors.As(err, &all):
		for _, err := range all.AllErrors() {
			in.violations(path, err)
		}
	case !errors.As(err, &one):
		in.add(Invalid, path, "invalid value")
	case one.Cause() != nil:
		in.violations(join(path, one.Field()), one.Cause())
	default:
		in.add(Invalid, join(path, one.Field()), one.Reason())
	}
}

// join appends a field to a path, which may be empty.
func join(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}

// message checks a decoded message and all messages in it.
func (in *inspection) message(m protoreflect.Message) {
	if a, is := m.Interface().(*anypb.Any); is {
		in.extension(a)
		return
	}
	in.note(m.Interface())
	in.unknownFields(m)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		in.field(f, v)
		return true
	})
}

// field checks the value of a field that is set: all elements of a list or a map.
func (in *inspection) field(f protoreflect.FieldDescriptor, v protoreflect.Value) {
	name := string(f.Name())
	switch {
	case f.IsMap():
		if f.MapValue().Message() == nil && f.MapValue().Enum() == nil {
			return
		}
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			in.element(fmt.Sprintf("%s[%.64q]", name, k.String()), f.MapValue(), v)
			return true
		})
	case f.Message() == nil && f.Enum() == nil:
	case f.IsList():
		for i := range v.List().Len() {
			in.element(fmt.Sprintf("%s[%d]", name, i), f, v.List().Get(i))
		}
	default:
		in.element(name, f, v)
	}
}

// element checks one enum value or message. f must have an enum or a message type.
func (in *inspection) element(name string, f protoreflect.FieldDescriptor, v protoreflect.Value) {
	if f.Message() == nil {
		if f.Enum().Values().ByNumber(v.Enum()) == nil {
			in.add(Unknown, name, fmt.Sprintf("value %d of enum %s is unknown", v.Enum(), f.Enum().FullName()))
		}
		return
	}
	in.path = append(in.path, name)
	in.message(v.Message())
	in.path = in.path[:len(in.path)-1]
}

// extension checks the message in an Any, if its type is checked.
func (in *inspection) extension(a *anypb.Any) {
	in.OnDemand = in.OnDemand || onDemand(a.GetTypeUrl())
	if in.any == deepest {
		in.add(Unchecked, "", fmt.Sprintf("more than %d extensions are nested", deepest))
		return
	}
	in.any++
	in.decode(a.GetTypeUrl(), a.GetValue())
	in.any--
}

// unknownFields adds a finding for each field number that the message type does not define.
func (in *inspection) unknownFields(m protoreflect.Message) {
	var reported map[protowire.Number]bool // allocated only if the message has unknown fields
	for b := m.GetUnknown(); len(b) > 0; {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return // cannot happen: the decoder has accepted the bytes
		}
		if b = b[n:]; !reported[number] {
			if reported == nil {
				reported = make(map[protowire.Number]bool)
			}
			reported[number] = true
			in.add(Unknown, "", fmt.Sprintf("field %d of %s is unknown", number, m.Descriptor().FullName()))
		}
	}
}
