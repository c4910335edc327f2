package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/xdstender/tender/relay/humanize"
)

// A socket is an address to listen on, in a form that can be compared. Different spellings have equal sockets. A host
// name is not resolved, except localhost.
type socket struct {
	path string // of a Unix socket; empty for TCP
	host string // an IP address, or a name in lower case; empty for all addresses of the host
	port uint64
}

// socketOf returns the socket of a valid address.
func socketOf(address string) socket {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return socket{path: filepath.Clean(strings.TrimPrefix(path, "//"))}
	}
	host, port, _ := net.SplitHostPort(address) // the address is valid
	var s socket
	s.port, _ = strconv.ParseUint(port, 10, 16)
	if s.host = strings.ToLower(host); s.host == "localhost" {
		s.host = "127.0.0.1" // net.Listen prefers IPv4
	}
	if ip, err := netip.ParseAddr(s.host); err == nil && ip.IsUnspecified() {
		s.host = "" // net.Listen listens on the addresses of both families
	} else if err == nil {
		s.host = ip.Unmap().String()
	}
	return s
}

// isAny reports whether the socket is on all addresses of the host.
func (s socket) isAny() bool { return s.path == "" && s.host == "" }

// overlaps reports whether the kernel refuses to listen on both sockets. On Linux, all addresses of the host include each
// single one. Port 0 means any free port.
func (s socket) overlaps(o socket) bool {
	if s.path != "" || o.path != "" {
		return s.path == o.path
	}
	return s.port == o.port && s.port != 0 && (s.isAny() || o.isAny() || s.host == o.host)
}

// An ownAddress is an address that the relay listens on.
type ownAddress struct {
	variable, address string
	isSet             bool // or it is the default of the variable
}

// in describes where the address is.
func (a *ownAddress) in() string {
	if a.isSet {
		return "in " + prefix + a.variable
	}
	return "in the default of " + prefix + a.variable
}

// ownAddresses returns the addresses that the relay listens on, the defaults first.
func (r *rules) ownAddresses() (all []ownAddress) {
	for _, isSet := range []bool{false, true} {
		for _, v := range []struct {
			name      string
			addresses Addresses
		}{
			{"LISTEN", r.Listen}, {"TLS_LISTEN", r.TLSListen}, {"REST_LISTEN", r.RESTListen},
			{"ADMIN_LISTEN", r.AdminListen}, {"PROBE_LISTEN", r.ProbeListen},
		} {
			for i := 0; i < len(v.addresses) && r.isSet(v.name) == isSet && !r.undecodable.has(v.name); i++ {
				all = append(all, ownAddress{v.name, v.addresses[i], isSet})
			}
		}
	}
	return all
}

// checkListen refuses addresses that overlap with others. The error is about a variable that is set, not about a default.
func (r *rules) checkListen() {
	all := r.ownAddresses()
	for i, a := range all {
		for _, other := range all[:i] {
			if err := overlap(a.address, other.address, other.in()); err != nil {
				r.conflicting.add(a.variable, err, other.variable)
				break
			}
		}
	}
}

// checkLoop refuses targets of an origin that are the relay itself. variable has the targets.
func (r *rules) checkLoop(variable string, targets Targets) {
	for _, target := range targets {
		to := socketOf(strings.TrimPrefix(target, "dns:///"))
		for _, own := range r.ownAddresses() {
			s := socketOf(own.address)
			if isDirectory(target) || !to.overlaps(s) || s.isAny() && !IsLoopback(net.JoinHostPort(to.host, "1")) {
				continue
			}
			r.conflicting.add(variable, fmt.Errorf("%s is the relay itself, which listens on %s %s", humanize.Quote(target),
				humanize.Quote(own.address), own.in()), own.variable)
		}
	}
}

// overlap returns an error if an address overlaps with another one. in describes where the other is.
func overlap(address, other, in string) error {
	s, o := socketOf(address), socketOf(other)
	quoted, wider := humanize.Quote(address), address
	if o.isAny() {
		wider = other
	}
	switch {
	case !s.overlaps(o):
		return nil
	case address == other:
		return fmt.Errorf("%s is also %s", quoted, in)
	case s == o:
		return fmt.Errorf("%s is the same address as %s %s", quoted, humanize.Quote(other), in)
	default:
		return fmt.Errorf("%s overlaps with %s %s, because %s listens on all addresses of the host", quoted,
			humanize.Quote(other), in, humanize.Quote(wider))
	}
}
