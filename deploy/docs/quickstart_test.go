package docs_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// TestQuickstart runs the quickstart of the README as it stands there, with an Envoy, on ports and in a directory of its
// own: the last command prints what the web server has.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	script := quickstart(t)
	dir := t.TempDir()
	for name, target := range map[string]string{"envoy": envoytest.Binary(t), "tender": tender(t)} {
		if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(mustAbs(t, root+"/deploy"), filepath.Join(dir, "deploy")); err != nil {
		t.Fatal(err)
	}
	var pairs []string
	for _, port := range []string{"10000", "8080"} {
		_, free, err := net.SplitHostPort(proxy.FreeAddress(t))
		if err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, port, free)
	}
	xds, admin := proxy.FreeAddress(t), proxy.FreeAddress(t)
	_, xdsPort, _ := net.SplitHostPort(xds)
	pairs = append(pairs, "/tmp/", dir+"/", "make build\n", "", "TENDER_ORIGIN=", fmt.Sprintf("TENDER_LISTEN=%s TENDER_ADMIN_LISTEN=%s TENDER_ORIGIN=", xds, admin),
		"s/tender.example/127.0.0.1/", "-e s/tender.example/127.0.0.1/ -e s/18000/"+xdsPort+"/ -e s/9901/0/")
	text := strings.NewReplacer(pairs...).Replace(script)
	if output := runGroup(t, dir, text); !strings.Contains("\n"+output, "\nHello through Envoy\n") {
		t.Errorf("the quickstart does not print what the web server has:\n%s\n\n%s", text, output)
	}
}

// runGroup runs a script in a process group of its own and returns what it wrote. All that it started is killed when it
// ends.
func runGroup(t *testing.T, dir, script string) string {
	t.Helper()
	written, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = written.Close() }() // it is read by its name
	ctx, cancel := context.WithTimeout(t.Context(), 2*relaytest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-e", "-c", script)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, written, written // a file: nobody waits for those who hold it open
	cmd.Env = (&place{world: new(world), dir: dir}).environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
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

// quickstart returns the script of the README that this test is named for.
func quickstart(t *testing.T) string {
	t.Helper()
	all, err := blocks("README.md", pages(t)["README.md"])
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		if b.marks["test"] == "TestQuickstart" {
			return strings.Join(b.lines, "\n")
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

// TestEnvoyVersionsOnPages holds the versions of Envoy on the pages to those that the tests run with.
func TestEnvoyVersionsOnPages(t *testing.T) {
	versions := envoytest.Versions(t)
	slices.Reverse(versions) // the newest first
	for page, want := range map[string]string{
		"README.md":                    "Tested with Envoy " + strings.Join(versions, " and ") + ".",
		"deploy/docs/compatibility.md": "| Envoy | " + strings.Join(versions, ", ") + " | `make envoy` |\n",
	} {
		if !strings.Contains(pages(t)[page], want) {
			t.Errorf("%s lacks the versions that the tests run with: %s", page, want)
		}
	}
}

// TestCompatibility holds compatibility.md to the versions of dependencies, and of the programs that make interop runs.
func TestCompatibility(t *testing.T) {
	page := pages(t)["deploy/docs/compatibility.md"]
	for _, of := range []struct{ component, file, version string }{
		{"gRPC for Go", "go.mod", `\bgoogle\.golang\.org/grpc v(\S+)`},
		{"go-control-plane", "go.mod", `envoyproxy/go-control-plane v(\S+)`},
		{"Go, to build", "go.mod", `(?m)^go (\S+)`},
		{"gRPC for Node.js (`@grpc/grpc-js-xds`)", "system/interop/testdata/grpc-js/package-lock.json", `"node_modules/@grpc/grpc-js-xds": \{\s+"version": "([^"]+)"`},
		{"Envoy Gateway", "Makefile", `gateway/cmd/envoy-gateway@v(\S+)`},
		{"envoyproxy/ratelimit", "Makefile", `ratelimit/src/service_cmd@v\S+-([0-9a-f]{12})`},
		{"MOSN", "Makefile", `mosn\.io/mosn@v(\S+)`},
	} {
		text, err := os.ReadFile(filepath.Join(root, of.file))
		if err != nil {
			t.Fatal(err)
		}
		match := regexp.MustCompile(of.version).FindSubmatch(text)
		if match == nil {
			t.Errorf("%s has no version of %s", of.file, of.component)
			continue
		}
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(of.component) + "( \\|) `?" + regexp.QuoteMeta(string(match[1])) + "\\b")
		if !row.MatchString(page) {
			t.Errorf("compatibility.md does not have %s in the version %s of %s", of.component, match[1], of.file)
		}
	}
}
