package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/nodegroup"
)

// A Size is a number of bytes. Its text form may have the unit B, KiB, MiB or GiB; the default is B.
type Size int64

const (
	kibibyte Size = 1 << 10
	mebibyte Size = 1 << 20
	gibibyte Size = 1 << 30
)

// sizeUnits has the units from the largest to the smallest.
var sizeUnits = []struct {
	name  string
	bytes Size
}{{"GiB", gibibyte}, {"MiB", mebibyte}, {"KiB", kibibyte}, {"B", 1}}

// String returns the size in the largest unit that divides it.
func (s Size) String() string {
	for _, unit := range sizeUnits {
		if s != 0 && s%unit.bytes == 0 {
			return strconv.FormatInt(int64(s/unit.bytes), 10) + unit.name
		}
	}
	return "0B"
}

// UnmarshalText reads the format of String, or a number of bytes.
func (s *Size) UnmarshalText(text []byte) error {
	number, bytes := string(text), Size(1)
	for _, unit := range sizeUnits {
		if rest, ok := strings.CutSuffix(number, unit.name); ok {
			number, bytes = strings.TrimSpace(rest), unit.bytes
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || Size(n) > (1<<63-1)/bytes {
		return errors.New("not a size")
	}
	*s = Size(n) * bytes
	return nil
}

// A Locality is the locality of the relay. Its text form is region/zone/sub_zone; sub_zone and zone may be omitted.
type Locality struct{ Region, Zone, SubZone string }

// MarshalText returns the text.
func (l Locality) MarshalText() ([]byte, error) {
	return []byte(strings.TrimRight(l.Region+"/"+l.Zone+"/"+l.SubZone, "/")), nil
}

// EnvDecode reads the text.
func (l *Locality) EnvDecode(raw string) error {
	if err := new(Text).EnvDecode(raw); err != nil {
		return err
	}
	parts := strings.Split(raw, "/")
	if len(parts) > 3 {
		return fmt.Errorf("%d parts", len(parts))
	}
	parts = append(parts, "", "")
	*l = Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
	return nil
}

// Metadata is the metadata in the Node of the relay, a JSON object.
type Metadata map[string]any

// MarshalText returns the object as JSON, or an empty text for an empty object.
func (m Metadata) MarshalText() ([]byte, error) {
	if len(m) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any(m))
}

// EnvDecode reads a JSON object.
func (m *Metadata) EnvDecode(raw string) error {
	err := json.Unmarshal([]byte(raw), (*map[string]any)(m))
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("not a JSON object: byte %d: %w", syntax.Offset, syntax)
	}
	if err != nil || *m == nil { // nil: the text is null
		return errors.New("not a JSON object")
	}
	return nil
}

// decodeList reads a list with a separator, and trims items. It rejects empty and duplicate items; the error has all invalid
// ones. Duplicates have the same description; if describe is nil, the same value.
func decodeList[L ~[]T, T any](
	list *L, separator, raw string, parse func(item string) (T, error), describe func(T) string,
) error {
	seen, errs := map[string]bool{}, []error{}
	for item := range strings.SplitSeq(raw, separator) {
		item = strings.TrimSpace(item)
		if item == "" {
			errs = append(errs, errors.New("empty list item"))
			continue
		}
		value, err := parse(item)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		key, described := fmt.Sprint(value), humanize.Quote(item)
		if describe != nil {
			described = describe(value)
			key = described
		}
		if seen[key] {
			errs = append(errs, fmt.Errorf("duplicate %s", described))
		}
		seen[key] = true
		*list = append(*list, value)
	}
	return join(errs...)
}

// listText returns the text that decodeList reads with commas. text returns that of an item.
func listText[T any](all []T, text func(T) string) ([]byte, error) {
	items := make([]string, len(all))
	for i, item := range all {
		items[i] = text(item)
	}
	return []byte(strings.Join(items, ",")), nil
}

