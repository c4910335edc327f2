package deploy_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/xdstender/tender/deploy/docs"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestQuickstart runs the quickstart of the README, with an Envoy, in a network and a directory of its own. The last
// command prints what the web server has.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"bin/envoy": envoytest.Binary(t), "bin/tender": envoytest.Command(t), "deploy": mustAbs(t, root+"/deploy"),
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	script := strings.NewReplacer("/tmp/", dir+"/", "make build\n", "").Replace(quickstart(t))
	if output := runGroup(t, dir, script); !strings.Contains("\n"+output, "\nHello through Envoy\n") {
		t.Errorf("the quickstart does not print what the web server has:\n%s\n\n%s", script, output)
	}
}

// runGroup runs a script in a network and a process group of its own, and returns its output. The processes that it has
// started are killed when it ends.
func runGroup(t *testing.T, dir, script string) string {
	t.Helper()
	written, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = written.Close() }() // it is read by its name
	ctx, cancel := context.WithTimeout(t.Context(), 2*relaytest.Patience)
	defer cancel()
	cmd := alone(ctx, t, "sh", "-e", "-c", script)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, written, written // a file: nobody waits for those who hold it open
	cmd.Env = append(cmd.Env, (&place{world: new(world), dir: dir}).environment()...)
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what runs in the background
	output, readErr := os.ReadFile(written.Name())
	if err := errors.Join(err, readErr); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	return string(output)
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

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}
