package deploy_test

import (
	"bytes"
	"context"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/xdstender/tender/deploy/docs"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestCommands runs each command on the pages. It checks the exit code, and that the output has the headings on the
// page.
func TestCommands(t *testing.T) {
	pages, err := docs.Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	t.Run("pages", func(t *testing.T) { // ends when its parallel tests have ended
		for page, text := range pages {
			all, err := docs.Blocks(page, text)
			if err != nil {
				t.Error(err)
			}
			all = slices.DeleteFunc(all, func(b *docs.Block) bool { return !b.Runs() && b.Marks["file"] == "" })
			if len(all) == 0 {
				continue
			}
			t.Run(strings.ReplaceAll(page, "/", "_"), func(t *testing.T) {
				t.Parallel()
				p := w.newPlace(t)
				for _, b := range all {
					p.run(t, b)
				}
			})
		}
	})
}

// run runs the commands of a block, or writes its file.
func (p *place) run(t *testing.T, b *docs.Block) {
	t.Helper()
	if name := b.Marks["file"]; name != "" {
		p.write(t, name, []byte(strings.Join(b.Lines, "\n")+"\n"))
		return
	}
	scripts, err := b.Scripts()
	if err != nil {
		t.Error(err)
		return
	}
	var printed strings.Builder
	for i, script := range scripts {
		if assigns(script) {
			script = "set -a\n" + script + "\ntender check"
		}
		wantCode, _ := strconv.Atoi(b.Marks["exit"]) // 0 if there is none
		until := ""
		if i == len(scripts)-1 {
			until = b.Marks["ends"]
		}
		code, output := p.execute(t, p.replacer.Replace(script), until)
		if code != wantCode {
			t.Errorf("%s: code %d, want %d\n%s\n\n%s", b, code, wantCode, script, output[max(0, len(output)-2000):])
		}
		printed.WriteString(output)
	}
	got := strings.Join(strings.Fields(printed.String()), " ")
	for _, line := range b.Output {
		if words := strings.Join(strings.Fields(line), " "); headings.MatchString(words) && !strings.Contains(got, words) {
			t.Errorf("%s: the headings %q are not in what it prints:\n%s", b, words, printed.String())
		}
	}
}

// headings matches the headings of a table.
var headings = regexp.MustCompile(`^[A-Z]+( [A-Z]+)+$`)

// execute runs a script, and returns its exit code and its output. It interrupts the script once the output contains
// until, if that is not empty.
func (p *place) execute(t *testing.T, script, until string) (code int, output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	out := &watched{what: until, seen: make(chan struct{})}
	cmd := exec.CommandContext(ctx, "sh", "-e", "-c", script)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, p.environment(), out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // ends with the process
		defer close(ended)
		_ = cmd.Wait() // how it ended is in ProcessState
	}()
	if until != "" {
		select {
		case <-out.seen:
			if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
				t.Error(err)
			}
		case <-ended:
			t.Errorf("%s\nends without having written %q:\n%s", script, until, out)
		}
	}
	<-ended
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() && s.Signal() == syscall.SIGINT && until != "" {
		return 0, out.String() // the shell
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// assignment matches a line that sets variables, and does nothing else.
var assignment = regexp.MustCompile(`^\s*(export\s+)?\w+=\S*(\s+\w+=\S*)*\s*(#.*)?$`)

// assigns reports whether a script only sets variables.
func assigns(script string) bool {
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") && !assignment.MatchString(line) {
			return false
		}
	}
	return true
}

// A watched has the output of a command.
type watched struct {
	what string
	seen chan struct{} // closed once what was written

	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.what != "" && bytes.Contains(w.buf.Bytes(), []byte(w.what))
	n, err := w.buf.Write(b)
	if w.what != "" && !before && bytes.Contains(w.buf.Bytes(), []byte(w.what)) {
		close(w.seen)
	}
	return n, err
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
