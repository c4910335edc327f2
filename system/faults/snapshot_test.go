package faults_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// awaitSnapshot waits until a directory has a snapshot.
func (r *relayProcess) awaitSnapshot(dir string) {
	r.tb.Helper()
	r.Await("snapshot", func() error {
		written, err := filepath.Glob(filepath.Join(dir, "*.snapshot"))
		if err == nil && len(written) == 0 {
			err = fs.ErrNotExist
		}
		return err
	})
}

// TestB42_KilledAmidAWrite: a relay writes its snapshot when it receives SIGTERM, and is killed some time later.
// Whatever that time is, the next relay serves a complete view of one generation without an origin.
func TestB42_KilledAmidAWrite(t *testing.T) {
	t.Parallel()
	const (
		clusters = 4000
		kills    = 8
	)
	dir := filepath.Join(t.TempDir(), "snapshots")
	origin := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	start := func() (*relayProcess, *relaytest.Client) {
		t.Helper()
		r := serve(t, "TENDER_ORIGIN="+origin.Addr(), "TENDER_NODE_ID=tender/test", "TENDER_SNAPSHOT_DIR="+dir)
		c := r.client(relaytest.Delta, "client")
		c.Subscribe(relaytest.ClusterType)
		return r, c
	}
	generation := func(n int) {
		origin.Apply(func(tx *relaytest.Tx) {
			for i := range clusters {
				name, version := fmt.Sprint("c", i), fmt.Sprint("generation ", n)
				tx.Set(relaytest.ClusterType, name, relaytest.Cluster(name, version+strings.Repeat("-", 500)), version)
			}
		})
	}
	has := func(c *relaytest.Client, n int) {
		t.Helper()
		c.WaitState(t.Context(), func(s relaytest.State) bool { return generationOf(s, clusters) == fmt.Sprint("generation ", n) })
	}
	generation(0)
	r, c := start()
	has(c, 0)
	r.awaitSnapshot(dir) // once the wildcard set is confirmed
	r.Kill()
	for n := range kills {
		r, c = start()
		generation(n + 1)
		has(c, n+1)
		r.Signal(syscall.SIGTERM)
		wait(t, time.Duration(n)*12*time.Millisecond)
		r.Kill()
	}

	origin.Stop()
	unfinished, err := filepath.Glob(filepath.Join(dir, ".*snapshot*"))
	if err != nil {
		t.Fatal(err)
	}
	_, c = start()
	c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s[relaytest.ClusterType]) == clusters })
	if got := generationOf(c.State(), clusters); got == "" {
		t.Errorf("the view mixes generations: %v", c.State()[relaytest.ClusterType]["c0"])
	} else {
		t.Log("served:", got)
	}
	for _, name := range unfinished { // only these, because the relay may be writing another file
		if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("an unfinished file was not removed: %s, %v", name, err)
		}
	}
}

// generationOf returns the common version of all clusters. It returns "" if versions differ, or if the number of
// clusters does.
func generationOf(s relaytest.State, clusters int) (version string) {
	for _, e := range s[relaytest.ClusterType] {
		if version != "" && version != e.Version {
			return ""
		}
		version = e.Version
	}
	if len(s[relaytest.ClusterType]) != clusters {
		return ""
	}
	return version
}

// wait sleeps for d. No event marks the moments that this test needs.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
