// Package example is what make interop adds to go-control-plane's example of this name: its snapshot
// leads to the backend of a test.
package example

import (
	"os"
	"strconv"
)

// upstreamPort returns the port of the backend on loopback, which the variable UPSTREAM_PORT holds.
func upstreamPort() uint32 {
	port, err := strconv.ParseUint(os.Getenv("UPSTREAM_PORT"), 10, 16)
	if err != nil {
		panic("UPSTREAM_PORT: " + err.Error())
	}
	return uint32(port)
}
