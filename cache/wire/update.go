package wire

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Field numbers of envoy.service.discovery.v3.DeltaDiscoveryResponse, and of the fields that a DiscoveryResponse shares
// with it.
const (
	responseSystemVersion protowire.Number = 1 // SotW: version_info
	responseTypeURL       protowire.Number = 4
	responseNonce         protowire.Number = 5
	responseRemoved       protowire.Number = 6
	responseControlPlane  protowire.Number = 7 // SotW: 6
	sotwControlPlane      protowire.Number = 6
	responseRemovedNames  protowire.Number = 8
	responseErrors        protowire.Number = 9 // SotW: 7
	sotwErrors            protowire.Number = 7
)

// responseTrace is the field of responses, in both variants, with which a relay tells a relay below it the trace of the oldest
// change in the response: a traceparent (https://www.w3.org/TR/trace-context). xDS defines no such field, and no other client is
// sent it.
const responseTrace protowire.Number = 19_871

// responseHalts is the field of responses, in both variants, with which a relay tells a relay below it what rollouts have halted
// (B.55). xDS defines no such field, and no other client is sent it. A response with it has nothing else, so it is neither
// acknowledged nor rejected.
const responseHalts protowire.Number = 19_873

// maxTraceParent is the number of bytes of a traceparent of version 00.
const maxTraceParent = 55

// An Update is the envelope of one response of an origin.
type Update struct {
	TypeURL       string
	SystemVersion string // for display only, never compared (R091)
	Nonce         string
	ControlPlane  string // the origin's control_plane.identifier
	Resources     []*Resource
	Removed       []string // in canonical form (B.23)

	// RemovedVariants are the removed variants; other variants of their names remain
	// (R121).
	RemovedVariants []Variant

	// Errors are the origin's errors for single resources.
	Errors []*ResourceError

	// Complete reports that Resources contains all resources of the subscription. Only
	// a SotW response can be complete. The decoders do not set it, since it depends on
	// the subscription.
	Complete bool

	// TraceParent is the trace of the oldest change in the response, if the origin is a relay that traces it.
	TraceParent string
}

// Decode decodes a DeltaDiscoveryResponse. The update shares no memory with msg.
//
// If decoding fails, the update still has the type URL and the nonce, if msg had
// them, so that the response can be refused with a NACK.
//
// Errors: [ErrMalformed], [ErrUnnamed], [ErrDuplicate], [ErrTypeMismatch], [ErrXDSTP].
func (d Decoder) Decode(msg []byte) (Update, error) { return d.decode(msg, false) }

// decode decodes a Delta or a SotW response.
func (d Decoder) decode(msg []byte, sotw bool) (u Update, err error) {
	message, set := "update", (*Update).setField
	if sotw {
		message, set = "response", (*Update).setSotWField
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("decode %s: %w", message, err)
		}
	}()
	u, resources, err := envelope(msg, set)
	switch {
	case err != nil:
		return u, err
	case u.TypeURL == "":
		return u, fmt.Errorf("%w: no type URL", ErrMalformed)
	}
	for _, raw := range resources {
		if sotw {
			if raw, err = unwrapResource(u.TypeURL, raw); err != nil {
				return u, err
			}
		}
		r, err := d.parseResource(u.TypeURL, raw, sotw)
		if err != nil {
			return u, err
		}
		if d.MaxResourceBytes > 0 && len(raw) > d.MaxResourceBytes {
			message := fmt.Sprintf("the resource has %d bytes; at most %d are allowed", len(raw), d.MaxResourceBytes)
			r.Refusal = NewResourceError(r.Name, codes.Internal, message)
		}
		u.Resources = append(u.Resources, r)
	}
	return u, u.checkDuplicates()
}

// Refusals yields the resources whose content is refused.
func (u *Update) Refusals() iter.Seq[*Resource] {
	return func(yield func(*Resource) bool) {
		for _, r := range u.Resources {
			if r.Refusal != nil && !yield(r) {
				return
			}
		}
	}
}

