package relay

import "github.com/xdstender/tender/relay/config"

// Types of the configuration. Package config has their fields.
type (
	// A Config is the configuration of a relay. [LoadConfig] returns one with every field set; LoadConfig(nil) returns
	// the defaults.
	Config = config.Config

	// Access has the TLS settings and credentials of an origin.
	Access = config.Access

	// Headers are gRPC metadata, by name in lower case.
	Headers = config.Headers

	// A Locality is the locality of the relay.
	Locality = config.Locality

	// Metadata is the metadata of the relay's own Node: a JSON object.
	Metadata = config.Metadata

	// A NamedOrigin is one of TENDER_ORIGINS.
	NamedOrigin = config.NamedOrigin

	// A Route is one of TENDER_ROUTES.
	Route = config.Route

	// A Setting is one variable and its value.
	Setting = config.Setting

	// A Size is a number of bytes.
	Size = config.Size
)

// Values of fields of [Config].
const (
	PrimaryOrigin = config.PrimaryOrigin // [Route.Origin]: the origin of TENDER_ORIGIN
	AnyAuthority  = config.AnyAuthority  // [Route.Authority]: all others

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

// LoadConfig reads the variables that start with TENDER_ from environ, whose entries have the form of os.Environ. An
// empty or blank variable counts as unset.
//
// The error joins one line for each invalid variable, in the order of the table of variables. The Config is complete
// even then: an invalid value is replaced by the default, so that tender check can print the result.
func LoadConfig(environ []string) (Config, error) { return config.Load(environ) }
