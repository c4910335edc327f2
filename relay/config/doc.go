// Package config reads the configuration of a relay from environment variables. A field of Config defines a variable: its
// tags have the name, the default and the bounds, and its type decodes the value (variables.go, values.go). Rules about
// several variables are in requirements.go, conflicts.go and sockets.go, their errors in refusals.go. texts.go has the
// prose of the documentation. credentials.go reads the files that variables name.
//
// The package is not a stable API: programs that embed Tender use package relay.
package config
