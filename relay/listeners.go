package relay

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/xdstender/tender/relay/config"
)

// listeners are the listeners of a relay, by what they serve.
type listeners struct {
	xds              []net.Listener
	tls              []net.Listener // of TENDER_TLS_LISTEN, while xds is plaintext
	rest             []net.Listener
	admin            []net.Listener // plaintext, on loopback
	adminTLS, probes []net.Listener
}

// open opens the configured addresses for which [Options] has no listeners. It opens all or none.
func (ls *listeners) open(cfg *Config) error {
	var opened []net.Listener
	for _, l := range []struct {
		variable  string
		addresses []string
		listeners *[]net.Listener
		allowed   func(net.Listener) error
	}{
		{"TENDER_LISTEN", cfg.Listen, &ls.xds, nil},
		{"TENDER_TLS_LISTEN", cfg.TLSListen, &ls.tls, nil},
		{"TENDER_REST_LISTEN", cfg.RESTListen, &ls.rest, nil},
		{"TENDER_ADMIN_LISTEN", config.LoopbackOnly(cfg.AdminListen), &ls.admin, requireLoopback},
		{"TENDER_ADMIN_LISTEN", config.NonLoopback(cfg.AdminListen), &ls.adminTLS, nil},
		{"TENDER_PROBE_LISTEN", cfg.ProbeListen, &ls.probes, nil},
	} {
		if len(*l.listeners) > 0 {
			continue
		}
		listeners, err := listenAll(l.addresses)
		opened = append(opened, listeners...)
		for i := 0; err == nil && l.allowed != nil && i < len(listeners); i++ {
			err = l.allowed(listeners[i])
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", l.variable, err), closeAll(opened))
		}
		*l.listeners = listeners
	}
	return nil
}

// listenAll opens all addresses or none.
func listenAll(addresses []string) (listeners []net.Listener, err error) {
	for _, address := range addresses {
		l, err := listen(address)
		if err != nil {
			return nil, errors.Join(err, closeAll(listeners))
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

func closeAll(listeners []net.Listener) (err error) {
	for _, l := range listeners {
		err = errors.Join(err, l.Close())
	}
	return err
}

// listen listens on a TCP address, or on a Unix socket if the address is unix:/path. It replaces the socket of a
// process that no longer runs.
func listen(address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, "unix:")
	if !isUnix {
		return net.Listen("tcp", address)
	}
	path = strings.TrimPrefix(path, "//")
	l, err := net.Listen("unix", path)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	// If nothing accepts connections, a process that has ended left the socket.
	if conn, dialErr := net.Dial("unix", path); dialErr == nil {
		return nil, errors.Join(err, conn.Close())
	}
	if removeErr := os.Remove(path); removeErr != nil {
		return nil, fmt.Errorf("listen %s: %w", address, removeErr)
	}
	return net.Listen("unix", path)
}

// requireLoopback returns an error for a listener that other hosts can reach. The configuration cannot check this for a
// host name, which may resolve to any address.
func requireLoopback(l net.Listener) error {
	if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		return fmt.Errorf("listen %s: not on loopback", a)
	}
	return nil
}

func addrs(listeners []net.Listener) []net.Addr {
	addrs := make([]net.Addr, len(listeners))
	for i, l := range listeners {
		addrs[i] = l.Addr()
	}
	return addrs
}
