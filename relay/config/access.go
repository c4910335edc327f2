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
	TLSOn       = "on"       // TLS; the certificate of the origin is verified
	TLSInsecure = "insecure" // TLS; the certificate of the origin is not verified
)

// An Access has the TLS settings and credentials for connections to an origin. A path is empty if there is no file.
type Access struct {
	TLS     string `env:"TLS" oneof:"off,on,insecure"` // TLSOff, TLSOn or TLSInsecure
	TLSCA   Path   `env:"TLS_CA"`
	TLSCert Path   `env:"TLS_CERT"`
	TLSKey  Path   `env:"TLS_KEY"`
	// a DNS name, an IP address or a SPIFFE ID; empty for the host of the target
	TLSServerName ServerName `env:"TLS_SERVER_NAME"`
	TokenFile     Path       `env:"TOKEN_FILE"`
	Headers       Headers    `env:"HEADERS" secret:"true"`
}

// accessNames are the suffixes of the variables of an Access, in the order of its fields.
var accessNames = func() (names []string) {
	for field := range reflect.TypeFor[Access]().Fields() {
		names = append(names, field.Tag.Get("env"))
	}
	return names
}()

// accessVariable matches the variables of the origins in TENDER_ORIGINS, and captures the name of the origin. Because
// no suffix is another suffix after "_", no two combinations of origin and suffix have the same name.
var accessVariable = regexp.MustCompile(
	`^ORIGIN_([A-Z0-9_]+)_(?:TLS(?:_CA|_CERT|_KEY|_SERVER_NAME)?|TOKEN_FILE|HEADERS)$`)

// accessPrefix returns the prefix of the variables of an origin's Access, without TENDER_.
func accessPrefix(origin string) string {
	if origin == PrimaryOrigin {
		return "ORIGIN_"
	}
	return "ORIGIN_" + strings.ToUpper(strings.ReplaceAll(origin, "-", "_")) + "_"
}

// originNameOf returns the name of an origin, given the form in which variables contain it.
func originNameOf(part string) string {
	return strings.ToLower(strings.ReplaceAll(part, "_", "-"))
}

// setAccess sets the default of TLS of all origins.
func (c *Config) setAccess() {
	all := []*Access{&c.OriginAccess}
	for i := range c.Origins {
		all = append(all, &c.Origins[i].Access)
	}
	for _, a := range all {
		switch {
		case a.TLS == "" && a.hasFiles():
			a.TLS = TLSOn
		case a.TLS == "":
			a.TLS = TLSOff
		}
	}
}

// hasFiles reports whether any file is configured. All of them require TLS.
func (a *Access) hasFiles() bool {
	return a.TLSCA != "" || a.TLSCert != "" || a.TLSKey != "" || a.TokenFile != ""
}

// A Path is the path of a file or a directory.
type Path string

// EnvDecode reads a path.
func (p *Path) EnvDecode(raw string) error {
	if strings.ContainsFunc(raw, unicode.IsControl) || !utf8.ValidString(raw) {
		return errors.New("contains a control character")
	}
	*p = Path(filepath.Clean(raw))
	return nil
}

// validDNSName matches a DNS name that a certificate may have.
var validDNSName = regexp.MustCompile(
	`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*$`)

// A ServerName is the name that the certificate of a server must have: a DNS name, an IP address or a SPIFFE ID.
type ServerName string

// EnvDecode reads a name.
func (n *ServerName) EnvDecode(raw string) error {
	if *n = ServerName(raw); n.isID() {
		_, err := tlsfiles.ParseID(raw)
		return err
	}
	if _, err := netip.ParseAddr(raw); err == nil || validDNSName.MatchString(raw) && len(raw) <= 253 {
		return nil
	}
	return fmt.Errorf("%s is neither a DNS name nor an IP address", humanize.Quote(raw))
}

// isID reports whether the name is a SPIFFE ID.
func (n ServerName) isID() bool { return strings.HasPrefix(string(n), "spiffe:") }

// Headers are gRPC metadata, by name in lower case. Their text form masks the values, which may be secrets.
type Headers map[string]string

// MarshalText returns the names, with masked values.
func (h Headers) MarshalText() ([]byte, error) {
	var items []string
	for _, name := range slices.Sorted(maps.Keys(h)) {
		items = append(items, name+"=…")
	}
	return []byte(strings.Join(items, ";")), nil
}

// EnvDecode reads name=value, separated by semicolons.
func (h *Headers) EnvDecode(raw string) error {
	*h = Headers{}
	var errs []error
	for item := range strings.SplitSeq(raw, ";") {
		name, value, ok := strings.Cut(strings.TrimSpace(item), "=")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		_, duplicate := (*h)[name]
		switch {
		case !ok:
			errs = append(errs, errors.New("an item does not have the form name=value")) // not quoted: it may be a part of a secret
		case duplicate:
			errs = append(errs, fmt.Errorf("duplicate header %s", humanize.Quote(name)))
		default:
			errs = append(errs, checkHeader(name, value))
			(*h)[name] = value
		}
	}
	return join(errs...)
}

// validHeaderName matches the name of a header that gRPC accepts.
var validHeaderName = regexp.MustCompile(`^[a-z0-9_.-]+$`)

// reservedHeaders are headers that gRPC and HTTP/2 set themselves, or forbid.
var reservedHeaders = []string{
	"connection", "content-length", "content-type", "host", "keep-alive", "proxy-connection", "te", "transfer-encoding",
	"upgrade", "user-agent",
}

// checkHeader returns an error for an invalid header. The error does not contain the value, which may be a secret.
func checkHeader(name, value string) error {
	switch {
	case !validHeaderName.MatchString(name):
		return fmt.Errorf("%s is not a valid header name", humanize.Quote(name))
	case slices.Contains(reservedHeaders, name) || strings.HasPrefix(name, "grpc-"):
		return fmt.Errorf("the header %s is reserved for gRPC and HTTP/2", humanize.Quote(name))
	case strings.HasSuffix(name, "-bin"):
		return fmt.Errorf("the header %s is binary; only text headers are supported", humanize.Quote(name))
	case value == "":
		return fmt.Errorf("the header %s has no value", humanize.Quote(name))
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Errorf("the value of the header %s is not printable ASCII", humanize.Quote(name))
	}
	return nil
}
