package relay

import "github.com/xdstender/tender/relay/config"

// Package config has the details of the configuration.

type (
	// A Config is everything that the environment says about the relay. It comes
	// from [LoadConfig], which fills every field; LoadConfig(nil) returns the
	// defaults.
	Config = config.Config

	Access      = config.Access      // how an origin is connected to
	Headers     = config.Headers     // gRPC metadata, by name in lower case
	Locality    = config.Locality    // where the relay is
	Metadata    = config.Metadata    // of the relay's own Node: a JSON object
	NamedOrigin = config.NamedOrigin // one of TENDER_ORIGINS
	Route       = config.Route       // one of TENDER_ROUTES
	Setting     = config.Setting     // one variable as it stands
	Size        = config.Size        // a number of bytes
)

// Values of fields of [Config].
const (
	PrimaryOrigin = config.PrimaryOrigin // [Route.Origin]: the origin of TENDER_ORIGIN
	AnyAuthority  = config.AnyAuthority  // [Route.Authority]: all others

	ResyncTrustVersions = config.ResyncTrustVersions
	ResyncFull          = config.ResyncFull

	VersionsOfContent = config.VersionsOfContent
	VersionsOfOrigin  = config.VersionsOfOrigin

	ProtocolAuto  = config.ProtocolAuto
	ProtocolDelta = config.ProtocolDelta
	ProtocolSotW  = config.ProtocolSotW

	LRSOff         = config.LRSOff
	LRSPassthrough = config.LRSPassthrough
	LRSAggregate   = config.LRSAggregate

	TLSOff      = config.TLSOff
	TLSOn       = config.TLSOn
	TLSInsecure = config.TLSInsecure

	SecretsMTLS     = config.SecretsMTLS
	SecretsLoopback = config.SecretsLoopback
	SecretsOff      = config.SecretsOff

	CompressionOff  = config.CompressionOff
	CompressionGzip = config.CompressionGzip
)

// LoadConfig reads the variables that start with TENDER_ from environ, whose
// entries have the form of os.Environ. An empty variable counts as unset, and so does one of blanks.
//
// The error joins one line for each thing that is wrong, in the order of the
// table of variables. The Config is complete even then: a refused value is
// replaced by the default, so that tender check can show what would apply.
func LoadConfig(environ []string) (Config, error) { return config.Load(environ) }

// MarkdownTable returns the table of variables as deploy/docs/configuration.md shows it.
func MarkdownTable() string { return config.MarkdownTable() }
