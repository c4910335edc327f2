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

// xdstpScheme starts the names that have parts: an authority, a type, an id and
// context parameters. Every other name is opaque.
const xdstpScheme = "xdstp://"

// ErrXDSTP means that a name starts with xdstp:// and has no canonical form. From
// an origin it is a malformed response; from a client, a name that must never be
// sent on (B.23).
var ErrXDSTP = errors.New("malformed xdstp name")

// The characters that are escaped in each part of a name, beside '%', those that
// are not visible ASCII, and '~'. They are Envoy's, so that the names that Envoys
// ask for are canonical already; a space is no less visible to it than a letter.
const (
	escapedInAuthority = "%/?#"
	escapedInID        = "%:?#[]"
	escapedInParameter = "%#[]&="
)

// CanonicalName returns the one spelling that stands for all spellings of a name:
// escapes undone and made anew, context parameters sorted by key (R128). A name
// that does not start with xdstp:// is returned as it is.
//
// Errors: [ErrXDSTP] for a bad percent escape, a missing type or id, a type that
// is not the full name of a message, a parameter without a key or one that comes
// twice, and for a directive, which only locators have.
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

// CanonicalAuthority returns the spelling of an authority that [CanonicalName]
// gives it. Errors: [ErrXDSTP] for a bad percent escape, and for a character that
// would end the authority.
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

// Glob reports whether a canonical name stands for a collection: an xdstp name
// whose id ends in the path segment "*" (R132).
func Glob(name string) bool {
	if !strings.HasPrefix(name, xdstpScheme) {
		return false
	}
	path, _, _ := strings.Cut(name, "?")
	return strings.HasSuffix(path, "/*")
}

// GlobOf returns the one collection that a canonical name is a member of: same
// authority, type and context parameters, and the id's last path segment made "*"
// (R131, R132). ok is false for a name that is not xdstp, and for a collection,
// which is a member of none.
func GlobOf(name string) (glob string, ok bool) {
	if !strings.HasPrefix(name, xdstpScheme) || Glob(name) {
		return "", false
	}
	path, _, _ := strings.Cut(name, "?")
	return path[:strings.LastIndexByte(path, '/')+1] + "*" + name[len(path):], true
}

// An xdstpName is a name in parts, with escapes undone.
type xdstpName struct {
	authority, resourceType, id string
	context                     []parameter // sorted by key
}

type parameter struct{ key, value string }

// splitXDSTP takes a name apart, which begins behind the scheme.
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

// splitContext reads context parameters; one without "=" has an empty value.
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
		// Software differs in which of the two it takes (X23).
		if key := context[i].key; key == context[i+1].key {
			return nil, fmt.Errorf("the context parameter %.256q comes twice", key)
		}
	}
	return context, nil
}

// append writes the canonical spelling.
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

// appendEscaped writes s with percent escapes for the reserved characters and for
// what Envoy does not take for visible.
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
