package config

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"slices"

	"google.golang.org/grpc/credentials"

	"github.com/xdstender/tender/relay/access"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// Credentials are the TLS certificates, tokens, CAs and rules that a relay uses.
type Credentials struct {
	Files   *tlsfiles.Watch
	Origins []OriginCredentials // in the order of origins
	Clients *tlsfiles.Server    // nil if clients connect in plaintext

	// Peers returns the TLS configuration for a connection to a peer at a host. It is nil if TENDER_PEERS is off.
	Peers func(host string) *tls.Config

	Authorizer *access.Authorizer
	Warnings   []string // about usable files with a problem; owned by Files while it runs
}

// OriginCredentials are the credentials for connections to an origin.
type OriginCredentials struct {
	Transport credentials.TransportCredentials // nil for plaintext
	Calls     credentials.PerRPCCredentials    // nil without a token and headers
	Authority string                           // the :authority of requests; empty for the address of the target
}

// OpenCredentials reads the credential files of the configuration. The error joins one error per unusable file.
// Problems of usable files are logged.
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
		server := serverConfig(cfg)
		server.ClientCAsChanged = func() { c.warn(cfg, log) }
		c.Clients, err = c.Files.Server(server)
		errs = append(errs, err)
	}
	errs = append(errs, c.openPeers(cfg))
	var err error
	c.Authorizer, err = access.Open(string(cfg.Authz), cfg.Secrets, len(cfg.TLSTrustDomains) > 0, c.Files,
		func() { c.warn(cfg, log) })
	errs = append(errs, err)
	c.warn(cfg, log)
	return c, errors.Join(errs...)
}

// serverConfig returns the TLS settings for clients.
func serverConfig(cfg *Config) tlsfiles.ServerConfig {
	return tlsfiles.ServerConfig{
		Cert:         tlsfiles.File{Variable: "TENDER_TLS_CERT", Path: string(cfg.TLSCert)},
		Key:          tlsfiles.File{Variable: "TENDER_TLS_KEY", Path: string(cfg.TLSKey)},
		ClientCA:     tlsfiles.File{Variable: "TENDER_TLS_CLIENT_CA", Path: string(cfg.TLSClientCA)},
		TrustDomains: trustDomainFiles(cfg.TLSTrustDomains),
	}
}

// warn logs the problems of usable files that it has not logged before.
func (c *Credentials) warn(cfg *Config, log *slog.Logger) {
	warnings := slices.Concat(c.Files.Warnings(),
		c.Authorizer.Warnings(cfg.NodeGroupBy, len(cfg.TLSListen) > 0, NonLoopback(cfg.AdminListen)), c.trustWarnings(cfg))
	for _, warning := range warnings {
		if !slices.Contains(c.Warnings, warning) {
			log.Warn("credential file has a problem", slog.String("detail", warning))
		}
	}
	c.Warnings = warnings
}

// openAccess reads the files for an origin. begin is the prefix of its variables.
func openAccess(files *tlsfiles.Watch, begin string, a *Access) (creds OriginCredentials, err error) {
	client, calls, authority := accessConfig(begin, a)
	creds.Authority = authority
	var errs [2]error
	if a.TLS == TLSOn || a.TLS == TLSInsecure {
		creds.Transport, errs[0] = files.Client(client)
	}
	creds.Calls, errs[1] = files.Calls(calls)
	return creds, errors.Join(errs[:]...)
}

// accessConfig returns the settings of connections to an origin: for TLS, for calls, and the authority of requests.
func accessConfig(begin string, a *Access) (tlsfiles.ClientConfig, tlsfiles.CallConfig, string) {
	file := func(name string, path Path) tlsfiles.File {
		return tlsfiles.File{Variable: begin + name, Path: string(path)}
	}
	client := tlsfiles.ClientConfig{
		CA:         file("TLS_CA", a.TLSCA),
		Cert:       file("TLS_CERT", a.TLSCert),
		Key:        file("TLS_KEY", a.TLSKey),
		ServerName: string(a.TLSServerName),
		Insecure:   a.TLS == TLSInsecure,
	}
	calls := tlsfiles.CallConfig{Token: file("TOKEN_FILE", a.TokenFile), Headers: a.Headers}
	if a.TLSServerName.isID() {
		return client, calls, ""
	}
	return client, calls, string(a.TLSServerName)
}

// CheckFiles returns an error if a relay could not use the credential files of the configuration. The warnings are
// about usable files with a problem.
func (c *Config) CheckFiles() (warnings []string, err error) {
	opened, err := OpenCredentials(c, slog.New(slog.DiscardHandler))
	return opened.Warnings, err
}

// CheckSnapshotDir returns an error if TENDER_SNAPSHOT_DIR is set and a relay could not use the directory.
func (c *Config) CheckSnapshotDir() error {
	if c.SnapshotDir == "" {
		return nil
	}
	if err := snapshot.Check(string(c.SnapshotDir)); err != nil {
		return c.RefuseSnapshotDir(err)
	}
	return nil
}

// RefuseSnapshotDir returns the error for an unusable TENDER_SNAPSHOT_DIR.
func (c *Config) RefuseSnapshotDir(cause error) error {
	return find(variables, "SNAPSHOT_DIR").invalid(string(c.SnapshotDir), cause)
}
