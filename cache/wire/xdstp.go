package wire

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// xdstpScheme is the prefix of structured names, which have an authority, a type, an id
// and context parameters. All other names are opaque.
const xdstpScheme = "xdstp://"

// ErrXDSTP means that a name starts with xdstp:// and has no canonical form. A response
// with such a name is malformed; a client's subscription to it is not sent to the
// origin (B.23).
var ErrXDSTP = errors.New("malformed xdstp name")

// The characters that are escaped in each part of a name, in addition to '~' and to
// those that are not printable ASCII; a space counts as printable. Envoy escapes the
// same characters, so names in Envoy's requests are already canonical.
const (
	escapedInAuthority = "%/?#"
	escapedInID        = "%:?#[]"
	escapedInParameter = "%#[]&="
)

// CanonicalName returns the canonical spelling of a name: percent escapes are
// normalised, and context parameters are sorted by key (R128). A name that does not
// start with xdstp:// is returned unchanged.
//
// Errors: [ErrXDSTP] for an invalid percent escape, a missing type or id, a type that
// is not the full name of a message, a parameter without a key or with a duplicate key,
// and a directive, which only locators may have.
//
// Source: xDS TP1, URI-based naming; Envoy's xds_resource.cc for the escapes.
func CanonicalName(name string) (canonical string, err error) {
	rest, ok := strings.CutPrefix(name, xdstpScheme)
	if !ok {
		return name, nil
	}
	parts, err := splitXDSTP(rest)
	if err != nil {
		return "", fmt.Errorf("%w %.256q: %w", ErrXDSTP, name, err)
	}
	buf := make([]byte, 0, len(name))
	if buf = parts.append(buf); string(buf) == name {
		return name, nil
	}
	return string(buf), nil
}

// CanonicalAuthority returns the spelling of an authority in canonical names; see
// [CanonicalName]. Errors: [ErrXDSTP] for an invalid percent escape, and for a character
// that would end the authority.
func CanonicalAuthority(authority string) (string, error) {
	if i := strings.IndexAny(authority, "/?#"); i >= 0 {
		return "", fmt.Errorf("%w: %q in the authority %q", ErrXDSTP, authority[i], authority)
	}
	plain, err := url.PathUnescape(authority)
	if err != nil {
		return "", fmt.Errorf("%w: authority %q: %w", ErrXDSTP, authority, err)
	}
	return string(appendEscaped(nil, plain, escapedInAuthority)), nil
}

// Authority returns the authority of a canonical name, which selects its origin
// (R129) and may be empty; ok is false for a name that is not xdstp.
func Authority(name string) (authority string, ok bool) {
	rest, ok := strings.CutPrefix(name, xdstpScheme)
	if !ok {
		return "", false
	}
	authority, _, _ = strings.Cut(rest, "/")
	return authority, true
}

// Glob reports whether a canonical name subscribes to a collection: an xdstp name
// whose id ends with the path segment "*" (R132).
func Glob(name string) bool {
	if !strings.HasPrefix(name, xdstpScheme) {
		return false
	}
	path, _, _ := strings.Cut(name, "?")
	return strings.HasSuffix(path, "/*")
}

// GlobOf returns the collection that a canonical name is a member of: the name with the
// last path segment of its id replaced by "*" (R131, R132). ok is false for names that are
// not xdstp and for collections, which are members of no collection.
func GlobOf(name string) (glob string, ok bool) {
	if !strings.HasPrefix(name, xdstpScheme) || Glob(name) {
		return "", false
	}
	path, _, _ := strings.Cut(name, "?")
	return path[:strings.LastIndexByte(path, '/')+1] + "*" + name[len(path):], true
}

// An xdstpName is a parsed name, with its escapes decoded.
type xdstpName struct {
	authority, resourceType, id string
	context                     []parameter // sorted by key
}

type parameter struct{ key, value string }

// splitXDSTP parses a name without its scheme.
func splitXDSTP(rest string) (n xdstpName, err error) {
	if strings.Contains(rest, "#") {
		return n, errors.New("it has a directive (#), which only a locator may have")
	}
	path, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(path, "/")
	resourceType, id, _ := strings.Cut(path, "/")
	switch {
	case resourceType == "":
		return n, errors.New("it has no resource type")
	case !protoreflect.FullName(resourceType).IsValid():
		return n, fmt.Errorf("the resource type %.256q is not the full name of a message", resourceType)
	case id == "":
		return n, errors.New("it has no id")
	}
	n.resourceType = resourceType
	if n.authority, err = url.PathUnescape(authority); err != nil {
		return n, fmt.Errorf("authority: %w", err)
	}
	if n.id, err = url.PathUnescape(id); err != nil {
		return n, fmt.Errorf("id: %w", err)
	}
	n.context, err = splitContext(query)
	return n, err
}

// splitContext parses context parameters. A parameter without "=" has an empty value.
func splitContext(query string) (context []parameter, err error) {
	if query == "" {
		return nil, nil
	}
	for pair := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(pair, "=")
		var p parameter
		if p.key, err = url.PathUnescape(key); err != nil {
			return nil, fmt.Errorf("context parameter: %w", err)
		}
		if p.value, err = url.PathUnescape(value); err != nil {
			return nil, fmt.Errorf("context parameter %.256q: %w", p.key, err)
		}
		if p.key == "" {
			return nil, errors.New("a context parameter has no key")
		}
		context = append(context, p)
	}
	slices.SortFunc(context, func(a, b parameter) int { return cmp.Compare(a.key, b.key) })
	for i := range len(context) - 1 {
		// Implementations differ in which of the two values they use (X23).
		if key := context[i].key; key == context[i+1].key {
			return nil, fmt.Errorf("duplicate context parameter %.256q", key)
		}
	}
	return context, nil
}

// append appends the canonical spelling.
func (n *xdstpName) append(b []byte) []byte {
	b = append(b, xdstpScheme...)
	b = appendEscaped(b, n.authority, escapedInAuthority)
	b = append(b, '/')
	b = append(b, n.resourceType...)
	b = append(b, '/')
	b = appendEscaped(b, n.id, escapedInID)
	for i, p := range n.context {
		separator := byte('&')
		if i == 0 {
			separator = '?'
		}
		b = append(b, separator)
		b = appendEscaped(b, p.key, escapedInParameter)
		b = append(b, '=')
		b = appendEscaped(b, p.value, escapedInParameter)
	}
	return b
}

// appendEscaped appends s with percent escapes for the reserved characters and for
// those that Envoy does not treat as printable.
func appendEscaped(b []byte, s, reserved string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(s) {
		c := s[i]
		if c < ' ' || c >= '~' || strings.IndexByte(reserved, c) >= 0 {
			b = append(b, '%', digits[c>>4], digits[c&0xf])
		} else {
			b = append(b, c)
		}
	}
	return b
}
