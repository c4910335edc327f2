// Package faults has tests and nothing else: what the clients of a relay see when origins
// die, relays restart and networks fail, over real sockets and in real time. They mostly
// wait, and so run beside each other, and beside those of package relay.
package faults
