package faults_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// keepsPages makes a relay process serve its admin pages over one connection, as to a Prometheus.
func (r *relayProcess) keepsPages(t *testing.T) {
	t.Helper()
	transport := &http.Transport{MaxConnsPerHost: 1}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport, Timeout: relaytest.Patience}
	r.page = func(path string) []byte {
		t.Helper()
		return envoytest.Page(t, client, r.admin, path)
	}
	r.page("/livez")
}

// TestB47_FileDescriptorsRunOut: the limit of open files becomes lower than the number of clients. The log, the status and the metrics
// have the reason, and clients that are connected receive changes. The relay can neither write snapshots nor reconnect to its
// origin. Once clients have disconnected, others are served and everything works again.
func TestB47_FileDescriptorsRunOut(t *testing.T) {
	t.Parallel()
	const files = 64
	origin := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	origin.Put(relaytest.Cluster("a"))
	dir := filepath.Join(t.TempDir(), "snapshots")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := serve(t, "TENDER_ORIGIN="+origin.Addr(), "TENDER_FIRST_REQUEST_TIMEOUT=10m", "TENDER_SNAPSHOT_DIR="+dir)
	r.keepsPages(t)
	check.OK(t, unix.Prlimit(r.Pid(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}, nil))
	connected := r.joins(t, "connected", "a")
	var others []net.Conn
	for range 2 * files { // the system completes the connections that the relay does not accept
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // it is closed, unless the test has failed
		others = append(others, conn)
	}
	line := r.AwaitLine(0, "client connection not accepted")
	for _, want := range []string{`"level":"WARN"`, `"reason":"file_descriptors"`, "too many open files", r.addr} {
		if !strings.Contains(line, want) {
			t.Errorf("the log has %s, want %s", line, want)
		}
	}
	r.counts(`tender_client_accepts_failed_total\{reason="file_descriptors"\} [1-9].*`)
	var status admin.Status
	if err := json.Unmarshal(r.page("/api/v1/status"), &status); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(status.Refusals); !strings.Contains(got, "file_descriptors") {
		t.Errorf("the status has the refusals %s, want file_descriptors", got)
	}
	origin.Put(relaytest.Cluster("b"))
	connected.WaitState(t.Context(), has("a", "b"))
	r.AwaitLine(0, "snapshot not written")
	accepted := r.metric("tender_client_connections")
	origin.Stop()
	r.Await("a client that takes the descriptor of the origin", func() error {
		if now := r.metric("tender_client_connections"); now <= accepted {
			return fmt.Errorf("%v connections", now)
		}
		return nil
	})
	mark := r.Mark()
	origin.Restart()
	origin.Put(relaytest.Cluster("c"))
	r.AwaitLine(mark, "socket: too many open files")

	mark = r.Mark()
	for _, conn := range others {
		check.OK(t, conn.Close())
	}
	connected.WaitState(t.Context(), has("a", "b", "c"))
	r.joins(t, "later", "a", "b", "c")
	r.AwaitLine(mark, "snapshots written again")
	r.Await("end of the state", func() error {
		conn, err := net.Dial("tcp", r.addr) // the state ends with a connection
		if err != nil {
			return err
		}
		_ = conn.Close()
		if lines, _ := r.Lines(mark); !strings.Contains(strings.Join(lines, "\n"), "client connections accepted again") {
			return fmt.Errorf("the log has %q", lines)
		}
		return nil
	})
}

// TestB47_FilesAreKeptForTheRelay: a relay whose limit of open files is low refuses connections before it has none left. It
// reconnects to its origin and writes snapshots meanwhile.
func TestB47_FilesAreKeptForTheRelay(t *testing.T) {
	t.Parallel()
	const files = 64
	limited := filepath.Join(t.TempDir(), "tender")
	// Another process writes the script: a file that this one has open for writing may not be executable after a fork.
	script := fmt.Sprintf(`printf '#!/bin/sh\nulimit -n %d\nexec %s "$@"\n' >"$0" && chmod 700 "$0"`, files, envoytest.Command(t))
	if out, err := exec.Command("sh", "-c", script, limited).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	origin, dir, env := diskWorld(t)
	p := envoytest.StartRelayOf(t, limited, "", append(env, "TENDER_FIRST_REQUEST_TIMEOUT=10m")...)
	r := &relayProcess{p.Process, met{t, p.Addr, p.Admin, p.Get}}
	r.AwaitLine(0, `"open_files":64,"max_connections":50000,"needed":50128,"accepted":32`)
	connected := r.joins(t, "connected", "c")
	for range 2 * files {
		conn, err := net.Dial("tcp", r.addr)
		check.OK(t, err)
		t.Cleanup(func() { _ = conn.Close() }) // its state does not matter
	}
	r.Await("refusals of connections", func() error {
		if n := r.metric("tender_client_refusals_total"); n < files {
			return fmt.Errorf("%v refusals", n)
		}
		return nil
	})
	r.awaitSnapshot(dir)
	origin.Restart()
	origin.Set(relaytest.ClusterType, "d", relaytest.Cluster("d"), "1")
	connected.WaitState(t.Context(), has("c", "d"))
}
