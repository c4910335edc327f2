// Package process starts the parts of a benchmark as processes and calls their methods
// with [net/rpc]. It reads their CPU time and memory from the operating system.
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

// Serve serves receiver's methods with [net/rpc] on standard input and output. It
// returns when the input ends, which happens when the parent process ends.
func Serve(receiver any) error {
	server := rpc.NewServer()
	if err := errors.Join(server.RegisterName("process", receiver), server.RegisterName("runtime", heap{})); err != nil {
		return fmt.Errorf("serve the driver: %w", err)
	}
	server.ServeConn(pipe{os.Stdin, os.Stdout})
	return nil
}

// A pipe joins the reading end of one pipe and the writing end of another into one connection.
type pipe struct {
	io.ReadCloser
	w io.WriteCloser
}

func (p pipe) Write(b []byte) (int, error) { return p.w.Write(b) }

func (p pipe) Close() error { return errors.Join(p.ReadCloser.Close(), p.w.Close()) }

// A Process is a child process. It is killed when the thread that started it ends.
type Process struct {
	cmd    *exec.Cmd
	client *rpc.Client // nil if the process serves no calls
	name   string
}

// Start starts a process that serves no calls. Its environment is exactly environ, and
// its standard error goes to stderr. The caller must call Kill.
func Start(stderr io.Writer, environ []string, name string, args ...string) (*Process, error) {
	p := prepare(stderr, environ, name, args)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// StartRole starts another instance of this program with role as its arguments, with which it must call [Serve]. The
// caller must call Kill.
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

// prepare returns a process that is not started. The kernel kills it when the thread that starts it ends.
func prepare(stderr io.Writer, environ []string, name string, args []string) *Process {
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Stderr = environ, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return &Process{cmd: cmd, name: name}
}

// Call calls a method of the receiver that the process passed to [Serve]. Only processes of StartRole serve calls.
func (p *Process) Call(method string, args, reply any) error {
	if err := p.client.Call("process."+method, args, reply); err != nil {
		return fmt.Errorf("%s: %s: %w", p.name, method, err)
	}
	return nil
}

// heap is the receiver for calls about Go's heap; [Serve] registers it in each process.
type heap struct{}

// Allocated adds the number of objects allocated since the start to n.
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

// Allocated stores in n the number of objects that the process has allocated on Go's heap since its start. Errors: the
// process serves no calls.
func (p *Process) Allocated(n *uint64) error {
	if p.client == nil {
		return fmt.Errorf("%s: allocated objects: the process takes no calls", p.name)
	}
	if err := p.client.Call("runtime.Allocated", struct{}{}, n); err != nil {
		return fmt.Errorf("%s: allocated objects: %w", p.name, err)
	}
	return nil
}

// Kill kills the process and waits until it has ended.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails if the process has already ended
	_ = p.cmd.Wait()         // always fails for a killed process
	if p.client != nil {
		_ = p.client.Close() // fails because the other end is closed
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

// A Memory is the resident memory of a process in bytes.
type Memory struct {
	Resident int
	Peak     int // the highest Resident since ResetPeak or the start
	Program  int // the part of Resident that is pages of files, such as that of the program
}

// Memory returns the resident memory.
func (p *Process) Memory() (m Memory, err error) {
	status, err := os.ReadFile(p.proc("status"))
	if err != nil {
		return m, fmt.Errorf("memory of %s: %w", p.name, err)
	}
	fields := map[string]*int{"VmRSS": &m.Resident, "VmHWM": &m.Peak, "RssFile": &m.Program}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		field := fields[name]
		if field == nil {
			continue
		}
		kib, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
		if err != nil {
			return m, fmt.Errorf("memory of %s: %w", p.name, err)
		}
		*field = kib << 10
	}
	if m.Resident == 0 || m.Peak == 0 {
		return m, fmt.Errorf("memory of %s: not in its status", p.name)
	}
	return m, nil
}

// ResetPeak resets the peak of resident memory to the current value.
func (p *Process) ResetPeak() error {
	if err := os.WriteFile(p.proc("clear_refs"), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset peak memory of %s: %w", p.name, err)
	}
	return nil
}

// A Group is a set of processes whose costs are added: one relay, or a tree of relays.
type Group []*Process

// CPU returns the sum of the CPU times.
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

// Memory returns the sum of the memory. The peaks may have occurred at different times.
func (g Group) Memory() (sum Memory, err error) {
	for _, p := range g {
		m, err := p.Memory()
		if err != nil {
			return sum, err
		}
		sum.Resident, sum.Peak, sum.Program = sum.Resident+m.Resident, sum.Peak+m.Peak, sum.Program+m.Program
	}
	return sum, nil
}

// ResetPeak resets the peak of each process.
func (g Group) ResetPeak() error {
	for _, p := range g {
		if err := p.ResetPeak(); err != nil {
			return err
		}
	}
	return nil
}

// Open returns the number of open file descriptors of all processes.
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

// proc returns the path of a file in the process's directory of /proc.
func (p *Process) proc(file string) string {
	return "/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/" + file
}
