//go:build !linux

package proxy

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// given are the ports that Reserve has chosen.
var given sync.Map

// Reserve chooses a loopback port and returns its address (host:port): a port that this process has not chosen before,
// below those that the kernel assigns. Here a socket that does not listen would keep programs from listening on its port.
func Reserve() (address string, release func(), err error) {
	for range 100 {
		port := 10_000 + rand.IntN(20_000)
		if _, taken := given.LoadOrStore(port, struct{}{}); taken {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return l.Addr().String(), func() {}, l.Close()
		}
	}
	return "", nil, fmt.Errorf("found no free port: %w", err)
}
