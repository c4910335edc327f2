package relay

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// relayCredentials are what the relay proves itself by, and whom it trusts.
type relayCredentials struct {
	files   *tlsfiles.Watch
	origins []originCredentials // in the order of origins
	clients *tlsfiles.Server    // nil if clients are spoken to in plaintext

	authorizer *authorizer
	warnings   []string // of what is wrong with files that can be used nonetheless; owned by files once it runs
}

// originCredentials are those for an origin.
type originCredentials struct {
	transport credentials.TransportCredentials // nil for plaintext
	calls     credentials.PerRPCCredentials    // nil if there is nothing to tell
	authority string                           // empty for the address
}

// openCredentials reads the files that the configuration names. The error joins one line for each
// that cannot be used. Of others that are wrong somehow, the log is told.
func openCredentials(cfg *Config, log *slog.Logger) (*relayCredentials, error) {
	c := &relayCredentials{files: tlsfiles.New(log)}
	var errs []error
	open := func(origin string, a *Access) {
		creds, err := openAccess(c.files, prefix+accessPrefix(origin), a)
		c.origins = append(c.origins, creds)
		errs = append(errs, err)
	}
	open(PrimaryOrigin, &cfg.OriginAccess)
	for i := range cfg.Origins {
		open(cfg.Origins[i].Name, &cfg.Origins[i].Access)
	}
	if cfg.TLSCert != "" {
		var err error
		c.clients, err = c.files.Server(tlsfiles.ServerConfig{
			Cert:       tlsfiles.File{Variable: "TENDER_TLS_CERT", Path: cfg.TLSCert},
			Key:        tlsfiles.File{Variable: "TENDER_TLS_KEY", Path: cfg.TLSKey},
			ClientCA:   tlsfiles.File{Variable: "TENDER_TLS_CLIENT_CA", Path: cfg.TLSClientCA},
			MinVersion: tlsVersions[cfg.TLSMin],

			TrustDomains:     trustDomainFiles(cfg.TLSTrustDomains),
			ClientCAsChanged: func() { c.warn(cfg, log) },
		})
		errs = append(errs, err)
	}
	var err error
	c.authorizer, err = openAuthorizer(cfg, c.files, func() { c.warn(cfg, log) })
	errs = append(errs, err)
	c.warn(cfg, log)
	return c, errors.Join(errs...)
}

// warn logs what is wrong with files that can be used nonetheless, unless it was so before.
func (c *relayCredentials) warn(cfg *Config, log *slog.Logger) {
	warnings := slices.Concat(c.files.Warnings(), c.authorizer.warnings(cfg), c.trustWarnings(cfg))
	for _, warning := range warnings {
		if !slices.Contains(c.warnings, warning) {
			log.Warn("file of credentials is not as it should be", slog.String("detail", warning))
		}
	}
	c.warnings = warnings
}

// tlsVersions are the values of [Config.TLSMin].
var tlsVersions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// openAccess reads the files for an origin, whose variables begin alike.
func openAccess(files *tlsfiles.Watch, begin string, a *Access) (creds originCredentials, err error) {
	file := func(name, path string) tlsfiles.File {
		return tlsfiles.File{Variable: begin + name, Path: path}
	}
	if !strings.HasPrefix(a.ServerName, "spiffe:") {
		creds.authority = a.ServerName
	}
	var errs [2]error
	if a.TLS == TLSOn || a.TLS == TLSInsecure {
		creds.transport, errs[0] = files.Client(tlsfiles.ClientConfig{
			CA:         file("TLS_CA", a.CA),
			Cert:       file("TLS_CERT", a.Cert),
			Key:        file("TLS_KEY", a.Key),
			ServerName: a.ServerName,
			Insecure:   a.TLS == TLSInsecure,
		})
	}
	creds.calls, errs[1] = files.Calls(tlsfiles.CallConfig{Token: file("TOKEN_FILE", a.TokenFile), Headers: a.Headers})
	return creds, errors.Join(errs[:]...)
}

// CheckFiles reports why a relay could not use files of credentials that the configuration
// names, and warns, a line for each, of what is wrong with those that it could use.
func (c *Config) CheckFiles() (warnings []string, err error) {
	opened, err := openCredentials(c, slog.New(slog.DiscardHandler))
	return opened.warnings, err
}

// warnPlaintext says, in one line, what others than this host could read on the way.
func (r *Relay) warnPlaintext() {
	var listen, origins []string
	plain := r.cfg.Listen
	if r.credentials.clients == nil {
		plain = slices.Concat(plain, r.cfg.RESTListen)
	} else if len(r.cfg.TLSListen) == 0 {
		plain = nil
	}
	for _, address := range plain {
		if !loopback(address) {
			listen = append(listen, address)
		}
	}
	look := func(targets []string, a *Access) {
		for _, target := range targets {
			address := strings.TrimPrefix(target, "dns:///")
			if a.TLS == TLSOff && !strings.HasPrefix(target, "file:") && !loopback(address) {
				origins = append(origins, target)
			}
		}
	}
	look(r.cfg.Origin, &r.cfg.OriginAccess)
	for i := range r.cfg.Origins {
		look(r.cfg.Origins[i].Targets, &r.cfg.Origins[i].Access)
	}
	if len(listen)+len(origins) > 0 {
		r.log.Warn("no TLS: who is on the way can read and change what is said",
			slog.String("listen", strings.Join(listen, ",")), slog.String("origin", strings.Join(origins, ",")))
	}
}

// status returns how the files stand.
func (c *relayCredentials) status() []admin.Files {
	all := []admin.Files{}
	for _, s := range c.files.Status() {
		f := admin.Files{LoadedAt: s.LoadedAt, NotAfter: s.NotAfter, Refused: s.Refused}
		for _, file := range s.Files {
			f.Files = append(f.Files, admin.File{Variable: file.Variable, Path: file.Path})
		}
		if s.Err != nil {
			f.Error = s.Err.Error()
		}
		all = append(all, f)
	}
	return all
}
