package envoytest

import (
	"bytes"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// askEvery is the polling interval of [Process.Within].
const askEvery = 10 * time.Millisecond

// A Process is a program that a test runs, with its output. Its methods are safe for concurrent use, but methods that
// can fail the test must be called from the goroutine of the test.
type Process struct {
	// In is the standard input of the program.
	In io.WriteCloser

	tb    relaytest.TB
	name  string
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended

	mu    sync.Mutex
	lines []string      // guarded by mu
	begun []byte        // guarded by mu; an incomplete last line
	more  chan struct{} // guarded by mu; closed when further lines are complete
}

// StartProcess starts a command and records its standard output and standard error. The process is killed when tb
// ends, and on Linux also when the test process dies. If tb has failed, the output is printed under name.
func StartProcess(tb relaytest.TB, name string, cmd *exec.Cmd) *Process {
	tb.Helper()
	p := &Process{tb: tb, name: name, cmd: cmd, ended: make(chan struct{}), more: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = (*output)(p), (*output)(p)
	cmd.SysProcAttr = withParent()
	var err error
	if p.In, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		tb.Fatalf("start %s: %v", name, err)
	}
	go func() { // ends with the process
		defer close(p.ended)
		_ = cmd.Wait() // most processes are killed, so the exit status does not matter
	}()
	tb.Cleanup(func() {
		p.Kill()
		if log := logger(tb); log != nil {
			log("%s has written:\n%s", name, p.Log())
		}
	})
	return p
}

// logger returns the Logf method of a test that has failed, else nil.
func logger(tb relaytest.TB) func(format string, args ...any) {
	if tb, ok := tb.(interface {
		Failed() bool
		Logf(string, ...any)
	}); ok && tb.Failed() {
		return tb.Logf
	}
	return nil
}

// output is the io.Writer for the output of a Process.
type output Process

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begun = append(o.begun, b...)
	end := bytes.LastIndexByte(o.begun, '\n')
	if end < 0 {
		return len(b), nil
	}
	o.lines = append(o.lines, strings.Split(string(o.begun[:end]), "\n")...)
	o.begun = slices.Delete(o.begun, 0, end+1)
	close(o.more)
	o.more = make(chan struct{})
	return len(b), nil
}

// Lines returns the complete lines after a mark, and a channel that is closed when there are more. See [Process.Mark].
func (p *Process) Lines(mark int) ([]string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lines[mark:len(p.lines):len(p.lines)], p.more
}

// Mark returns the number of complete lines so far.
func (p *Process) Mark() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines)
}

// Log returns the complete lines that the process has written so far.
func (p *Process) Log() string {
	lines, _ := p.Lines(0)
	return strings.Join(lines, "\n")
}

// AwaitLine waits for a line after a mark that contains text, and returns the line. It fails the test after twice
// [relaytest.Patience], or when the process has ended without such a line.
func (p *Process) AwaitLine(mark int, text string) string {
	p.tb.Helper()
	late := time.NewTimer(2 * relaytest.Patience)
	defer late.Stop()
	for ended := false; ; {
		lines, more := p.Lines(mark)
		if i := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, text) }); i >= 0 {
			return lines[i]
		}
		if ended {
			p.tb.Fatalf("%s ended without %q", p.name, text)
		}
		select {
		case <-more:
		case <-p.ended: // the output is complete, so check it once more
			ended = true
		case <-late.C:
			p.tb.Fatalf("%s did not write %q", p.name, text)
		}
	}
}

// Await polls met until it returns nil. It fails the test with the last error after [relaytest.Patience], or when the
// process has ended.
func (p *Process) Await(what string, met func() error) {
	p.tb.Helper()
	if err := p.Within(relaytest.Patience, met); err != nil {
		p.tb.Fatalf("%s: no %s: %v", p.name, what, err)
	}
}

// Within polls met until it returns nil. After limit, it returns the last error. It fails the test when the process
// has ended.
func (p *Process) Within(limit time.Duration, met func() error) error {
	p.tb.Helper()
	late := time.NewTimer(limit)
	defer late.Stop()
	again := time.NewTicker(askEvery)
	defer again.Stop()
	for {
		err := met()
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-p.ended:
			p.tb.Fatalf("%s ended: %v", p.name, err)
		case <-late.C:
			return err
		}
	}
}

// Pid returns the ID of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process. It fails the test if the process has ended.
func (p *Process) Signal(s syscall.Signal) {
	p.tb.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.tb.Fatalf("signal %s: %v", p.name, err)
	}
}

// Kill ends the process with SIGKILL and waits until it has ended. It may be called more than once.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // the process may have ended
	<-p.ended
}

// Wait waits until the process has ended and returns its exit code, which is -1 if a signal ended it. It fails the
// test after twice [relaytest.Patience].
func (p *Process) Wait() (code int) {
	p.tb.Helper()
	select {
	case <-p.ended:
	case <-time.After(2 * relaytest.Patience):
		p.tb.Fatalf("%s does not end", p.name)
	}
	return p.cmd.ProcessState.ExitCode()
}
