package judge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/xdstender/tender/relay/humanize"
)

// Limits of a process.
const (
	versionTimeout = 10 * time.Second
	endTimeout     = 2 * time.Second // between SIGTERM and SIGKILL
	outputTimeout  = time.Second     // for output after the end of the process
	maxMemory      = 2 << 30         // resident bytes
	memoryEvery    = time.Second     // interval between measurements of the memory
)

// A Program is an Envoy of an operator.
type Program struct {
	Version        string // such as 1.40.0
	MaxMemoryBytes int    // resident bytes of a process; Open sets it to 2 GiB

	path string
	log  *slog.Logger
}

// versionOf matches the output of envoy --version: PATH  version: COMMIT/VERSION/STATE/TYPE/LIBRARY.
var versionOf = regexp.MustCompile(`version: [^/\s]*/([^/\s]+)/`)

// Open returns the program at a path. It returns an error if the path is not an executable file, if it cannot be executed
// in its namespaces, or if it does not print the version of an Envoy within ten seconds.
func Open(ctx context.Context, path string, log *slog.Logger) (*Program, error) {
	p := &Program{MaxMemoryBytes: maxMemory, path: path, log: log}
	switch info, err := os.Stat(path); {
	case err != nil:
		return nil, errors.Unwrap(err) // the path is part of the caller's error
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a file")
	case info.Mode()&0o111 == 0:
		return nil, fmt.Errorf("it is not executable: its mode is %v", info.Mode().Perm())
	}
	dir, err := os.MkdirTemp("", "tender-envoy-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // empty
	run, err := p.start(dir, "--version")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	select {
	case <-run.Ended():
	case <-ctx.Done():
		run.End()
		return nil, fmt.Errorf("--version did not end within %v", versionTimeout)
	}
	if exit := run.Exit(); exit.Text != exitedNormally {
		return nil, fmt.Errorf("--version failed: %s", exit.describe())
	}
	version := versionOf.FindStringSubmatch(run.output.lastLine())
	if version == nil {
		return nil, fmt.Errorf("--version does not print the version of an Envoy: %s", humanize.Quote(run.output.lastLine()))
	}
	p.Version = version[1]
	return p, nil
}

// Start starts the Envoy with a bootstrap. dir is the directory of its files and of the relay's socket; the Envoy sees it under
// the same path.
func (p *Program) Start(dir string, bootstrap []byte) (Process, error) {
	file := dir + "/bootstrap.json"
	if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
		return nil, err
	}
	return p.start(dir, "--config-path", file, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
}

// A Process is a running Envoy. Its methods may be called from any goroutine.
type Process interface {
	// Ended returns a channel that is closed when the process has ended.
	Ended() <-chan struct{}

	// Exit returns how the process has ended, after Ended.
	Exit() Exit

	// End ends the process: with SIGTERM, and after two seconds with SIGKILL. It returns when the process has ended, or two
	// seconds later if the kernel cannot end it.
	End()
}

// An Exit is the end of a process.
type Exit struct {
	Text    string // such as "exit status 1"
	Crashed bool   // a fault of the program ended it, not a signal from outside or a lack of memory
	Output  string // the last line of its output
}

// exitedNormally is the Exit.Text of a process that succeeded.
const exitedNormally = "exit status 0"

// describe returns how a process ended, with its last line.
func (e Exit) describe() string {
	if e.Output == "" {
		return e.Text
	}
	return e.Text + ": " + e.Output
}

// faults are the signals with which a program ends because of its own fault.
var faults = map[syscall.Signal]bool{
	syscall.SIGABRT: true, syscall.SIGBUS: true, syscall.SIGFPE: true, syscall.SIGILL: true, syscall.SIGSEGV: true,
	syscall.SIGTRAP: true,
}

// A process implements [Process].
type process struct {
	cmd    *exec.Cmd
	output *output
	ended  chan struct{}
	tooBig atomic.Bool // limitMemory has killed it
}

// start executes the program.
func (p *Program) start(dir string, args ...string) (*process, error) {
	cmd, err := command(dir, p.path, args)
	if err != nil {
		return nil, err
	}
	run := &process{cmd: cmd, output: &output{log: p.log}, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = run.output, run.output, outputTimeout
	cmd.Env = []string{} // that of the relay may have credentials
	started := make(chan error)
	go func() { // ends with the process
		// The kernel kills the process when the thread that has started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if started <- err; err != nil {
			return
		}
		_ = cmd.Wait() // Exit returns its result
		close(run.ended)
	}()
	if err := <-started; err != nil {
		return nil, startError(err)
	}
	go run.limitMemory(p.MaxMemoryBytes) // ends with the process
	return run, nil
}

// limitMemory kills a process that needs more memory than a number of bytes.
func (p *process) limitMemory(bytes int) {
	every := time.NewTicker(memoryEvery)
	defer every.Stop()
	for {
		select {
		case <-p.ended:
			return
		case <-every.C:
		}
		if residentBytes(p.cmd.Process.Pid) > bytes {
			p.tooBig.Store(true)
			_ = p.cmd.Process.Kill() // it may have ended
		}
	}
}

// residentBytes returns the resident memory of a process; zero if it is unknown.
func residentBytes(pid int) int {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	var total, resident int
	if _, err := fmt.Sscan(string(text), &total, &resident); err != nil {
		return 0
	}
	return resident * os.Getpagesize()
}

// Ended implements Process.
func (p *process) Ended() <-chan struct{} { return p.ended }

// Exit implements Process.
func (p *process) Exit() Exit {
	exit := Exit{Text: p.cmd.ProcessState.String(), Output: p.output.lastLine()}
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	exit.Crashed = ok && status.Signaled() && faults[status.Signal()]
	if p.tooBig.Load() {
		exit.Text = "killed: it needed too much memory"
	}
	return exit
}

// End implements Process.
func (p *process) End() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
		return
	case <-time.After(endTimeout):
	}
	_ = p.cmd.Process.Kill()
	select {
	case <-p.ended:
	case <-time.After(endTimeout):
	}
}
