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

// checkAccess clears the Access settings that conflict with others, and returns their errors by variable.
func (c *Config) checkAccess(invalid map[string]error) map[string]error {
	found, fields := map[string]error{}, c.fields()
	check := func(origin string, targets []string, a *Access) {
		begin := accessPrefix(origin)
		isWrong := func(name string) bool { return invalid[begin+name] != nil }
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
	}
	check(PrimaryOrigin, c.Origin, &c.OriginAccess)
	for i := range c.Origins {
		check(c.Origins[i].Name, c.Origins[i].Targets, &c.Origins[i].Access)
	}
	return found
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

// conflict returns the suffix of a variable whose value conflicts with the other settings or with the kind of origin,
// and the reason. begin is the prefix of the variables, and given are the suffixes of those with a value.
func (a *Access) conflict(begin string, given []string, isDirectory bool) (name string, err error) {
	_, hasAuthorization := a.Headers["authorization"]
	switch {
	case isDirectory && len(given) > 0:
		return given[0], errors.New("the origin is a directory, to which the relay opens no connection")
	case a.TLS == TLSOff && a.hasFiles():
		return "TLS", fmt.Errorf("%s%s requires TLS", begin, given[1])
	case a.TLSServerName != "" && !a.hasFiles() && (a.TLS == "" || a.TLS == TLSOff):
		return "TLS_SERVER_NAME", fmt.Errorf("requires TLS, but %sTLS is off", begin)
	case hasAuthorization && a.TokenFile != "":
		return "HEADERS", fmt.Errorf("the header authorization conflicts with the token of %sTOKEN_FILE", begin)
	}
	return a.fileConflict(begin)
}

// fileConflict is conflict for settings of files.
func (a *Access) fileConflict(begin string) (name string, err error) {
	isInsecure := a.TLS == TLSInsecure
	switch {
	case (a.TLSCert == "") != (a.TLSKey == ""):
		if a.TLSKey == "" {
			return "TLS_CERT", fmt.Errorf("requires a key, but %sTLS_KEY is not set", begin)
		}
		return "TLS_KEY", fmt.Errorf("requires a certificate, but %sTLS_CERT is not set", begin)
	case isInsecure && a.TLSCA != "":
		return "TLS_CA", fmt.Errorf("has no effect, because %sTLS is insecure", begin)
	case isInsecure && a.TokenFile != "":
		return "TOKEN_FILE", fmt.Errorf("the token would be sent to an unverified server, because %sTLS is insecure", begin)
	case a.TLSServerName.isID() && a.TLSCA == "":
		return "TLS_SERVER_NAME", fmt.Errorf("a SPIFFE ID requires %sTLS_CA, because the CAs of the system issue none", begin)
	}
	return "", nil
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
	for item := range strings.SplitSeq(raw, ";") {
		name, value, ok := strings.Cut(strings.TrimSpace(item), "=")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		if _, duplicate := (*h)[name]; duplicate {
			return fmt.Errorf("duplicate header %s", humanize.Quote(name))
		}
		if !ok {
			return errors.New("an item does not have the form name=value") // not quoted: it may be a part of a secret
		}
		if err := checkHeader(name, value); err != nil {
			return err
		}
		(*h)[name] = value
	}
	return nil
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
