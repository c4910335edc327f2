package judge

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// launcher is the name under which this program starts itself to prepare the namespaces of an Envoy.
const launcher = "tender-envoy-launcher"

func init() {
	if len(os.Args) > 3 && os.Args[0] == launcher {
		err := launch(os.Args[1], os.Args[2], os.Args[2:]) // returns only an error
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// command returns the command that executes a program in namespaces of its own. dir is the only directory that it shares with
// the relay below those in hidden.
func command(dir, path string, args []string) (*exec.Cmd, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{launcher, dir, path}, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	return cmd, nil
}

// startError explains why the kernel did not start a process in namespaces of its own.
func startError(err error) error {
	if !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EACCES) {
		return err
	}
	return fmt.Errorf("%w: the kernel must allow the relay new user, network and mount namespaces "+
		"(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone and "+
		"kernel.apparmor_restrict_unprivileged_userns; in a container, a seccomp profile that allows CLONE_NEWUSER; "+
		"with systemd, RestrictNamespaces=)", err)
}

// launch prepares the namespaces of this process and executes a program. It returns only an error.
func launch(dir, path string, argv []string) error {
	// Without CLOEXEC, because the interpreter of a script opens it again.
	file, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	for _, step := range []func() error{
		allowAnyAddress, func() error { return hideSockets(dir) }, limitProcess, tryExecutableMemory,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return fmt.Errorf("execute %s: %w", path, unix.Exec("/proc/self/fd/"+strconv.Itoa(file), argv, []string{}))
}

// allowAnyAddress permits sockets in the network namespace to bind addresses that it does not have: all but loopback, which is
// down.
func allowAnyAddress() error {
	for _, family := range []string{"ipv4", "ipv6"} {
		err := os.WriteFile("/proc/sys/net/"+family+"/ip_nonlocal_bind", []byte("1"), 0)
		if missing := errors.Is(err, os.ErrNotExist); missing && family == "ipv6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return fmt.Errorf("set net.%s.ip_nonlocal_bind in the network namespace: %w (in a container, /proc must be writable)",
				family, err)
		}
	}
	return nil
}

// hidden are the directories with the Unix sockets of a machine. An Envoy sees them empty, and may bind sockets there.
var hidden = []string{"/run", "/var/run", "/tmp", "/var/tmp", "/dev/shm"}

// hideSockets makes hidden empty, except for dir.
func hideSockets(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	kept, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	for _, path := range hidden {
		if info, err := os.Lstat(path); err != nil || !info.IsDir() {
			continue
		}
		if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=16m,mode=0755"); err != nil {
			return fmt.Errorf("mount an empty %s: %w", path, err)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(kept), dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// tryExecutableMemory returns an error unless this process may make memory executable that it has written. Without that, an Envoy
// runs, but crashes with the first Wasm filter: each edition that adds one would be halted.
func tryExecutableMemory() error {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("map memory: %w", err)
	}
	if err := unix.Mprotect(page, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		return fmt.Errorf("make memory executable, as Envoy does for Wasm: %w (with systemd, MemoryDenyWriteExecute=)", err)
	}
	return nil // the program that is executed next has memory of its own
}

// limitProcess lowers the priority of this process, makes the kernel kill it first if memory is short, and disables core dumps,
// which would have Secrets.
func limitProcess() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("disable new privileges: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("set the signal at the end of the relay: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("disable core dumps: %w", err)
	}
	// These only protect the relay and its machine further.
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 10)
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	return nil
}
