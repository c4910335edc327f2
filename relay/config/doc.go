// Package config reads the configuration of a relay from variables of the environment: the table of variables, with
// their defaults, what is allowed and what they mean (table.go), their values (values.go), and the files that they
// name.
//
// The package is not a stable API: programs that embed Tender use package relay.
package config
