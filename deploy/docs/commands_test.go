package docs_test

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/xdstender/tender/relay/relaytest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(built.dir) // a temporary directory that stays does no harm
		os.Exit(code)
	}))
}

// TestCommands runs each command of the pages, and holds that it ends as the page says and
// prints the headings that the page shows.
func TestCommands(t *testing.T) {
	tests := declaredTests(t)
	w := newWorld(t)
	ran := 0
	t.Run("pages", func(t *testing.T) { // ends when its parallel tests have
		for page, text := range pages(t) {
			all, err := blocks(page, text)
			if err != nil {
				t.Error(err)
				continue
			}
			var toRun []*block
			for _, b := range all {
				if name := b.marks["test"]; name != "" && !tests[name] {
					t.Errorf("%s: there is no test %s", b, name)
				}
				if b.run() {
					ran++
				}
				if b.run() || b.marks["file"] != "" {
					toRun = append(toRun, b)
				}
			}
			t.Run(strings.ReplaceAll(page, "/", "_"), func(t *testing.T) {
				t.Parallel()
				p := w.newPlace(t)
				for _, b := range toRun {
					p.run(t, b)
				}
			})
		}
	})
	if ran < 15 {
		t.Errorf("%d blocks of commands were run, want 15 at least", ran)
	}
}

// declaredTests returns the names of the module's tests, and of those of bench.
func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	declared, names := regexp.MustCompile(`(?m)^func (Test\w+)\(`), map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, match := range declared.FindAllSubmatch(content, -1) {
			names[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// run runs the commands of a block, or writes its file.
func (p *place) run(t *testing.T, b *block) {
	t.Helper()
	if name := b.marks["file"]; name != "" {
		p.write(t, name, []byte(strings.Join(b.lines, "\n")+"\n"))
		return
	}
	scripts, err := b.scripts()
	if err != nil {
		t.Error(err)
		return
	}
	var printed strings.Builder
	for i, script := range scripts {
		if assigns(script) {
			script = "set -a\n" + script + "\ntender check"
		}
		wantCode, _ := strconv.Atoi(b.marks["exit"]) // 0 if there is none
		until := ""
		if i == len(scripts)-1 {
			until = b.marks["ends"]
		}
		code, output := p.execute(t, p.replacer.Replace(script), until)
		if code != wantCode {
			t.Errorf("%s: code %d, want %d\n%s\n\n%s", b, code, wantCode, script, output[max(0, len(output)-2000):])
		}
		printed.WriteString(output)
	}
	got := strings.Join(strings.Fields(printed.String()), " ")
	for _, line := range b.output {
		if words := strings.Join(strings.Fields(line), " "); headings.MatchString(words) && !strings.Contains(got, words) {
			t.Errorf("%s: the headings %q are not in what it prints:\n%s", b, words, printed.String())
		}
	}
}

// headings is a line of those of a table.
var headings = regexp.MustCompile(`^[A-Z]+( [A-Z]+)+$`)

// execute runs a script, and returns its exit code and what it wrote. Where it goes on until it is
// interrupted, it is, once it has written a text.
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

// watched is what a command writes.
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

var (
	// invocation is the command where one stands, with one of its commands, and the rest of the line.
	invocation = regexp.MustCompile("(?:[`$|;&(/] ?|--[ ]|=\\S* )tender ([a-z][a-z-]+)((?:[ \\t][^`|;&\\n]*)?)")
	flagged    = regexp.MustCompile(`(?:^|\s)(--[a-z][a-z-]*|-[a-zA-Z])\b`)
	target     = regexp.MustCompile("[`$] ?make ([a-z]+)")
)

// TestFlagsOnPages holds that the commands, flags and targets that pages name are there, also where
// they are not run.
func TestFlagsOnPages(t *testing.T) {
	makefile, err := os.ReadFile(root + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	help := helps(t)
	found := 0
	for page, text := range pages(t) {
		for _, match := range target.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(string(makefile), "\n"+match[1]+":") {
				t.Errorf("%s names make %s: there is no such target", page, match[1])
			}
		}
		for _, match := range codes(text) {
			for _, call := range invocation.FindAllStringSubmatch(match, -1) {
				found++
				usage, ok := help[call[1]]
				if !ok {
					t.Errorf("%s names tender %s: there is no such command", page, call[1])
				}
				for _, flag := range flagged.FindAllStringSubmatch(call[2], -1) {
					if ok && !regexp.MustCompile(`(?m)^ .*`+flag[1]+`\b`).MatchString(usage) {
						t.Errorf("%s names tender %s %s: there is no such flag", page, call[1], flag[1])
					}
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("pages name %d commands, want 40 at least", found)
	}
}

// helps returns what each command says of itself.
func helps(t *testing.T) map[string]string {
	t.Helper()
	help := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), tender(t), args...).Output()
		if err != nil {
			t.Fatalf("tender %s: %v", strings.Join(args, " "), err)
		}
		return string(out)
	}
	all := map[string]string{"help": "  ", "completion": "  "}
	for _, match := range regexp.MustCompile(`(?m)^  ([a-z-]+) +[A-Z]`).FindAllStringSubmatch(help("--help"), -1) {
		if name := match[1]; all[name] == "" {
			all[name] = help(name, "--help")
			if name == "rollout" { // whose commands have the flags
				for _, of := range []string{"status", "diff", "promote", "abort", "undo"} {
					all[name] += help(name, of, "--help")
				}
			}
		}
	}
	return all
}

var span = regexp.MustCompile("`[^`\n]+`|(?m)^ *\\$ .*$")

// codes returns what a page has between backquotes, and after "$ ".
func codes(text string) []string { return span.FindAllString(text, -1) }