// Patterns are names in which * stands for any characters, in the syntax of [path.Match].
type Patterns []string

// EnvDecode reads patterns, separated by commas.
func (p *Patterns) EnvDecode(raw string) error {
	return decodeList(p, ",", raw, func(item string) (string, error) {
		if _, err := path.Match(item, ""); err != nil {
			return "", fmt.Errorf("%s is not a pattern: %w", humanize.Quote(item), err)
		}
		return item, nil
	}, nil)
}

// Targets are the targets of an origin in failover order, or a single file:///dir.
type Targets []string

// EnvDecode reads targets, separated by commas.
func (t *Targets) EnvDecode(raw string) error {
	err := decodeList(t, ",", raw, func(item string) (string, error) { return item, checkTarget(item) }, nil)
	if len(*t) > 1 && slices.ContainsFunc(*t, isDirectory) {
		return join(err, errors.New("a directory must be the only target"))
	}
	return err
}

// Directory returns the path of the directory, and whether the origin is one.
func (t Targets) Directory() (path string, ok bool) {
	if len(t) == 0 || !isDirectory(t[0]) {
		return "", false
	}
	u, err := url.Parse(t[0])
	if err != nil {
		return strings.TrimPrefix(t[0], "file://"), true
	}
	return u.Path, true
}

// isDirectory reports whether a target of an origin is a directory.
func isDirectory(target string) bool { return strings.HasPrefix(target, "file:") }

// checkTarget returns an error for an invalid target of an origin.
func checkTarget(target string) error {
	scheme, rest, ok := strings.Cut(target, ":")
	switch {
	case ok && scheme == "file":
		return checkPath(target, rest)
	case ok && scheme == "unix":
		return checkSocket(target, rest)
	case ok && scheme == "dns":
		address, ok := strings.CutPrefix(rest, "///")
		if !ok {
			return fmt.Errorf("%s does not start with dns:///", humanize.Quote(target))
		}
		return checkAddress(address, 1, false)
	case strings.Contains(target, "://"):
		return fmt.Errorf("%s is not a supported scheme", humanize.Quote(scheme))
	default:
		return checkAddress(target, 1, false)
	}
}

// checkPath returns an error for an invalid file: URL. rest is the part after the colon.
func checkPath(target, rest string) error {
	if u, err := url.Parse(target); err != nil || u.Host != "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%s is not a file URL without a host", humanize.Quote(target))
	}
	if !strings.HasPrefix(rest, "///") || len(rest) == len("///") {
		return fmt.Errorf("%s does not name a directory by an absolute path", humanize.Quote(target))
	}
	return nil
}

// checkSocket returns an error for an invalid unix: address. rest is the part after the colon: /path or ///path.
func checkSocket(address, rest string) error {
	const longest = 107 // sun_path has 108 bytes, the last of which is zero
	path := rest
	if strings.HasPrefix(rest, "//") {
		path = rest[2:]
	}
	if !strings.HasPrefix(path, "/") || path == "/" {
		return fmt.Errorf("%s does not name a socket by an absolute path", humanize.Quote(address))
	}
	if len(path) > longest {
		return fmt.Errorf("the path of a socket is longer than %d bytes", longest)
	}
	return nil
}

// checkAddress returns an error for an invalid host:port.
func checkAddress(address string, leastPort uint64, emptyHost bool) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s is not host:port", humanize.Quote(address))
	}
	var errs [2]error
	if host == "" && !emptyHost || strings.ContainsFunc(host, notInHost) {
		errs[0] = fmt.Errorf("the host %s is neither a name nor an IP address", humanize.Quote(host))
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n < leastPort {
		errs[1] = fmt.Errorf("the port %s is not a number from %d to 65535", humanize.Quote(port), leastPort)
	}
	return join(errs[:]...)
}

// notInHost reports whether neither a host name nor an IP address with a zone may contain r.
func notInHost(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(".-_:%", r)
}

