// Package process runs the parts of a benchmark as processes of their own, talks
// to them, and reads from the operating system what they cost.
package process

import (
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"runtime/metrics"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Serve answers calls of receiver's methods on standard input and output until
// the input ends: the process that started this one has gone.
func Serve(receiver any) error {
	server := rpc.NewServer()
	if err := errors.Join(server.RegisterName("process", receiver), server.RegisterName("runtime", heap{})); err != nil {
		return fmt.Errorf("serve the driver: %w", err)
	}
	server.ServeConn(pipe{os.Stdin, os.Stdout})
	return nil
}

// A pipe is the two ends that a process holds.
type pipe struct {
	io.ReadCloser
	w io.WriteCloser
}

func (p pipe) Write(b []byte) (int, error) { return p.w.Write(b) }

func (p pipe) Close() error { return errors.Join(p.ReadCloser.Close(), p.w.Close()) }

// A Process is a process that was started.
type Process struct {
	cmd    *exec.Cmd
	client *rpc.Client // nil for one that does not take calls
	name   string
}

// Start starts a process that takes no calls, with no environment but environ. What
// it says goes to stderr.
func Start(stderr io.Writer, environ []string, name string, args ...string) (*Process, error) {
	p := prepare(stderr, environ, name, args)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// StartRole starts this program again in a role, in which it calls [Serve].
func StartRole(stderr io.Writer, role ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", role[0], err)
	}
	p := prepare(stderr, os.Environ(), self, role)
	p.name = role[0]
	w, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", role[0], err)
	}
	r, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", role[0], err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", role[0], err)
	}
	p.client = rpc.NewClient(pipe{r, w})
	return p, nil
}

func prepare(stderr io.Writer, environ []string, name string, args []string) *Process {
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Stderr = environ, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return &Process{cmd: cmd, name: name}
}

// Call calls a method of the process.
func (p *Process) Call(method string, args, reply any) error {
	if err := p.client.Call("process."+method, args, reply); err != nil {
		return fmt.Errorf("%s: %s: %w", p.name, method, err)
	}
	return nil
}

// heap answers questions about Go's heap in a process that serves calls.
type heap struct{}

// Allocated returns how many objects were allocated.
func (heap) Allocated(_ struct{}, n *uint64) error {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/tiny/allocs:objects"}}
	metrics.Read(sample)
	for _, s := range sample {
		if s.Value.Kind() != metrics.KindUint64 {
			return fmt.Errorf("metric %s: the runtime has none", s.Name)
		}
		*n += s.Value.Uint64()
	}
	return nil
}

// Allocated stores in n how many objects the process has allocated on Go's heap. It must take calls.
func (p *Process) Allocated(n *uint64) error {
	if p.client == nil {
		return fmt.Errorf("%s: allocated objects: the process takes no calls", p.name)
	}
	if err := p.client.Call("runtime.Allocated", struct{}{}, n); err != nil {
		return fmt.Errorf("%s: allocated objects: %w", p.name, err)
	}
	return nil
}

// Kill ends the process and waits until it has gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()         // killed: an error by intent
	if p.client != nil {
		_ = p.client.Close() // its other end has gone
	}
}

// CPU returns the CPU time, user and system, of the process since it started.
func (p *Process) CPU() (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED, of the whole process
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|scheduled), &t); err != nil {
		return 0, fmt.Errorf("CPU time of %s: %w", p.name, err)
	}
	return time.Duration(t.Nano()), nil
}

// RSS returns the resident memory in bytes, now and at its highest since
// ResetPeak.
func (p *Process) RSS() (now, peak int, err error) {
	status, err := os.ReadFile(p.proc("status"))
	if err != nil {
		return 0, 0, fmt.Errorf("memory of %s: %w", p.name, err)
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		kib, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
		switch {
		case name == "VmRSS" && err == nil:
			now = kib << 10
		case name == "VmHWM" && err == nil:
			peak = kib << 10
		}
	}
	if now == 0 || peak == 0 {
		return 0, 0, fmt.Errorf("memory of %s: not in its status", p.name)
	}
	return now, peak, nil
}

// ResetPeak lets the highest resident memory start from what it is now.
func (p *Process) ResetPeak() error {
	if err := os.WriteFile(p.proc("clear_refs"), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset peak memory of %s: %w", p.name, err)
	}
	return nil
}

// A Group is processes whose cost is one figure: a relay, or a tree of them.
type Group []*Process

// CPU returns the CPU time of all.
func (g Group) CPU() (sum time.Duration, err error) {
	for _, p := range g {
		t, err := p.CPU()
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

// RSS returns the resident memory of all, and the sum of their peaks, which need not
// have been at one time.
func (g Group) RSS() (now, peak int, err error) {
	for _, p := range g {
		n, k, err := p.RSS()
		if err != nil {
			return 0, 0, err
		}
		now, peak = now+n, peak+k
	}
	return now, peak, nil
}

// ResetPeak resets the peaks of all.
func (g Group) ResetPeak() error {
	for _, p := range g {
		if err := p.ResetPeak(); err != nil {
			return err
		}
	}
	return nil
}

// Open returns how many files and sockets all have open.
func (g Group) Open() (n int, err error) {
	for _, p := range g {
		names, err := os.ReadDir(p.proc("fd"))
		if err != nil {
			return 0, fmt.Errorf("open files of %s: %w", p.name, err)
		}
		n += len(names)
	}
	return n, nil
}

func (p *Process) proc(file string) string {
	return "/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/" + file
}
