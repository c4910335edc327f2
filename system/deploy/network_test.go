package deploy_test

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespaces returns the attributes of a process in new namespaces, in which it is root. The process is killed when
// the test process dies.
func inNamespaces(flags uintptr) *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		attributes.Cloneflags |= unix.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return attributes
}

// networkVariable is set in the environment of a process of the test binary that becomes a program in a network of its
// own.
const networkVariable = "TEST_NETWORK"

// alone returns a command in a network of its own, in which no other program has a port. Its Env must stay a part of its
// environment. If the host allows no namespaces, the command runs in the network of the host.
func alone(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	inside := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Env = []string{networkVariable + "=own", "PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = inNamespaces(unix.CLONE_NEWNET)
		return cmd
	}
	if out, err := inside("true").CombinedOutput(); err != nil {
		t.Logf("in the network of the host: %v %s", err, out)
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	return inside(args...)
}

// becomeAlone replaces the process, which is in a new network, by a program. It returns only an error.
func becomeAlone(args []string) error {
	if err := enableLoopback(); err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	if err := os.Unsetenv(networkVariable); err != nil {
		return err
	}
	return syscall.Exec(path, args, os.Environ())
}

// enableLoopback brings up the loopback interface of a new network.
func enableLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}
