package guard

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// A Peer is the verified identity of a client: that of its connection. A client can claim any Node in its requests.
type Peer struct {
	// Host is the IP address of the client; empty if it has none, for example on a Unix socket.
	Host string

	// Certificate was verified in the handshake; nil without mTLS.
	Certificate *x509.Certificate
}

// PeerOf returns the peer of a stream from its context.
func PeerOf(ctx context.Context) (p Peer) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return p
	}
	if from.Addr != nil {
		p.Host = hostIP(from.Addr.String())
	}
	info := from.AuthInfo
	if c, ok := info.(connInfo); ok {
		info = c.AuthInfo
	}
	if info, ok := info.(credentials.TLSInfo); ok {
		p.Certificate = verifiedCertificate(info.State.VerifiedChains)
	}
	return p
}

// verifiedCertificate returns the leaf certificate of verified chains, nil if there are none.
func verifiedCertificate(chains [][]*x509.Certificate) *x509.Certificate {
	if len(chains) == 0 {
		return nil
	}
	return chains[0][0]
}

// PeerName returns the name that the usage of a peer is charged to: the identity in its certificate, or else its host.
// Many clients may share an address, so the certificate is preferred.
func PeerName(p Peer) string {
	if p.Certificate == nil {
		return HostName(p.Host)
	}
	return certificateName(p.Certificate)
}

func certificateName(cert *x509.Certificate) string {
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

// connPeer returns the name that a connection is charged to: its host, since its certificate is unknown before the
// handshake.
func connPeer(conn net.Conn) string {
	return HostName(hostIP(conn.RemoteAddr().String()))
}

// ipv6Prefix is the number of bits of an IPv6 address that identify a host.
const ipv6Prefix = 64

// HostName returns the name that the usage of an IP address is charged to. For IPv6 it is the prefix, since a host has
// many addresses.
func HostName(host string) string {
	address, err := netip.ParseAddr(host)
	if err != nil || !address.Is6() || address.IsLoopback() {
		return host
	}
	prefix, err := address.Prefix(ipv6Prefix)
	if err != nil {
		return host
	}
	return prefix.String()
}

// hostIP returns the IP address in an address with a port, empty if there is none.
func hostIP(address string) string {
	from, err := netip.ParseAddrPort(address)
	if err != nil {
		return ""
	}
	return from.Addr().Unmap().WithZone("").String()
}

// connInfo is the AuthInfo of a charged connection.
type connInfo struct {
	credentials.AuthInfo
	began   time.Time
	account *Account
	nodes   *nodeCache // of its streams
}

// AccountOf returns the account of a stream's connection, nil if it has none. A nil account charges nothing.
func AccountOf(ctx context.Context) *Account {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(connInfo); ok {
			return c.account
		}
	}
	return nil
}

// nodeCacheOf returns the kept Nodes of a stream's connection, nil if it has none.
func nodeCacheOf(ctx context.Context) *nodeCache {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(connInfo); ok {
			return c.nodes
		}
	}
	return nil
}
