package deploy_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/xdstender/tender/deploy/docs"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestQuickstart runs the quickstart of the README exactly as it stands, on a clean machine: with a fresh copy of the
// repository, an empty home directory, an empty /tmp, a network of its own, and only the programs that the page requires.
// The last command prints what the web server has.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	m := newCleanMachine(t)
	if code, output := m.run(t, quickstart(t)); code != 0 || !strings.Contains("\n"+output, "\nHello through Envoy\n") {
		t.Errorf("the quickstart exits with %d, and prints\n%s", code, output)
	}
}

// A cleanMachine has the directories of a machine on which nothing was installed for Tender. Its /tmp has the repository,
// the home directory, and a directory with the programs.
type cleanMachine struct {
	tmp    string      // the directory that becomes /tmp
	mounts [][2]string // directories of the host, and where they are mounted
}

// The programs that the quickstart requires, and those that every Linux or macOS has, of coreutils, sed and grep.
var (
	required = []string{"go", "make", "python3", "curl"}
	basic    = []string{
		"sh", "sed", "grep", "cat", "chmod", "cp", "cut", "date", "dirname", "expr", "head", "ln", "ls", "mkdir", "mktemp", "mv", "rm", "sort",
		"tail", "touch", "tr", "uname", "uniq",
	}
)

// newCleanMachine makes the directories of the machine.
//
// What the commands of the page download is there already, in the places of the downloads: the modules of Go, and the
// Envoy, which make finds up to date. The cache of the compiler only saves time.
func newCleanMachine(t *testing.T) *cleanMachine {
	t.Helper()
	dir := t.TempDir()
	m := &cleanMachine{tmp: filepath.Join(dir, "tmp")}
	for _, name := range []string{"tmp/programs", "tmp/home/go/pkg/mod", "tmp/home/.cache/go-build", "shm"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Concat(required, basic) {
		if err := os.Symlink(program(t, name), filepath.Join(m.tmp, "programs", name)); err != nil {
			t.Fatal(err)
		}
	}
	copyRepository(t, filepath.Join(m.tmp, "tender"))
	versions := envoytest.Versions(t)
	copyFile(t, envoytest.Binary(t), filepath.Join(m.tmp, "tender/.bin/envoy-"+versions[len(versions)-1]))
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOCACHE").Output()
	caches := strings.Fields(string(out))
	if err != nil || len(caches) != 2 {
		t.Fatalf("go env: %v, %q", err, out)
	}
	m.mounts = [][2]string{
		{caches[0], filepath.Join(m.tmp, "home/go/pkg/mod")}, {caches[1], filepath.Join(m.tmp, "home/.cache/go-build")},
		{filepath.Join(dir, "shm"), "/dev/shm"}, {m.tmp, "/tmp"}, // in this order: the first ones may be in /tmp
	}
	return m
}

// program returns the path of a program. That of Python is not a script of a version manager, which needs other programs.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil && name == "python3" {
		var out []byte
		out, err = exec.Command(path, "-c", "import sys; print(sys.executable)").Output()
		path = strings.TrimSpace(string(out))
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a script in the repository, and returns its exit code and its output. The processes that it has started are
// killed when it ends.
func (m *cleanMachine) run(t *testing.T, script string) (code int, output string) {
	t.Helper()
	written, err := os.Create(filepath.Join(filepath.Dir(m.tmp), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = written.Close() }() // it is read by its name
	ctx, cancel := context.WithTimeout(t.Context(), 4*relaytest.Patience)
	defer cancel()
	cmd := alone(ctx, t, m.mounts, "sh", "-e", "-c", "cd /tmp/tender\n"+script)
	cmd.Env = append(cmd.Env, "HOME=/tmp/home", "PATH=/tmp/programs")
	cmd.Stdout, cmd.Stderr = written, written // a file: nobody waits for those who hold it open
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what runs in the background
	text, readErr := os.ReadFile(written.Name())
	if exit := new(exec.ExitError); readErr != nil || err != nil && !errors.As(err, &exit) {
		t.Fatal(errors.Join(err, readErr))
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// copyRepository copies the files of the repository, without what its .gitignore lists.
func copyRepository(t *testing.T, to string) {
	t.Helper()
	ignored := []string{".git", ".bin", "bin", "dist", "node_modules", "rapid"}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path != root && slices.Contains(ignored, entry.Name()) {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil || entry.IsDir() {
			return err
		}
		copyFile(t, path, filepath.Join(to, name))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// copyFile copies a file with its mode, and makes the directory that it is in.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }() // only read
	info, err := in.Stat()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
}

// quickstart returns the script of the README that names TestQuickstart.
func quickstart(t *testing.T) string {
	t.Helper()
	all, err := docs.Blocks("README.md", readText(t, root+"/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		if b.Marks["test"] == "TestQuickstart" {
			return strings.Join(b.Lines, "\n")
		}
	}
	t.Fatal("README.md has no quickstart")
	return ""
}
