package faults_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// A logged is a relay process whose stderr is a pipe that the test reads, or does not read.
type logged struct {
	met
	cmd   *exec.Cmd
	pipe  *os.File
	lines *bufio.Scanner
}

// serveLogged starts a relay process, and reads its log until it listens.
func serveLogged(t *testing.T, env ...string) *logged {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(envoytest.Command(t), "serve")
	cmd.Env = append(append(os.Environ(), "TENDER_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=127.0.0.1:0", "TENDER_DRAIN=1s"), env...)
	cmd.Stderr = w // a file, so that no goroutine of package exec reads the pipe
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close() // the process has it
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = r.Close()
	})
	l := &logged{cmd: cmd, pipe: r, lines: bufio.NewScanner(r)}
	var listening struct {
		Listen string `json:"listen"`
		Admin  string `json:"admin_listen"`
	}
	if err := json.Unmarshal([]byte(l.awaitLine(t, `"msg":"listening"`)), &listening); err != nil {
		t.Fatal(err)
	}
	l.met = met{t, listening.Listen, listening.Admin, func(path string) []byte {
		t.Helper()
		return envoytest.Page(t, nil, listening.Admin, path)
	}}
	return l
}

// awaitLine reads the log until a line contains text, and returns the line.
func (l *logged) awaitLine(t *testing.T, text string) string {
	t.Helper()
	for l.lines.Scan() {
		if strings.Contains(l.lines.Text(), text) {
			return l.lines.Text()
		}
	}
	t.Fatalf("the log ended without %q: %v", text, l.lines.Err())
	return ""
}

// ends sends SIGTERM, and verifies that streams end without an error and that the process then ends with 0, although
// nobody reads its log.
func (l *logged) ends(t *testing.T, c *relaytest.Client) {
	t.Helper()
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitEnd(within(t, relaytest.Patience)); err != io.EOF { //nolint:errorlint // as gRPC returns it
		t.Errorf("the stream of a client ended with %v, want EOF", err)
	}
	late := time.AfterFunc(2*relaytest.Patience, func() { _ = l.cmd.Process.Kill() })
	defer late.Stop()
	if err := l.cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v, want the exit code 0", err)
	}
}

// TestB43_NobodyReadsTheLog: clients receive all changes while nobody reads the log. Dropped records are counted and
// shown. Once the log is read again, it names their number. SIGTERM drains.
func TestB43_NobodyReadsTheLog(t *testing.T) {
	t.Parallel()
	plane := newControlPlane(t)
	l := serveLogged(t, "TENDER_ORIGIN="+plane.addr, "TENDER_LOG_LEVEL=debug")
	c := l.client(relaytest.Delta, strings.Repeat("long-", 200)) // each record about it is long
	subscribe(c)
	port := 1000
	floods := func() {
		t.Helper()
		for dropped := false; !dropped; {
			for range 50 {
				port++
				plane.change(port)
				served(t, port, c)
			}
			if dropped = counted(l.page("/metrics"), `tender_log_dropped_total\{level="debug"\} [1-9].*`); port > 10000 {
				t.Fatal("after 9000 changes, no record is dropped")
			}
		}
	}
	floods()
	l.counts(`tender_log_dropped_total\{level="(error|audit)"\} 0`, `tender_log_stalled_seconds [0-9.e-]+`)
	status, err := exec.Command(envoytest.Command(t), "status", "--admin", l.admin).CombinedOutput()
	if err != nil || !strings.Contains(string(status), "log records DROPPED since the start: ") {
		t.Errorf("tender status: %v, want dropped records in\n%s", err, status)
	}

	dropped := l.awaitLine(t, "log records dropped: the log was not read")
	var named struct {
		Debug int64     `json:"debug"`
		Error int64     `json:"error"`
		Since time.Time `json:"since"`
	}
	if err := json.Unmarshal([]byte(dropped), &named); err != nil || named.Debug == 0 || named.Error != 0 || named.Since.IsZero() {
		t.Errorf("the log names %s, %v", dropped, err)
	}
	port++
	plane.change(port)
	served(t, port, c)
	l.awaitLine(t, "response applied")
	floods()
	l.ends(t, c)
}

// TestB43_TheReaderOfTheLogExits: a relay whose log has no reader any longer serves its clients, and SIGTERM drains it.
func TestB43_TheReaderOfTheLogExits(t *testing.T) {
	t.Parallel()
	for _, origin := range []string{"control plane", "directory"} {
		t.Run(origin, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name string) {
				t.Helper()
				text := fmt.Sprintf("[{'@type': %s, name: %s}]\n", relaytest.ClusterType, name)
				if err := os.WriteFile(dir+"/clusters.yaml", []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			target := "file://" + dir
			if write("first"); origin == "control plane" {
				o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
				o.Put(relaytest.Cluster("first"))
				target, write = o.Addr(), func(name string) { o.Put(relaytest.Cluster(name)) }
			}
			l := serveLogged(t, "TENDER_ORIGIN="+target, "TENDER_LOG_LEVEL=debug")
			c := l.client(relaytest.Delta, "client")
			c.Subscribe(relaytest.ClusterType)
			receives := func(name string) {
				t.Helper()
				c.WaitState(within(t, relaytest.Patience), func(s relaytest.State) bool { _, has := s[relaytest.ClusterType][name]; return has })
			}
			receives("first")
			_ = l.pipe.Close() // without an error, because it was only read
			for _, name := range []string{"second", "third"} {
				write(name)
				receives(name)
			}
			l.page("/livez")
			l.ends(t, c)
		})
	}
}
