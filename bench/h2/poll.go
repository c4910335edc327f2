package h2

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Poll waits with epoll until any of many sockets is readable or writable, without a
// goroutine per socket.
type Poll struct {
	fd     int
	events []unix.EpollEvent
}

// NewPoll returns a poll of no sockets.
func NewPoll() (*Poll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	return &Poll{fd: fd, events: make([]unix.EpollEvent, 256)}, nil
}

// Add starts to watch a socket for reading, and also for writing if write is set.
func (p *Poll) Add(socket int, write bool) error { return p.control(unix.EPOLL_CTL_ADD, socket, write) }

// Change sets whether a watched socket is also watched for writing.
func (p *Poll) Change(socket int, write bool) error {
	return p.control(unix.EPOLL_CTL_MOD, socket, write)
}

// Remove stops watching a socket.
func (p *Poll) Remove(socket int) error { return p.control(unix.EPOLL_CTL_DEL, socket, false) }

func (p *Poll) control(op, socket int, write bool) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(socket)}
	if write {
		event.Events |= unix.EPOLLOUT
	}
	if err := unix.EpollCtl(p.fd, op, socket, &event); err != nil {
		return fmt.Errorf("epoll socket %d: %w", socket, err)
	}
	return nil
}

// Wait waits until a socket is ready or the timeout is over; -1 means no timeout. The result is valid until the next
// call, and may be empty.
func (p *Poll) Wait(milliseconds int) ([]unix.EpollEvent, error) {
	n, err := unix.EpollWait(p.fd, p.events, milliseconds)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return nil, fmt.Errorf("wait for epoll: %w", err)
	}
	return p.events[:max(n, 0)], nil
}

// Dial starts to connect to an IPv4 address, and does not wait. The socket is connected when it
// becomes writable. receiveBuffer is in bytes; 0 means the system's default.
func Dial(address netip.AddrPort, receiveBuffer int) (socket int, err error) {
	socket, err = tcpSocket()
	if err != nil {
		return -1, err
	}
	if receiveBuffer > 0 {
		if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer); err != nil {
			return -1, errors.Join(fmt.Errorf("set receive buffer: %w", err), unix.Close(socket))
		}
	}
	err = unix.Connect(socket, &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return -1, errors.Join(fmt.Errorf("connect to %v: %w", address, err), unix.Close(socket))
	}
	return socket, nil
}

// Listen listens on a free port of 127.0.0.1 with a non-blocking socket.
func Listen() (socket int, address netip.AddrPort, err error) {
	socket, err = tcpSocket()
	if err != nil {
		return -1, netip.AddrPort{}, err
	}
	local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if err := unix.Bind(socket, &unix.SockaddrInet4{Addr: local.As4()}); err != nil {
		return -1, netip.AddrPort{}, errors.Join(fmt.Errorf("bind: %w", err), unix.Close(socket))
	}
	if err := unix.Listen(socket, 1<<16); err != nil {
		return -1, netip.AddrPort{}, errors.Join(fmt.Errorf("listen: %w", err), unix.Close(socket))
	}
	name, err := unix.Getsockname(socket)
	if err != nil {
		return -1, netip.AddrPort{}, errors.Join(fmt.Errorf("listen: %w", err), unix.Close(socket))
	}
	return socket, netip.AddrPortFrom(local, uint16(name.(*unix.SockaddrInet4).Port)), nil
}

// Accept returns the next connection of a listening socket, or -1 if none is
// pending. The connection is non-blocking.
func Accept(listener int) (int, error) {
	socket, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if errors.Is(err, unix.EAGAIN) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("accept: %w", err)
	}
	return socket, noDelay(socket)
}

// tcpSocket returns a new non-blocking IPv4 socket.
func tcpSocket() (int, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open socket: %w", err)
	}
	return socket, noDelay(socket)
}

// noDelay disables Nagle's algorithm. It closes the socket on an error.
func noDelay(socket int) error {
	if err := unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return errors.Join(fmt.Errorf("set TCP_NODELAY: %w", err), unix.Close(socket))
	}
	return nil
}

// Write writes without blocking, and returns the number of bytes that the socket accepted, which may be 0.
func Write(socket int, b []byte) (int, error) {
	n, err := unix.Write(socket, b)
	if errors.Is(err, unix.EAGAIN) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("write: %w", err)
	}
	return n, nil
}

// ErrClosed reports that the other side has closed the connection.
var ErrClosed = errors.New("connection closed")

// Read reads into b without blocking. It returns 0 bytes if none are available. Errors: ErrClosed at the end.
func Read(socket int, b []byte) (int, error) {
	n, err := unix.Read(socket, b)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read: %w", err)
	}
	if n == 0 {
		return 0, ErrClosed
	}
	return n, nil
}
