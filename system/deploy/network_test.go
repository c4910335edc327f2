package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
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

// mountsVariable is set in the environment of a process of the test binary that becomes a program in a network of its
// own. It has the mounts of that process, in JSON.
const mountsVariable = "TEST_MOUNTS"

// alone returns a command in a network of its own, in which no other program has a port, with mounts of its own: pairs of
// a directory and the path at which the command finds it. Of the caller's environment, it has nothing. The Env that is
// returned must stay a part of its environment.
func alone(ctx context.Context, t *testing.T, mounts [][2]string, args ...string) *exec.Cmd {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	inside := func(mounts [][2]string, args ...string) *exec.Cmd {
		text, err := json.Marshal(mounts)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Env = []string{mountsVariable + "=" + string(text)}
		cmd.SysProcAttr = inNamespaces(unix.CLONE_NEWNET | unix.CLONE_NEWNS)
		return cmd
	}
	if out, err := inside(nil, "/bin/true").CombinedOutput(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("start a process in new namespaces: %v %s", err, out)
		}
		t.Skipf("the host allows no namespaces: %v %s", err, out)
	}
	return inside(mounts, args...)
}

// becomeAlone replaces the process, which is in new namespaces, by a program. It returns only an error.
func becomeAlone(mounts string, args []string) error {
	if err := enableLoopback(); err != nil {
		return fmt.Errorf("enable the loopback interface: %w", err)
	}
	var pairs [][2]string
	if err := json.Unmarshal([]byte(mounts), &pairs); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, pair := range pairs {
		if err := unix.Mount(pair[0], pair[1], "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", pair[0], pair[1], err)
		}
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	if err := os.Unsetenv(mountsVariable); err != nil {
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