// Addresses are addresses to listen on: host:port, or unix: and a path. Port 0 means any free port.
type Addresses []string

// EnvDecode reads addresses, separated by commas.
func (a *Addresses) EnvDecode(raw string) error {
	return decodeList(a, ",", raw, func(item string) (string, error) {
		if rest, ok := strings.CutPrefix(item, "unix:"); ok {
			return item, checkSocket(item, rest)
		}
		if strings.Contains(item, "://") {
			return "", fmt.Errorf("%s is not an address to listen on", humanize.Quote(item))
		}
		return item, checkAddress(item, 0, true)
	}, nil)
}

// A Text is printable, such as a node ID.
type Text string

// EnvDecode reads printable text.
func (t *Text) EnvDecode(raw string) error {
	switch {
	case len(raw) > int(4*kibibyte):
		return fmt.Errorf("%d bytes", len(raw))
	case !utf8.ValidString(raw):
		return errors.New("not UTF-8")
	case strings.ContainsFunc(raw, func(r rune) bool { return !unicode.IsPrint(r) }):
		return errors.New("contains unprintable characters")
	}
	*t = Text(raw)
	return nil
}

// NodeFields are fields of a Node that define its group.
type NodeFields []string

// EnvDecode reads fields, separated by commas.
func (f *NodeFields) EnvDecode(raw string) error {
	return decodeList(f, ",", raw, func(item string) (string, error) {
		if item == "none" {
			return "", errors.New("none cannot be combined with fields")
		}
		if path, ok := strings.CutPrefix(item, "metadata."); ok {
			if slices.Contains(strings.Split(path, "."), "") {
				return "", fmt.Errorf("%s has an empty path segment", humanize.Quote(item))
			}
			return item, nil
		}
		if !slices.Contains(nodegroup.Fields, item) {
			return "", fmt.Errorf("%s is not a Node field that can define groups", humanize.Quote(item))
		}
		return item, nil
	}, nil)
}

// typeURL matches a host, an optional path, and the full name of a message.
var typeURL = regexp.MustCompile(
	`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*/[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)

// WildcardTypes are the type URLs of types that have wildcard subscriptions.
type WildcardTypes []string

// EnvDecode reads short names or type URLs, separated by commas.
func (w *WildcardTypes) EnvDecode(raw string) error {
	return decodeList(w, ",", raw, func(item string) (string, error) {
		url, err := parseType(item)
		if err == nil && wire.IsSecret(url) { // Secrets have none (B.36)
			return "", fmt.Errorf("%s: Secrets have no wildcard subscriptions", humanize.Quote(item))
		}
		return url, err
	}, nil)
}

// parseType reads a short name or a type URL, and returns the type URL.
func parseType(item string) (string, error) {
	if url, ok := schema.TypeURLFor(item); ok {
		return url, nil
	}
	if !typeURL.MatchString(item) {
		return "", fmt.Errorf("%s is neither a short name nor a type URL", humanize.Quote(item))
	}
	return item, nil
}

// typeText returns what parseType reads: the short name of a type if there is one, and otherwise its URL.
func typeText(typeURL string) string {
	if name, ok := schema.ShortName(typeURL); ok {
		return name
	}
	return typeURL
}

// IsLoopback reports whether only this host can reach a valid address: a loopback address or a Unix socket.
func IsLoopback(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, _ := net.SplitHostPort(address)
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

// escape returns s with unprintable characters escaped, without quotes.
func escape(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	quoted := strconv.Quote(s)
	return quoted[1 : len(quoted)-1]
}

// NonLoopback returns the addresses that other hosts can reach.
func NonLoopback(addresses []string) []string {
	return slices.DeleteFunc(slices.Clone(addresses), IsLoopback)
}

// LoopbackOnly returns the addresses that only this host can reach.
func LoopbackOnly(addresses []string) []string {
	return slices.DeleteFunc(slices.Clone(addresses), func(a string) bool { return !IsLoopback(a) })
}
