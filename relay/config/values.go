package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
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

// parseLocality reads TENDER_NODE_LOCALITY.
func parseLocality(raw string) (l Locality, err error) {
	if _, err := parseText(raw); err != nil {
		return l, err
	}
	parts := strings.Split(raw, "/")
	if len(parts) > 3 {
		return l, fmt.Errorf("%d parts", len(parts))
	}
	parts = append(parts, "", "")
	return Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}, nil
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

// parseMetadata reads TENDER_NODE_METADATA.
func parseMetadata(raw string) (m Metadata, err error) {
	if err := json.Unmarshal([]byte(raw), &m); err != nil || m == nil { // nil: the text is null
		return nil, errors.New("not a JSON object")
	}
	return m, nil
}

// Texts that several rows of the table share.
const (
	groupByNone    = "none"
	groupFieldList = "`id`, `cluster`, `user_agent_name`, `user_agent_version` (the major number), `locality.region`, " +
		"`locality.zone`, `locality.sub_zone`"
)

// listOf returns a parser of lists with a separator, which trims items. It rejects empty and duplicate items.
func listOf[T any](separator string, parse func(item string) (T, error)) func(raw string) ([]T, error) {
	return func(raw string) (items []T, err error) {
		seen := map[string]bool{}
		for item := range strings.SplitSeq(raw, separator) {
			item = strings.TrimSpace(item)
			if item == "" {
				return nil, errors.New("empty list item")
			}
			value, err := parse(item)
			if err != nil {
				return nil, err
			}
			key := fmt.Sprint(value)
			if seen[key] {
				return nil, fmt.Errorf("duplicate %s", humanize.Quote(item))
			}
			seen[key] = true
			items = append(items, value)
		}
		return items, nil
	}
}

// parsePattern reads a pattern in the syntax of [path.Match].
func parsePattern(item string) (string, error) {
	if _, err := path.Match(item, ""); err != nil {
		return "", fmt.Errorf("%s is not a pattern: %w", humanize.Quote(item), err)
	}
	return item, nil
}

// parseOrigin reads TENDER_ORIGIN.
func parseOrigin(raw string) ([]string, error) {
	targets, err := listOf(",", func(item string) (string, error) { return item, checkTarget(item) })(raw)
	if len(targets) > 1 && slices.ContainsFunc(targets, isDirectory) {
		return nil, errors.New("a directory must be the only target")
	}
	return targets, err
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
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n < leastPort {
		return fmt.Errorf("the port %s is not a number from %d to 65535", humanize.Quote(port), leastPort)
	}
	if host == "" && emptyHost {
		return nil
	}
	if host == "" || strings.ContainsFunc(host, notInHost) {
		return fmt.Errorf("the host %s is neither a name nor an IP address", humanize.Quote(host))
	}
	return nil
}

// notInHost reports whether neither a host name nor an IP address with a zone may contain r.
func notInHost(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(".-_:%", r)
}

// parseListen reads TENDER_LISTEN. Port 0 means any free port.
var parseListen = listOf(",", func(item string) (string, error) {
	if rest, ok := strings.CutPrefix(item, "unix:"); ok {
		return item, checkSocket(item, rest)
	}
	if strings.Contains(item, "://") {
		return "", fmt.Errorf("%s is not an address to listen on", humanize.Quote(item))
	}
	return item, checkAddress(item, 0, true)
})

// parseText reads printable text, such as a node ID.
func parseText(raw string) (string, error) {
	switch {
	case len(raw) > int(4*kibibyte):
		return "", fmt.Errorf("%d bytes", len(raw))
	case !utf8.ValidString(raw):
		return "", errors.New("not UTF-8")
	case strings.ContainsFunc(raw, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "", errors.New("contains unprintable characters")
	}
	return raw, nil
}

// parseGroupBy reads TENDER_NODE_GROUP_BY. It returns nil for none.
func parseGroupBy(raw string) ([]string, error) {
	if raw == groupByNone {
		return nil, nil
	}
	return listOf(",", func(item string) (string, error) {
		if item == groupByNone {
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
	})(raw)
}

// typeURL matches a host, an optional path, and the full name of a message.
var typeURL = regexp.MustCompile(
	`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*/[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)

// parseWildcardType reads a type of TENDER_PREWARM. Secrets have none (B.36).
func parseWildcardType(item string) (string, error) {
	url, err := parseType(item)
	if err == nil && wire.IsSecret(url) {
		return "", fmt.Errorf("%s: Secrets have no wildcard subscriptions", humanize.Quote(item))
	}
	return url, err
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

// parseResourceBytes reads TENDER_MAX_RESOURCE_BYTES.
func parseResourceBytes(raw string) (Size, error) {
	if raw == Size(0).String() {
		return 0, nil
	}
	return offOr(sizeBetween(kibibyte, gibibyte))(raw)
}

// offOr returns a parser that returns the zero value for off, and calls parse otherwise.
func offOr[T any](parse func(string) (T, error)) func(string) (T, error) {
	return func(raw string) (value T, err error) {
		if strings.EqualFold(raw, "off") {
			return value, nil
		}
		return parse(raw)
	}
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

// parseLevel reads TENDER_LOG_LEVEL.
func parseLevel(raw string) (level slog.Level, err error) {
	word, err := oneOf("debug", "info", "warn", "error")(raw)
	if err != nil {
		return level, err
	}
	return level, level.UnmarshalText([]byte(word))
}

// oneOf returns a parser of an enumeration, which ignores case.
func oneOf(words ...string) func(string) (string, error) {
	return func(raw string) (string, error) {
		word := strings.ToLower(raw)
		if !slices.Contains(words, word) {
			return "", errors.New("not an allowed value")
		}
		return word, nil
	}
}

// between describes the values that durationBetween allows.
func between(minimum, maximum time.Duration) string {
	return fmt.Sprintf("a duration from %s to %s, such as `90s` or `1m30s`", humanize.Duration(minimum),
		humanize.Duration(maximum))
}

// durationBetween returns a parser of durations between inclusive bounds.
func durationBetween(minimum, maximum time.Duration) func(string) (time.Duration, error) {
	return func(raw string) (time.Duration, error) {
		d, err := time.ParseDuration(raw)
		switch {
		case err != nil:
			return 0, errors.New("not a duration")
		case d < minimum:
			return 0, errors.New("too short")
		case d > maximum:
			return 0, errors.New("too long")
		}
		return d, nil
	}
}

// intBetween returns a parser of whole numbers between inclusive bounds.
func intBetween(minimum, maximum int) func(string) (int, error) {
	return func(raw string) (int, error) {
		n, err := strconv.Atoi(raw) // out of range, n is the nearest int
		switch {
		case err != nil && !errors.Is(err, strconv.ErrRange):
			return 0, errors.New("not a whole number")
		case n > maximum:
			return 0, errors.New("too large")
		case n < minimum:
			return 0, errors.New("too small")
		}
		return n, nil
	}
}

// sizeBetween returns a parser of sizes between inclusive bounds.
func sizeBetween(minimum, maximum Size) func(string) (Size, error) {
	return func(raw string) (s Size, err error) {
		err = s.UnmarshalText([]byte(raw))
		switch {
		case err != nil:
			return 0, err
		case s < minimum:
			return 0, errors.New("too small")
		case s > maximum:
			return 0, errors.New("too large")
		}
		return s, nil
	}
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
