package proxy

import (
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/xdstender/tender/relay/relaytest/wait"
)

// Refused returns a loopback host:port at which the kernel refuses connections until tb ends. A socket that does not
// listen holds the port, so that no other process listens on it.
func Refused(tb wait.TB) string {
	tb.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		tb.Fatalf("reserve a port: %v", os.NewSyscallError("socket", err))
	}
	syscall.CloseOnExec(fd)
	wait.Cleanup(tb, func() { _ = syscall.Close(fd) }) // fails only for a closed descriptor
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: loopback.As4()}); err != nil {
		tb.Fatalf("reserve a port: %v", os.NewSyscallError("bind", err))
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		tb.Fatalf("reserve a port: %v", os.NewSyscallError("getsockname", err))
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback, uint16(bound.(*syscall.SockaddrInet4).Port))).String()
}
