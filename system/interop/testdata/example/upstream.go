// Package example is a file that make interop adds to go-control-plane's package of this name. It makes the snapshot
// of the example route to the backend of a test.
package example

import (
	"os"
	"strconv"
)

// upstreamPort returns the port of the backend on loopback: the value of the environment variable UPSTREAM_PORT.
func upstreamPort() uint32 {
	port, err := strconv.ParseUint(os.Getenv("UPSTREAM_PORT"), 10, 16)
	if err != nil {
		panic("UPSTREAM_PORT: " + err.Error())
	}
	return uint32(port)
}
