package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// Values of [Access.TLS].
const (
	TLSOff      = "off"      // plaintext
	TLSOn       = "on"       // the origin is verified
	TLSInsecure = "insecure" // the origin may be anybody
)

// An Access is how the relay connects to an origin: how it verifies the origin, and what it sends to authenticate
// itself. Paths are empty where there is no file.
type Access struct {
	TLS        string  `env:"TLS"` // TLSOff, TLSOn or TLSInsecure
	CA         string  `env:"TLS_CA"`
	Cert       string  `env:"TLS_CERT"`
	Key        string  `env:"TLS_KEY"`
	ServerName string  `env:"TLS_SERVER_NAME"` // or a SPIFFE ID
	TokenFile  string  `env:"TOKEN_FILE"`
	Headers    Headers `env:"HEADERS"`
}

// accessNames are the ends of the variables of an Access, in the order of its fields.
var accessNames = func() (names []string) {
	for field := range reflect.TypeFor[Access]().Fields() {
		names = append(names, field.Tag.Get("env"))
	}
	return names
}()

// accessVariable matches the variables of further origins, with the name of the origin.
// No end of a variable is that of another and "_" before it, so that no two origins and
// variables have the same name together.
var accessVariable = regexp.MustCompile(`^ORIGIN_([A-Z0-9_]+)_(?:TLS(?:_CA|_CERT|_KEY|_SERVER_NAME)?|TOKEN_FILE|HEADERS)$`)

// accessPrefix is how the variables of an origin's Access begin.
func accessPrefix(origin string) string {
	if origin == PrimaryOrigin {
		return "ORIGIN_"
	}
	return "ORIGIN_" + strings.ToUpper(strings.ReplaceAll(origin, "-", "_")) + "_"
}

// originNameOf returns the name of the origin that is written so in a variable.
func originNameOf(part string) string {
	return strings.ToLower(strings.ReplaceAll(part, "_", "-"))
}

// accessRows returns the rows of the variables of further origins.
func (c *Config) accessRows() (rows []spec) {
	for _, o := range c.Origins {
		for _, name := range accessNames {
			row := *variable(accessPrefix(PrimaryOrigin) + name)
			row.name = accessPrefix(o.Name) + name
			row.meaning = fmt.Sprintf("for the origin %s, as `TENDER_ORIGIN_%s`", o.Name, name)
			rows = append(rows, row)
		}
	}
	return rows
}

// checkAccess returns, by variable, what is wrong with values that are good by
// themselves, and takes them away. It says of each origin whether there is TLS.
func (c *Config) checkAccess(wrong map[string]error) map[string]error {
	found, fields := map[string]error{}, c.fields()
	check := func(origin string, targets []string, a *Access) {
		begin := accessPrefix(origin)
		isWrong := func(name string) bool { return wrong[begin+name] != nil }
		isUnset := func(name string) bool { return fields[begin+name].IsZero() }
		for !slices.ContainsFunc(accessNames, isWrong) {
			given := slices.DeleteFunc(slices.Clone(accessNames), isUnset)
			name, err := a.conflict(prefix+begin, given, len(targets) > 0 && isDirectory(targets[0]))
			if err == nil {
				break
			}
			found[begin+name] = err
			fields[begin+name].SetZero()
		}
		if a.TLS == "" {
			a.TLS = TLSOff
			if a.hasFiles() {
				a.TLS = TLSOn
			}
		}
	}
	check(PrimaryOrigin, c.Origin, &c.OriginAccess)
	for i := range c.Origins {
		check(c.Origins[i].Name, c.Origins[i].Targets, &c.Origins[i].Access)
	}
	return found
}

// hasFiles reports whether there is a file, each of which is for TLS.
func (a *Access) hasFiles() bool {
	return a.CA != "" || a.Cert != "" || a.Key != "" || a.TokenFile != ""
}

// conflict returns a variable whose value does not go with the others, which begin
// likewise, or with an origin that is a directory, and why. The variables that have a value are given.
func (a *Access) conflict(begin string, given []string, isDirectory bool) (name string, err error) {
	_, hasAuthorization := a.Headers["authorization"]
	switch {
	case isDirectory && len(given) > 0:
		return given[0], errors.New("the origin is a directory, to which there is no connection")
	case a.TLS == TLSOff && a.hasFiles():
		return "TLS", fmt.Errorf("%s%s is of no use without TLS", begin, given[1])
	case a.ServerName != "" && !a.hasFiles() && (a.TLS == "" || a.TLS == TLSOff):
		return "TLS_SERVER_NAME", fmt.Errorf("it is of no use without TLS, and %sTLS is off", begin)
	case hasAuthorization && a.TokenFile != "":
		return "HEADERS", fmt.Errorf("the token of %sTOKEN_FILE makes the header authorization", begin)
	}
	return a.fileConflict(begin)
}

