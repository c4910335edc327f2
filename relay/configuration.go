package relay

import "github.com/xdstender/tender/relay/config"

// Types of the configuration. Package config documents their fields.
type (
	// A Config is the configuration of a relay. [LoadConfig] sets every field; LoadConfig(nil) returns the defaults.
	Config = config.Config

	// Access has the TLS settings and credentials for an origin.
	Access = config.Access

	// Headers are gRPC metadata, by name in lower case.
	Headers = config.Headers

	// A Locality is the locality in the Node of the relay.
	Locality = config.Locality

	// Metadata is the metadata in the Node of the relay, a JSON object.
	Metadata = config.Metadata

	// A NamedOrigin is an entry of TENDER_ORIGINS.
	NamedOrigin = config.NamedOrigin

	// A Route is an entry of TENDER_ROUTES.
	Route = config.Route

	// A Setting is a variable with its value and source.
	Setting = config.Setting

	// A Size is a number of bytes.
	Size = config.Size
)

// Values of fields of [Config].
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

// LoadConfig reads the variables with the prefix TENDER_ from environ, whose entries have the form key=value, as in
// [os.Environ]. An empty or blank variable counts as unset.
//
// The error joins one error per invalid variable, in the order of deploy/docs/configuration.md. The Config is complete
// even then: each invalid value is replaced by its default, so that tender check can print the result.
func LoadConfig(environ []string) (Config, error) { return config.Load(environ) }
