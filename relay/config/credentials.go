package config

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"google.golang.org/grpc/credentials"

	"github.com/xdstender/tender/relay/access"
	"github.com/xdstender/tender/relay/judge"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/relay/tlsfiles"
	"github.com/xdstender/tender/upstream/files"
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

// CredentialSettings are what a Config sets in Credentials.
type CredentialSettings struct {
	Origins        []OriginSettings      // in the order of AllOrigins
	Clients        tlsfiles.ServerConfig // clients connect in plaintext if it has no certificate
	Peers          tlsfiles.ClientConfig
	HasPeers       bool
	Rules, Secrets string // TENDER_AUTHZ and TENDER_SECRETS
}

// OriginSettings are the settings of connections to an origin.
type OriginSettings struct {
	TLS       bool
	Client    tlsfiles.ClientConfig
	Calls     tlsfiles.CallConfig
	Authority string // of requests
}

// CredentialSettingsOf returns the settings of the credentials of a Config.
func CredentialSettingsOf(cfg *Config) (s CredentialSettings) {
	for _, o := range AllOrigins(cfg) {
		s.Origins = append(s.Origins, originSettings(prefix+accessPrefix(o.Name), &o.Access))
	}
	s.Clients = tlsfiles.ServerConfig{
		Cert:         tlsfiles.File{Variable: "TENDER_TLS_CERT", Path: string(cfg.TLSCert)},
		Key:          tlsfiles.File{Variable: "TENDER_TLS_KEY", Path: string(cfg.TLSKey)},
		ClientCA:     tlsfiles.File{Variable: "TENDER_TLS_CLIENT_CA", Path: string(cfg.TLSClientCA)},
		TrustDomains: trustDomainFiles(cfg.TLSTrustDomains),
	}
	s.Peers, s.HasPeers = peersConfig(cfg), len(cfg.Peers) > 0
	s.Rules, s.Secrets = string(cfg.Authz), cfg.Secrets
	return s
}

// OpenCredentials reads the credential files of the configuration. The error joins one error per unusable file.
// Problems of usable files are logged.
func OpenCredentials(cfg *Config, log *slog.Logger) (*Credentials, error) {
	s := CredentialSettingsOf(cfg)
	return s.open(cfg, log)
}

// open is OpenCredentials with settings of cfg.
func (s *CredentialSettings) open(cfg *Config, log *slog.Logger) (*Credentials, error) {
	c := &Credentials{Files: tlsfiles.New(log)}
	var errs []error
	for _, o := range s.Origins {
		creds, err := c.openOrigin(o)
		c.Origins = append(c.Origins, creds)
		errs = append(errs, err)
	}
	var err error
	if s.Clients.Cert.Path+s.Clients.Key.Path+s.Clients.ClientCA.Path != "" || len(s.Clients.TrustDomains) > 0 {
		s.Clients.ClientCAsChanged = func() { c.warn(cfg, log) }
		c.Clients, err = c.Files.Server(s.Clients)
		errs = append(errs, err)
	}
	if s.HasPeers {
		c.Peers, err = c.Files.ClientTLS(s.Peers)
		errs = append(errs, err)
	}
	c.Authorizer, err = access.Open(s.Rules, s.Secrets, len(s.Clients.TrustDomains) > 0, c.Files,
		func() { c.warn(cfg, log) })
	errs = append(errs, err)
	c.warn(cfg, log)
	return c, errors.Join(errs...)
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

// openOrigin reads the files for an origin.
func (c *Credentials) openOrigin(s OriginSettings) (creds OriginCredentials, err error) {
	creds.Authority = s.Authority
	var errs [2]error
	if s.TLS {
		creds.Transport, errs[0] = c.Files.Client(s.Client)
	}
	creds.Calls, errs[1] = c.Files.Calls(s.Calls)
	return creds, errors.Join(errs[:]...)
}

// originSettings returns the settings of connections to an origin. begin is the prefix of its variables.
func originSettings(begin string, a *Access) OriginSettings {
	file := func(name string, path Path) tlsfiles.File {
		return tlsfiles.File{Variable: begin + name, Path: string(path)}
	}
	s := OriginSettings{
		TLS: a.TLS == TLSOn || a.TLS == TLSInsecure,
		Client: tlsfiles.ClientConfig{
			CA:         file("TLS_CA", a.TLSCA),
			Cert:       file("TLS_CERT", a.TLSCert),
			Key:        file("TLS_KEY", a.TLSKey),
			ServerName: string(a.TLSServerName),
			Insecure:   a.TLS == TLSInsecure,
		},
		Calls: tlsfiles.CallConfig{Token: file("TOKEN_FILE", a.TokenFile), Headers: a.Headers},
	}
	if !a.TLSServerName.isID() {
		s.Authority = string(a.TLSServerName)
	}
	return s
}

// CheckFiles returns an error that joins one [Error] per credential file, and per directory of an origin, that a relay
// could not use. It also reads the files of variables that were rejected for lack of another one. The warnings are about
// usable files with a problem.
func (c *Config) CheckFiles() (warnings []string, err error) {
	var errs []error
	for _, o := range AllOrigins(c) {
		if dir, ok := o.Targets.Directory(); ok {
			if err := files.Check(dir); err != nil {
				errs = append(errs, RefuseDirectory(&o, err))
			}
		}
	}
	of := c
	if c.incomplete != nil {
		of = c.incomplete
	}
	s := CredentialSettingsOf(of)
	if !c.fromEnv["PEERS"] { // they lack it, unless it is off explicitly
		s.HasPeers = s.Peers.CA.Path+s.Peers.Cert.Path+s.Peers.Key.Path != ""
	}
	opened, err := s.open(of, slog.New(slog.DiscardHandler))
	return opened.Warnings, errors.Join(append(errs, fileErrors(err))...)
}

// RefuseDirectory returns the error for an origin whose directory cannot be used.
func RefuseDirectory(o *NamedOrigin, cause error) *Error {
	variable := "TENDER_ORIGINS"
	if o.Name == PrimaryOrigin {
		variable = "TENDER_ORIGIN"
	}
	return &Error{
		Variables: []string{variable}, Message: cause.Error(),
		text: fmt.Sprintf("%s=%q: %v", variable, o.Targets[0], cause), cause: cause,
	}
}

// CheckSnapshotDir returns an error if TENDER_SNAPSHOT_DIR is set and a relay could not use the directory.
func (c *Config) CheckSnapshotDir() error {
	if c.SnapshotDir == "" {
		return nil
	}
	if err := snapshot.Check(string(c.SnapshotDir)); err != nil {
		return RefuseSnapshotDir(string(c.SnapshotDir), err)
	}
	return nil
}

// OpenEnvoy returns the program of TENDER_CHECK_ENVOY, or nil if that is not set. It returns an error if a relay could not use
// the program.
func (c *Config) OpenEnvoy(log *slog.Logger) (*judge.Program, error) {
	if c.CheckEnvoy == "" {
		return nil, nil
	}
	p, err := judge.Open(context.Background(), string(c.CheckEnvoy), log)
	if err != nil {
		return nil, find(variables, "CHECK_ENVOY").invalid(string(c.CheckEnvoy), refusal{cause: err})
	}
	return p, nil
}

// RefuseSnapshotDir returns the error for an unusable TENDER_SNAPSHOT_DIR.
func RefuseSnapshotDir(dir string, cause error) *Error {
	return find(variables, "SNAPSHOT_DIR").invalid(dir, refusal{cause: cause})
}