func (a *Access) fileConflict(begin string) (name string, err error) {
	isID := strings.HasPrefix(a.ServerName, "spiffe:")
	isInsecure := a.TLS == TLSInsecure
	switch {
	case (a.Cert == "") != (a.Key == ""):
		if a.Key == "" {
			return "TLS_CERT", fmt.Errorf("its key is missing: %sTLS_KEY is not set", begin)
		}
		return "TLS_KEY", fmt.Errorf("its certificate is missing: %sTLS_CERT is not set", begin)
	case isInsecure && a.CA != "":
		return "TLS_CA", fmt.Errorf("nothing is verified by it, since %sTLS is insecure", begin)
	case isInsecure && a.TokenFile != "":
		return "TOKEN_FILE", fmt.Errorf("the token would be given to anybody, since %sTLS is insecure", begin)
	case isID && a.CA == "":
		return "TLS_SERVER_NAME", fmt.Errorf("the system's CAs vouch for no SPIFFE ID, and %sTLS_CA is not set", begin)
	}
	return "", nil
}

// allowedPath is what the rows of files say.
const allowedPath = "a path"

// parseFile reads the path of a file.
func parseFile(raw string) (string, error) {
	if strings.ContainsFunc(raw, unicode.IsControl) || !utf8.ValidString(raw) {
		return "", errors.New("it holds a control character")
	}
	return filepath.Clean(raw), nil
}

// validDNSName is what a certificate may be for.
var validDNSName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*$`)

// parseServerName reads TENDER_ORIGIN_TLS_SERVER_NAME.
func parseServerName(raw string) (string, error) {
	if strings.HasPrefix(raw, "spiffe:") {
		_, err := tlsfiles.ParseID(raw)
		return raw, err
	}
	if _, err := netip.ParseAddr(raw); err == nil || validDNSName.MatchString(raw) && len(raw) <= 253 {
		return raw, nil
	}
	return "", fmt.Errorf("%s is neither a name nor an IP address", humanize.Quote(raw))
}

// Headers are those of gRPC metadata, by name in lower case. As text they show no value,
// which may be a secret.
type Headers map[string]string

// MarshalText returns the names.
func (h Headers) MarshalText() ([]byte, error) {
	var items []string
	for _, name := range slices.Sorted(maps.Keys(h)) {
		items = append(items, name+"=…")
	}
	return []byte(strings.Join(items, ";")), nil
}

// parseHeaders reads TENDER_ORIGIN_HEADERS.
func parseHeaders(raw string) (Headers, error) {
	h := Headers{}
	for item := range strings.SplitSeq(raw, ";") {
		name, value, ok := strings.Cut(strings.TrimSpace(item), "=")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		if _, again := h[name]; again {
			return nil, fmt.Errorf("the header %s comes twice", humanize.Quote(name))
		}
		if !ok {
			return nil, errors.New("an item is not name=value") // it may be the rest of a secret
		}
		if err := checkHeader(name, value); err != nil {
			return nil, err
		}
		h[name] = value
	}
	return h, nil
}

// validHeaderName is what gRPC takes for the name of a header.
var validHeaderName = regexp.MustCompile(`^[a-z0-9_.-]+$`)

// reservedHeaders are those that gRPC and HTTP/2 write themselves, or forbid.
var reservedHeaders = []string{
	"connection", "content-length", "content-type", "host", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade", "user-agent",
}

// checkHeader reports what is wrong with a header, and does not say its value.
func checkHeader(name, value string) error {
	switch {
	case !validHeaderName.MatchString(name):
		return fmt.Errorf("%s is not the name of a header", humanize.Quote(name))
	case slices.Contains(reservedHeaders, name) || strings.HasPrefix(name, "grpc-"):
		return fmt.Errorf("the header %s is gRPC's own", humanize.Quote(name))
	case strings.HasSuffix(name, "-bin"):
		return fmt.Errorf("the header %s is for bytes, not text", humanize.Quote(name))
	case value == "":
		return fmt.Errorf("the header %s has no value", humanize.Quote(name))
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Errorf("the value of the header %s is not printable ASCII", humanize.Quote(name))
	}
	return nil
}
