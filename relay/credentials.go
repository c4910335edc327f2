package relay

import (
	"errors"
	"log/slog"

	"google.golang.org/grpc/credentials"

	"github.com/xdstender/tender/relay/tlsfiles"
)

// relayCredentials are what the relay proves itself by, and whom it trusts.
type relayCredentials struct {
	files   *tlsfiles.Watch
	origins []originCredentials // in the order of origins
}

// originCredentials are those for an origin.
type originCredentials struct {
	transport credentials.TransportCredentials // nil for plaintext
	calls     credentials.PerRPCCredentials    // nil if there is nothing to tell
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
	for _, warning := range c.files.Warnings() {
		log.Warn("file of credentials is not as it should be", slog.String("detail", warning))
	}
	return c, errors.Join(errs...)
}

// openAccess reads the files for an origin, whose variables begin alike.
func openAccess(files *tlsfiles.Watch, begin string, a *Access) (creds originCredentials, err error) {
	file := func(name, path string) tlsfiles.File {
		return tlsfiles.File{Variable: begin + name, Path: path}
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
	return opened.files.Warnings(), err
}
