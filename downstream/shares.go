package downstream

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc"
)

// streamsOfPeer is the part of [Config.MaxStreams] that one peer may have open once more than half of all are: one in so many, but
// at least leastOfPeer.
const (
	streamsOfPeer = 10
	leastOfPeer   = 100
)

// shares counts what is open of all peers, and bounds it in all and, once more than half is open, for each peer: many clients behind
// one address are served while there is room, and one peer leaves room to others.
type shares struct {
	most int

	mu   sync.Mutex
	open int
	of   map[string]int // by peer; not those of which nobody knows whose they are
}

// enter counts what a peer opens, empty if that is not known, which must call leave when it ends, or refuses it.
func (s *shares) enter(peer string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.open >= s.most:
		return nil, Exceeds(LimitStreams, "%d streams and polls are open, as many as allowed", s.open)
	case peer != "" && s.open >= s.most/2 && s.of[peer] >= max(leastOfPeer, s.most/streamsOfPeer):
		return nil, Exceeds(LimitStreams, "%d streams and polls of %s are open, as many as one peer may have while more than half of all are open", s.of[peer], peer)
	}
	s.open++
	if peer != "" {
		s.of[peer]++
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
		if peer == "" {
			return
		}
		if s.of[peer]--; s.of[peer] == 0 {
			delete(s.of, peer)
		}
	}), nil
}

// CountOthers is an interceptor that counts the streams of services which are not the server's own, such as health and reflection:
// they are bounded with those that are (B.35).
func (s *Server) CountOthers(of any, rpc grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	switch of.(type) {
	case *Server, loadService:
		return handle(of, rpc)
	}
	leave, err := s.shares.enter(s.cfg.peerName(PeerOf(rpc.Context())))
	if err != nil {
		s.counters.turnedAway(err)
		return err
	}
	defer leave()
	return handle(of, countedStream{rpc, backlogOf(rpc.Context())})
}

// peerName returns whose a stream is: what its certificate says, since many share an address, else the address.
func (c *Config) peerName(p Peer) string {
	if p.Certificate == nil {
		return c.hostName(p.Host)
	}
	return identityOf(p.Certificate)
}

// identityOf returns a text for whom a certificate is of.
func identityOf(cert *x509.Certificate) string {
	switch {
	case len(cert.URIs) > 0:
		return cert.URIs[0].String()
	case len(cert.DNSNames) > 0:
		return cert.DNSNames[0]
	default:
		sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
		return "key " + hex.EncodeToString(sum[:8])
	}
}

// peerAt returns whose a connection is before anything was said on it: what its host counts as.
func (c *Config) peerAt(conn net.Conn) string { return c.hostName(hostOf(conn.RemoteAddr().String())) }

// hostName returns what a host counts as: of IPv6, which gives each host many addresses, the prefix.
func (c *Config) hostName(host string) string {
	address, err := netip.ParseAddr(host)
	if err != nil || !address.Is6() || address.IsLoopback() {
		return host
	}
	prefix, err := address.Prefix(c.PeerIPv6Prefix)
	if err != nil {
		return host
	}
	return prefix.String()
}
