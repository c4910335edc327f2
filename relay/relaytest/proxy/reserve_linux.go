package proxy

import (
	"net"
	"strconv"
	"syscall"
)

// Reserve reserves a loopback port and returns its address (host:port). It binds a socket with SO_REUSEADDR that never
// listens. A listener of package net, and of most programs, has that option too, so it can be bound to the port as well;
// the kernel chooses the port for no other socket. release ends the reservation.
func Reserve() (address string, release func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	release = func() { _ = syscall.Close(fd) } // nothing was written to it
	if err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	var bound syscall.Sockaddr
	if err == nil {
		bound, err = syscall.Getsockname(fd)
	}
	if err != nil {
		release()
		return "", nil, err
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(bound.(*syscall.SockaddrInet4).Port)), release, nil
}