// checkDuplicates refuses an update that contains a resource twice (R062).
func (u *Update) checkDuplicates() error {
	seen := make(map[string]struct{}, len(u.Resources)+len(u.Removed))
	duplicate := func(key string) bool {
		_, duplicate := seen[key]
		seen[key] = struct{}{}
		return duplicate
	}
	for _, r := range u.Resources {
		if duplicate(r.Key()) {
			return fmt.Errorf("%w %.256q", ErrDuplicate, r.Name)
		}
	}
	for _, e := range u.Errors { // a removed resource may also have an error that gives the reason
		if _, ok := seen[e.Key()]; ok {
			return fmt.Errorf("%w %.256q, in resource_errors", ErrDuplicate, e.Name)
		}
	}
	for _, name := range u.Removed {
		if duplicate(name) {
			return fmt.Errorf("%w %.256q, in removed_resources", ErrDuplicate, name)
		}
	}
	for _, v := range u.RemovedVariants {
		if duplicate(v.Key()) {
			return fmt.Errorf("%w %.256q, in removed_resource_names", ErrDuplicate, v.Name)
		}
	}
	return nil
}

// envelope decodes the fields of a response with set, and returns its resources
// undecoded. It continues after an invalid field, since the type URL and the nonce may
// follow.
func envelope(msg []byte, set func(*Update, protowire.Number, []byte) error) (u Update, resources [][]byte, err error) {
	f := fieldReader{msg: msg}
	for f.next() {
		switch {
		case f.typ != protowire.BytesType:
		case f.num == responseResources:
			resources = append(resources, f.value)
		default:
			if setErr := set(&u, f.num, f.value); err == nil {
				err = setErr
			}
		}
	}
	if f.malformed {
		return u, nil, f.err("response")
	}
	return u, resources, err
}

func (u *Update) setField(num protowire.Number, val []byte) (err error) {
	switch num {
	case responseSystemVersion:
		u.SystemVersion, err = text(val, "system version")
	case responseTypeURL:
		u.TypeURL, err = text(val, "type URL")
	case responseNonce:
		u.Nonce, err = text(val, "nonce")
	case responseRemoved:
		var name string
		if name, err = text(val, "resource name"); err == nil {
			name, err = CanonicalName(name)
		}
		u.Removed = append(u.Removed, name)
	case responseRemovedNames:
		err = u.addRemovedName(val)
	case responseErrors:
		err = u.addError(val)
	case responseTrace:
		u.setTraceParent(val)
	case responseControlPlane:
		err = u.setControlPlane(val)
	}
	return err
}

// setTraceParent sets the trace of a response. A fault in it is no fault of the response: whoever uses it checks it.
func (u *Update) setTraceParent(val []byte) {
	if len(val) <= maxTraceParent {
		u.TraceParent = string(val)
	}
}

// setControlPlane sets the identifier of the control plane. Several occurrences of a message are merged.
func (u *Update) setControlPlane(val []byte) error {
	if !wellFormed(val) {
		return fmt.Errorf("%w: control plane", ErrMalformed)
	}
	if id, ok := stringField(val, 1); ok {
		u.ControlPlane = proseText([]byte(id))
	}
	return nil
}

// DecodeSotW decodes a DiscoveryResponse. The update shares no memory with msg. It has
// no removals: whether an absent resource was removed depends on the subscription.
//
// If a resource is wrapped in a Resource message, its name and all other fields of that
// message are used (B.19). Otherwise the name is the one in the resource, which all types
// of the protocol have except LbEndpoint. Resources of other types must be wrapped.
//
// If decoding fails, the update still has the type URL and the nonce, if msg had
// them, so that the response can be refused with a NACK.
//
// Errors: [ErrMalformed], [ErrUnnamed], [ErrDuplicate], [ErrTypeMismatch], [ErrXDSTP].
func (d Decoder) DecodeSotW(msg []byte) (Update, error) { return d.decode(msg, true) }

