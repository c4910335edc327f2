// Package config reads the configuration of a relay from environment variables. table.go has the table of variables,
// with their defaults, allowed values and meanings. values.go parses their values. credentials.go reads the files that
// they name.
//
// The package is not a stable API: programs that embed Tender use package relay.
package config
