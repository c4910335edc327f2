package config

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/xdstender/tender/relay/access"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// Credentials are the TLS certificates, tokens, CAs and rules that a relay uses.
type Credentials struct {
	Files   *tlsfiles.Watch
	Origins []OriginCredentials // in the order of origins
	Clients *tlsfiles.Server    // nil if clients are spoken to in plaintext

	// Peers returns the configuration of a handshake with the relay of the same tier at a host; nil without peers.
	Peers func(host string) *tls.Config

	Authorizer *access.Authorizer
	Warnings   []string // of what is wrong with files that can be used nonetheless; owned by Files once it runs
}

// OriginCredentials are those for an origin.
type OriginCredentials struct {
	Transport credentials.TransportCredentials // nil for plaintext
	Calls     credentials.PerRPCCredentials    // nil if there is nothing to tell
	Authority string                           // empty for the address
}

// OpenCredentials reads the files that the configuration names. The error joins one line for each
// file that cannot be used. Problems of other files are logged.
func OpenCredentials(cfg *Config, log *slog.Logger) (*Credentials, error) {
	c := &Credentials{Files: tlsfiles.New(log)}
	var errs []error
	for _, o := range AllOrigins(cfg) {
		creds, err := openAccess(c.Files, prefix+accessPrefix(o.Name), &o.Access)
		c.Origins = append(c.Origins, creds)
		errs = append(errs, err)
	}
	if cfg.TLSCert != "" {
		var err error
		c.Clients, err = c.Files.Server(tlsfiles.ServerConfig{
			Cert:       tlsfiles.File{Variable: "TENDER_TLS_CERT", Path: cfg.TLSCert},
			Key:        tlsfiles.File{Variable: "TENDER_TLS_KEY", Path: cfg.TLSKey},
			ClientCA:   tlsfiles.File{Variable: "TENDER_TLS_CLIENT_CA", Path: cfg.TLSClientCA},
			MinVersion: tlsVersions[cfg.TLSMin],

			TrustDomains:     trustDomainFiles(cfg.TLSTrustDomains),
			ClientCAsChanged: func() { c.warn(cfg, log) },
		})
		errs = append(errs, err)
	}
	errs = append(errs, c.openPeers(cfg))
	var err error
	c.Authorizer, err = access.Open(cfg.Authz, cfg.Secrets, len(cfg.TLSTrustDomains) > 0, c.Files, func() { c.warn(cfg, log) })
	errs = append(errs, err)
	c.warn(cfg, log)
	return c, errors.Join(errs...)
}

// warn logs the problems of files that can be used, unless it logged them before.
func (c *Credentials) warn(cfg *Config, log *slog.Logger) {
	warnings := slices.Concat(c.Files.Warnings(), c.Authorizer.Warnings(cfg.NodeGroupBy, len(cfg.TLSListen) > 0, NonLoopback(cfg.AdminListen)), c.trustWarnings(cfg))
	for _, warning := range warnings {
		if !slices.Contains(c.Warnings, warning) {
			log.Warn("credential file has a problem", slog.String("detail", warning))
		}
	}
	c.Warnings = warnings
}

// tlsVersions are the values of [Config.TLSMin].
var tlsVersions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// openAccess reads the files for an origin, whose variables begin alike.
func openAccess(files *tlsfiles.Watch, begin string, a *Access) (creds OriginCredentials, err error) {
	file := func(name, path string) tlsfiles.File {
		return tlsfiles.File{Variable: begin + name, Path: path}
	}
	if !strings.HasPrefix(a.ServerName, "spiffe:") {
		creds.Authority = a.ServerName
	}
	var errs [2]error
	if a.TLS == TLSOn || a.TLS == TLSInsecure {
		creds.Transport, errs[0] = files.Client(tlsfiles.ClientConfig{
			CA:         file("TLS_CA", a.CA),
			Cert:       file("TLS_CERT", a.Cert),
			Key:        file("TLS_KEY", a.Key),
			ServerName: a.ServerName,
			Insecure:   a.TLS == TLSInsecure,
		})
	}
	creds.Calls, errs[1] = files.Calls(tlsfiles.CallConfig{Token: file("TOKEN_FILE", a.TokenFile), Headers: a.Headers})
	return creds, errors.Join(errs[:]...)
}

// CheckFiles reports why a relay could not use files of credentials that the configuration
// names, and warns, a line for each, of what is wrong with those that it could use.
func (c *Config) CheckFiles() (warnings []string, err error) {
	opened, err := OpenCredentials(c, slog.New(slog.DiscardHandler))
	return opened.Warnings, err
}

// CheckSnapshotDir reports why a relay could not use the directory for snapshots, if one
// is configured.
func (c *Config) CheckSnapshotDir() error {
	if c.SnapshotDir == "" {
		return nil
	}
	if err := snapshot.Check(c.SnapshotDir); err != nil {
		return c.RefuseSnapshotDir(err)
	}
	return nil
}

// RefuseSnapshotDir returns the error for a directory that cannot be used.
func (c *Config) RefuseSnapshotDir(cause error) error {
	return variable("SNAPSHOT_DIR").invalid(c.SnapshotDir, cause)
}