// setSotWField sets a field of a DiscoveryResponse.
func (u *Update) setSotWField(num protowire.Number, val []byte) error {
	switch num {
	case responseSystemVersion, responseTypeURL, responseNonce, responseTrace: // the same in both variants
		return u.setField(num, val)
	case sotwControlPlane:
		return u.setField(responseControlPlane, val)
	case sotwErrors:
		return u.setField(responseErrors, val)
	default:
		return nil
	}
}

// unwrapResource returns the Resource message in an Any of a DiscoveryResponse. If the Any contains the resource
// itself, it returns a new Resource message with that body.
func unwrapResource(responseType string, body []byte) ([]byte, error) {
	typeURL, value, err := parseAny(body)
	switch {
	case err != nil:
		return nil, err
	case typeURL == resourceWrapper:
		return value, nil
	case typeURL != responseType:
		return nil, fmt.Errorf("%w: %q in a response of type %q", ErrTypeMismatch, typeURL, responseType)
	case !hasOwnName(typeURL):
		return nil, fmt.Errorf(
			"%w: resources of type %q do not contain their name, so in SotW responses the origin must wrap them in %q",
			ErrUnnamed, typeURL, resourceWrapper)
	}
	return appendBytes(nil, resourceBody, body), nil
}

// RemovedNames yields the names that no longer exist: the removed ones, and those with a
// NOT_FOUND error (R123).
func (u *Update) RemovedNames() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, name := range u.Removed {
			if !yield(name) {
				return
			}
		}
		for _, e := range u.Errors {
			if e.NotFound() && e.Constraints == nil && !yield(e.Name) {
				return
			}
		}
	}
}

// Fails reports whether the update has an error for a name.
func (u *Update) Fails(name string) bool {
	return slices.ContainsFunc(u.Errors, func(e *ResourceError) bool { return e.Name == name })
}

// addError reads an entry of resource_errors. An entry with an empty name refers to the
// legacy form of the wildcard.
func (u *Update) addError(val []byte) error {
	var m discoverypb.ResourceError
	val = withProse(val, 2, 2) // error_detail.message
	if err := nestedOptions.Unmarshal(val, &m); err != nil {
		return fmt.Errorf("%w: resource error: %w", ErrMalformed, err)
	}
	full := m.GetResourceName()
	if full == nil {
		return fmt.Errorf("%w, in resource_errors: %q", ErrUnnamed, m.GetErrorDetail().GetMessage())
	}
	name, err := CanonicalName(cmp.Or(full.GetName(), Wildcard))
	if err != nil {
		return err
	}
	if name != full.GetName() {
		full.Name = name
		val, _ = proto.Marshal(&m) // a message that was decoded can be encoded
	}
	u.Errors = append(u.Errors, &ResourceError{
		Variant: Variant{Name: name, Constraints: constraintBytes(full.GetDynamicParameterConstraints())},
		Code:    codes.Code(m.GetErrorDetail().GetCode()),
		Message: m.GetErrorDetail().GetMessage(),
		encoded: append([]byte(nil), val...),
	})
	return nil
}

// addRemovedName reads an entry of removed_resource_names. An entry without constraints is equivalent to an entry of
// removed_resources.
func (u *Update) addRemovedName(val []byte) error {
	var m discoverypb.ResourceName
	if err := nestedOptions.Unmarshal(val, &m); err != nil {
		return fmt.Errorf("%w: removed resource name: %w", ErrMalformed, err)
	}
	name, err := CanonicalName(m.GetName())
	if err != nil {
		return err
	}
	if c := constraintBytes(m.GetDynamicParameterConstraints()); c != nil {
		u.RemovedVariants = append(u.RemovedVariants, Variant{Name: name, Constraints: c})
	} else {
		u.Removed = append(u.Removed, name)
	}
	return nil
}
