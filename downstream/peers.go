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

// enterShare counts a stream or a poll of a peer, which must call leave when it ends, or refuses it.
func (s *Server) enterShare(peer string) (leave func(), err error) {
	share, over := s.shares.Take(peer)
	switch {
	case over == nil:
		return sync.OnceFunc(share.Give), nil
	case over.OfPeer:
		return nil, Exceeds(LimitStreams, "%d streams and polls of %s are open, at most %d of one peer are allowed while more than half of %d are open",
			over.Used, peer, over.Most, over.Total)
	default:
		return nil, Exceeds(LimitStreams, "%d streams and polls are open, as many as allowed", over.Used)
	}
}

// CountOthers is an interceptor that counts the streams of services which are not the server's own, such as health and reflection:
// they are bounded with those that are (B.35).
func (s *Server) CountOthers(of any, rpc grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	switch of.(type) {
	case *Server, loadService:
		return handle(of, rpc)
	}
	leave, err := s.enterShare(s.cfg.PeerName(PeerOf(rpc.Context())))
	if err != nil {
		s.counters.Rejected(err)
		return err
	}
	defer leave()
	return handle(of, chargedStream{rpc, AccountOf(rpc.Context())})
}

// peerName returns whose a stream is: what its certificate says, since many share an address, else the address.
func (c *Config) PeerName(p Peer) string {
	if p.Certificate == nil {
		return c.HostName(p.Host)
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
func (c *Config) peerAt(conn net.Conn) string { return c.HostName(hostIP(conn.RemoteAddr().String())) }

// hostName returns what a host counts as: of IPv6, which gives each host many addresses, the prefix.
func (c *Config) HostName(host string) string {
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
