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

// Field numbers of envoy.service.discovery.v3.DeltaDiscoveryResponse, and of
// the fields that a DiscoveryResponse shares with it.
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

// An Update is the envelope of one response of an origin.
type Update struct {
	TypeURL       string
	SystemVersion string // for people only, never compared (R091)
	Nonce         string
	ControlPlane  string // the origin's control_plane.identifier
	Resources     []*Resource
	Removed       []string // in canonical form (B.23)

	// RemovedVariants are resources of which only the variant with these
	// constraints was removed (R121).
	RemovedVariants []Variant

	// Errors say why the origin does not, or not any more, say what a resource is.
	Errors []*ResourceError

	// Complete reports that there is nothing else than Resources of what was
	// subscribed to. Only the SotW variant can say so, and no decoder does: it
	// depends on the subscription.
	Complete bool
}

// Decode decodes a DeltaDiscoveryResponse. The update shares no memory with msg.
//
// With an error the update still holds the type URL and the nonce, if msg had
// them, so that the response can be refused by name.
//
// Errors: [ErrMalformed], [ErrUnnamed], [ErrDuplicate], [ErrTypeMismatch],
// [ErrXDSTP].
func (d Decoder) Decode(msg []byte) (Update, error) { return d.decode(msg, false) }

// decode decodes a response of one of the two variants.
func (d Decoder) decode(msg []byte, sotw bool) (u Update, err error) {
	what, set := "update", (*Update).set
	if sotw {
		what, set = "response", (*Update).setSotW
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("decode %s: %w", what, err)
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
			if raw, err = wrapped(u.TypeURL, raw); err != nil {
				return u, err
			}
		}
		r, err := d.resource(u.TypeURL, raw, sotw)
		if err != nil {
			return u, err
		}
		if d.MaxResourceBytes > 0 && len(raw) > d.MaxResourceBytes {
			r.Refusal = NewResourceError(r.Name, codes.Internal, fmt.Sprintf("the resource has %d bytes, and may have %d", len(raw), d.MaxResourceBytes))
		}
		u.Resources = append(u.Resources, r)
	}
	return u, u.checkDuplicates()
}

// Refusals yields the resources whose content is not to be taken.
func (u *Update) Refusals() iter.Seq[*Resource] {
	return func(yield func(*Resource) bool) {
		for _, r := range u.Resources {
			if r.Refusal != nil && !yield(r) {
				return
			}
		}
	}
}

// checkDuplicates rejects an update that has one resource twice (R062).
func (u *Update) checkDuplicates() error {
	seen := make(map[string]struct{}, len(u.Resources)+len(u.Removed))
	twice := func(key string) bool {
		_, twice := seen[key]
		seen[key] = struct{}{}
		return twice
	}
	for _, r := range u.Resources {
		if twice(r.Key()) {
			return fmt.Errorf("%w %.256q", ErrDuplicate, r.Name)
		}
	}
	for _, e := range u.Errors { // a removed resource may have one as the reason
		if _, there := seen[e.Key()]; there {
			return fmt.Errorf("%w %.256q, in resource_errors", ErrDuplicate, e.Name)
		}
	}
	for _, name := range u.Removed {
		if twice(name) {
			return fmt.Errorf("%w %.256q, in removed_resources", ErrDuplicate, name)
		}
	}
	for _, v := range u.RemovedVariants {
		if twice(v.Key()) {
			return fmt.Errorf("%w %.256q, in removed_resource_names", ErrDuplicate, v.Name)
		}
	}
	return nil
}

// envelope reads the response's own fields with set and leaves its resources as
// bytes. It reads on after a bad field, since the type URL and the nonce may
// follow it.
func envelope(msg []byte, set func(*Update, protowire.Number, []byte) error) (u Update, resources [][]byte, err error) {
	f := fieldReader{msg: msg}
	for f.next() {
		switch {
		case f.typ != protowire.BytesType:
		case f.num == responseResources:
			resources = append(resources, f.val)
		default:
			if bad := set(&u, f.num, f.val); err == nil {
				err = bad
			}
		}
	}
	if f.bad {
		return u, nil, f.err("response")
	}
	return u, resources, err
}

func (u *Update) set(num protowire.Number, val []byte) (err error) {
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
	case responseControlPlane:
		if !wellFormed(val) {
			return fmt.Errorf("%w: control plane", ErrMalformed)
		}
		if id, ok := stringField(val, 1); ok { // occurrences of a message merge
			u.ControlPlane, err = text([]byte(id), "control plane")
		}
	}
	return err
}

// DecodeSotW decodes a DiscoveryResponse. The update shares no memory with msg,
// and removes nothing: whether absence means removal depends on the subscription.
//
// The name of a resource is that of the Resource message around it, if there is
// one, with all else that it holds (B.19). The types that the protocol defines
// have a name of their own, but for LbEndpoint. A resource of any other type must
// come wrapped.
//
// With an error the update still holds the type URL and the nonce, if msg had
// them, so that the response can be refused by name.
//
// Errors: [ErrMalformed], [ErrUnnamed], [ErrDuplicate], [ErrTypeMismatch],
// [ErrXDSTP].
func (d Decoder) DecodeSotW(msg []byte) (Update, error) { return d.decode(msg, true) }

// setSotW is set for the fields of a DiscoveryResponse.
func (u *Update) setSotW(num protowire.Number, val []byte) error {
	switch num {
	case responseSystemVersion, responseTypeURL, responseNonce: // the same in both variants
		return u.set(num, val)
	case sotwControlPlane:
		return u.set(responseControlPlane, val)
	case sotwErrors:
		return u.set(responseErrors, val)
	default:
		return nil
	}
}

// wrapped returns the Resource message in an Any of a DiscoveryResponse, or a new one around it.
func wrapped(responseType string, body []byte) ([]byte, error) {
	typeURL, value, err := parseAny(body)
	switch {
	case err != nil:
		return nil, err
	case typeURL == resourceWrapper:
		return value, nil
	case typeURL != responseType:
		return nil, fmt.Errorf("%w: %q in a response of type %q", ErrTypeMismatch, typeURL, responseType)
	case !hasOwnName(typeURL):
		return nil, fmt.Errorf("%w: type %q holds none itself, so in SotW the origin must wrap it in %q",
			ErrUnnamed, typeURL, resourceWrapper)
	}
	return appendBytes(nil, resourceBody, body), nil
}

// RemovedNames yields the names of which the update says that no such resource exists: by
// removing it, or by an error that says so (R123).
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

// addError reads an entry of resource_errors. One with an empty name is about the
// legacy form of the wildcard.
func (u *Update) addError(val []byte) error {
	var m discoverypb.ResourceError
	if err := nested.Unmarshal(val, &m); err != nil {
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
		val, _ = proto.Marshal(&m) // it was decoded, so it can be encoded
	}
	u.Errors = append(u.Errors, &ResourceError{
		Variant: Variant{Name: name, Constraints: constraintBytes(full.GetDynamicParameterConstraints())},
		Code:    codes.Code(m.GetErrorDetail().GetCode()),
		Message: m.GetErrorDetail().GetMessage(),
		encoded: append([]byte(nil), val...),
	})
	return nil
}

// addRemovedName reads an entry of removed_resource_names. One without
// constraints is the same as an entry of removed_resources.
func (u *Update) addRemovedName(val []byte) error {
	var m discoverypb.ResourceName
	if err := nested.Unmarshal(val, &m); err != nil {
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
