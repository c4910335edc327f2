package relay

import (
	"log/slog"
	"slices"
	"strings"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/config"
)

// Types of the configuration. Package config documents their fields.
type (
	// A Config is the configuration of a relay. [LoadConfig] sets every field; LoadConfig(nil) returns the defaults.
	Config = config.Config

	// Access has the TLS settings and credentials for an origin.
	Access = config.Access

	// A ConfigError is an error of the configuration.
	ConfigError = config.Error

	// A CheckURL is the URL of an external check of rollouts.
	CheckURL = config.CheckURL

	// Headers are gRPC metadata, by name in lower case.
	Headers = config.Headers

	// A Locality is the locality in the Node of the relay.
	Locality = config.Locality

	// Metadata is the metadata in the Node of the relay, a JSON object.
	Metadata = config.Metadata

	// A NamedOrigin is an entry of TENDER_ORIGINS.
	NamedOrigin = config.NamedOrigin

	// A Path is the path of a file or a directory.
	Path = config.Path

	// A Route is an entry of TENDER_ROUTES.
	Route = config.Route

	// A ServerName is the name that the certificate of a server must have.
	ServerName = config.ServerName

	// A Setting is a variable with its value and source.
	Setting = config.Setting

	// A Size is a number of bytes.
	Size = config.Size

	// A Text is printable, such as a node ID.
	Text = config.Text
)

// Values of fields of [Config] and [Setting].
const (
	PrimaryOrigin = config.PrimaryOrigin // the [Route.Origin] of TENDER_ORIGIN
	AnyAuthority  = config.AnyAuthority  // the [Route.Authority] of authorities without a route

	ResyncTrustVersions = config.ResyncTrustVersions
	ResyncFull          = config.ResyncFull

	ValidateWarn = config.ValidateWarn
	ValidateHold = config.ValidateHold
	ValidateOff  = config.ValidateOff

	VersionsOfContent = config.VersionsOfContent
	VersionsOfOrigin  = config.VersionsOfOrigin

	ProtocolAuto  = config.ProtocolAuto
	ProtocolDelta = config.ProtocolDelta
	ProtocolSotW  = config.ProtocolSotW

	CompressionOff  = config.CompressionOff
	CompressionGzip = config.CompressionGzip

	TransportGRPC = config.TransportGRPC
	TransportADS  = config.TransportADS

	LRSOff         = config.LRSOff
	LRSPassthrough = config.LRSPassthrough
	LRSAggregate   = config.LRSAggregate

	TLSOff      = config.TLSOff
	TLSOn       = config.TLSOn
	TLSInsecure = config.TLSInsecure

	SourceDefault     = config.SourceDefault
	SourceEnvironment = config.SourceEnvironment
	SourceRefused     = config.SourceRefused
	SourceMissing     = config.SourceMissing
	SourceUnknown     = config.SourceUnknown

	SecretsMTLS     = config.SecretsMTLS
	SecretsLoopback = config.SecretsLoopback
	SecretsOff      = config.SecretsOff
)

// LoadConfig reads the variables with the prefix TENDER_ from environ, whose entries have the form key=value, as in
// [os.Environ]. An empty or blank variable counts as unset.
//
// The error joins one [ConfigError] per invalid variable, in the order of deploy/docs/configuration.md. The Config is
// complete even then: each invalid value is replaced by its default, so that tender check can print the result.
func LoadConfig(environ []string) (Config, error) { return config.Load(environ) }

// ConfigErrors returns the errors that an error of [LoadConfig] or of a method of [Config] joins.
func ConfigErrors(err error) []*ConfigError { return config.Errors(err) }

// warnPlaintext logs the listeners and origins whose plaintext traffic leaves this host. clientTLS reports whether the
// relay has a certificate for its clients.
func warnPlaintext(cfg *Config, clientTLS bool, log *slog.Logger) {
	var origins []string
	plain := cfg.Listen
	if !clientTLS {
		plain = slices.Concat(plain, cfg.RESTListen)
	} else if len(cfg.TLSListen) == 0 {
		plain = nil
	}
	listen := config.NonLoopback(plain)
	for _, o := range config.AllOrigins(cfg) {
		for _, target := range o.Targets {
			address := strings.TrimPrefix(target, "dns:///")
			if o.Access.TLS == TLSOff && !strings.HasPrefix(target, "file:") && !config.IsLoopback(address) {
				origins = append(origins, target)
			}
		}
	}
	var where []any
	if len(listen) > 0 {
		where = append(where, slog.String("listen", strings.Join(listen, ",")))
	}
	if len(origins) > 0 {
		where = append(where, slog.String("origin", strings.Join(origins, ",")))
	}
	if len(where) > 0 {
		log.Warn("traffic leaves this host without TLS; it can be intercepted and changed", where...)
	}
}

// credentialStatus returns the state of the credential files for the admin API.
func (r *Relay) credentialStatus() []admin.Files {
	all := []admin.Files{}
	for _, s := range r.credentials.Files.Status() {
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
