package main

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/xdstender/tender/bench/attack"
	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/serve"
)

// TestMain makes the test binary run the roles that the driver starts.
func TestMain(m *testing.M) {
	if done, err := play(os.Args[1:]); done {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", fmt.Sprint(atATime)); err != nil {
			panic(err) // package testing defines the flag
		}
	}
	os.Exit(m.Run())
}

// atATime is how many rows the tests run at a time unless -parallel says otherwise: rows wait most of the time.
const atATime = 16

// tenderBinary builds the measured binary and returns its path.
func tenderBinary(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "tender")
	cmd := exec.Command("go", "build", "-o", binary, "./cmd/tender")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// TestServers runs small loads through the code that produces the figures.
func TestServers(t *testing.T) {
	binary := tenderBinary(t)
	t.Run("count allocations", func(t *testing.T) { countAllocations(t, binary) })
	t.Run("deliver everything", func(t *testing.T) { deliverEverything(t, binary) })
	t.Run("leave stalled clients alone", func(t *testing.T) { leaveStalledAlone(t, binary) })
	t.Run("are attacked", func(t *testing.T) { areAttacked(t, binary) })
	t.Run("distribute in stages", func(t *testing.T) { distributeInStages(t, binary) })
	t.Run("return to a control plane", func(t *testing.T) { returnToControlPlane(t, binary) })
	t.Run("keep up with changes", func(t *testing.T) { keepUp(t, binary) })
	t.Run("serve many streams", func(t *testing.T) { serveManyStreams(t, binary) })
	t.Run("serve by TLS", func(t *testing.T) { serveByTLS(t, binary) })
	t.Run("serve real Envoys", func(t *testing.T) { serveEnvoys(t, binary) })
	t.Run("run in all other scenarios", func(t *testing.T) { runOthers(t, binary) })
	t.Run("send what changed alone", func(t *testing.T) { sendWhatChangedAlone(t, binary) })
}

// deliverEverything runs ten clients and three changes with each kind of server, and checks that none is lost.
func deliverEverything(t *testing.T, binary string) {
	t.Parallel()
	const clients, changes = 10, 3
	delta := clusters(50, clients)
	own := delta
	own.workers = 0
	sotw := own
	sotw.sotw = true
	named := own
	named.interests = []load.Interest{{TypeURL: content.Cluster, Count: 50, Of: 50}}
	byName := named
	byName.workers, byName.byName = 2, true
	tree, small := delta, delta
	tree.lower = 2
	small.buffered = clients / 2
	traced, shared, secured := delta, delta, delta
	traced.sampled = 1
	shared.streams = 4
	secured.tls = true
	for _, tt := range []struct {
		name, kind string
		setup      setup
	}{
		{"raw", "raw", delta},
		{"grpc with workers", "grpc", delta},
		{"grpc with a goroutine a stream", "grpc", own},
		{"grpc SotW", "grpc", sotw},
		{"grpc by names", "grpc", byName},
		{"ads", "tender", delta.ads()},
		{"ads SotW", "tender", sotw.ads()},
		{"ads, several streams a connection", "tender", shared.ads()},
		{"ads by TLS", "tender", secured.ads()},
		{"origin", "origin", delta},
		{"tender", "tender", delta},
		{"tender SotW", "tender", sotw},
		{"tender by names", "tender", named},
		{"tree of Tenders", "tender", tree},
		{"tender with traces", "tender", traced},
		{"tender, several streams a connection", "tender", shared},
		{"grpc, several streams a connection", "grpc", shared},
		{"tender, small receive buffers", "tender", small},
		{"gcp-linear", "gcp-linear", delta},
		{"gcp-linear with Tender's options", "gcp-linear+", delta},
		{"gcp-snapshot", "gcp-snapshot", delta},
		{"gcp-snapshot with Tender's options", "gcp-snapshot+", delta},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			st, err := raise(tt.kind, binary, tt.setup)
			if err != nil {
				t.Fatal(err)
			}
			defer st.strike()
			var f figures
			if err := st.fill(&f); err != nil {
				t.Fatalf("%v%s", err, st.said())
			}
			if err := st.follow(&f, serve.Changes{TypeURL: content.Cluster, Count: changes}); err != nil {
				t.Fatalf("%v%s", err, st.said())
			}
			var p load.Progress
			if err := st.load.Call("Progress", struct{}{}, &p); err != nil {
				t.Fatal(err)
			}
			if p.Deliveries != clients*changes || p.Synced != clients || p.First != 0 {
				t.Errorf("progress after %d changes for %d clients: %+v, want each change delivered once to each client", changes, clients, p)
			}
			if !tt.setup.sotw && p.Again != 0 {
				t.Errorf("%d unchanged resources were sent again, want 0", p.Again)
			}
			if tt.setup.sampled > 0 {
				if err := st.exported(); err != nil || st.exports() == 0 {
					t.Errorf("traces were exported %d times, want at least once: %v", st.exports(), err)
				}
			}
			if err := st.total(&f); err != nil || f.totalCPU <= 0 || f.highestRSS <= 0 {
				t.Errorf("%v: figures %+v", err, f)
			}
			if f.cpu <= 0 || f.sync <= 0 || f.p50 <= 0 || f.p50 > f.p99 || f.p99 > f.max || f.bytes < 1024 {
				t.Errorf("figures %+v", f)
			}
		})
	}
}

// countAllocations checks that the number of allocated objects of each kind of server grows when clients connect.
func countAllocations(t *testing.T, binary string) {
	for _, kind := range []string{"raw", "grpc", "tender"} {
		st, err := raise(kind, binary, clusters(50, 10))
		if err != nil {
			t.Fatal(err)
		}
		defer st.strike()
		before, _, err := st.allocated()
		if err != nil || before <= 0 {
			t.Fatalf("%s: %v objects, %v", kind, before, err)
		}
		if err := st.fill(&figures{}); err != nil {
			t.Fatal(err)
		}
		if after, _, err := st.allocated(); err != nil || after <= before {
			t.Errorf("%s: %v objects before ten clients connected, %v after that, %v", kind, before, after, err)
		}
	}
}

// leaveStalledAlone checks that the other clients receive all changes while some clients have stopped reading.
func leaveStalledAlone(t *testing.T, binary string) {
	const clients, stalled, changes = 10, 2, 3
	s := clusters(50, clients)
	s.buffered = stalled
	st, err := raise("tender", binary, s)
	if err != nil {
		t.Fatal(err)
	}
	defer st.strike()
	var f figures
	if err := st.fill(&f); err != nil {
		t.Fatal(err)
	}
	if err := st.stall(); err != nil {
		t.Fatal(err)
	}
	if err := st.follow(&f, serve.Changes{TypeURL: content.Cluster, Count: changes}); err != nil {
		t.Fatalf("%v%s", err, st.said())
	}
	var p load.Progress
	if err := st.load.Call("Progress", struct{}{}, &p); err != nil {
		t.Fatal(err)
	}
	if want := (clients - stalled) * changes; p.Deliveries != want {
		t.Errorf("after %d changes: %+v, want %d deliveries", changes, p, want)
	}
}

// areAttacked runs each attack while a few clients are served: every second one with the transport ads, or all of them with both if
// FULL is set.
func areAttacked(t *testing.T, binary string) {
	t.Parallel()
	for _, r := range (options{scale: 0.02, tender: binary}).hostile().rows {
		kind, ads := strings.CutSuffix(r.label, ", ads")
		if i := slices.Index(attack.Kinds(), kind); os.Getenv("FULL") == "" && i >= 0 && ads != (i%2 == 1) {
			continue
		}
		t.Run(r.label, func(t *testing.T) {
			t.Parallel()
			r.setup.clients = 10
			f, err := r.run(options{tender: binary})
			if err != nil {
				t.Fatal(err)
			}
			if f.p99 <= 0 || f.peace.p99 <= 0 || f.onset.p99 <= 0 || f.cores <= 0 || f.join <= 0 || f.peace.join <= 0 {
				t.Errorf("figures %+v, before the attack %+v, at its start %+v", f, f.peace, f.onset)
			}
		})
	}
}

// distributeInStages runs the rows of ROLLOUT, which measure changes that an open rollout does not hold back.
func distributeInStages(t *testing.T, binary string) {
	t.Parallel()
	for _, r := range (options{scale: 0.02}).rollouts().rows {
		t.Run(r.label, func(t *testing.T) {
			t.Parallel()
			f, err := r.run(options{tender: binary})
			if err != nil {
				t.Fatal(err)
			}
			if f.cpu <= 0 || f.p50 <= 0 || f.p50 > f.p99 {
				t.Errorf("figures %+v", f)
			}
		})
	}
}

// keepUp runs the rows of OBSERVER with few streams for a short time. Lost deliveries are errors of a row. What rate is held
// depends on the machine.
func keepUp(t *testing.T, binary string) {
	t.Parallel()
	o := options{scale: 1, tender: binary, streams: 400, lasts: 2 * time.Second, rate: 2000}
	for _, r := range o.observer().rows {
		t.Run(r.label, func(t *testing.T) {
			t.Parallel()
			f, err := r.run(o)
			if err != nil {
				t.Fatal(err)
			}
			if f.cpu <= 0 || f.p50 <= 0 || f.p50 > f.p99 || f.byCPU <= 0 || f.held <= 0 || f.kept <= 0 || f.resident <= 0 {
				t.Errorf("figures %+v", f)
			}
			if last := f.steps[len(f.steps)-1]; last.lasts != o.lasts || last.held() != (f.rate == last.rate) {
				t.Errorf("rate %v, want that of the last step %+v if it was held", f.rate, last)
			}
		})
	}
}

// TestHighestRate verifies that the search finds what servers of several capacities keep up with, in few tries.
func TestHighestRate(t *testing.T) {
	const least, most = 10, 10_240
	for _, tt := range []struct{ capacity, want, tries float64 }{
		{9, 0, 8}, {10, 10, 9}, {100, 95, 6}, {640, 640, 4}, {1000, 905, 4}, {1300, 1280, 5}, {9000, 8610, 7}, {20_000, most, 5},
	} {
		tries := 0.0
		got, err := highestRate(least, most, func(rate float64) (bool, error) {
			tries++
			return rate <= tt.capacity, nil
		})
		if err != nil || math.Floor(got) != tt.want || tries > tt.tries {
			t.Errorf("capacity %v: found %v after %v tries, %v; want %v after at most %v", tt.capacity, got, tries, err, tt.want, tt.tries)
		}
	}
	broken := errors.New("a delivery was lost")
	if _, err := highestRate(least, most, func(float64) (bool, error) { return true, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v, want that of the measurement", err)
	}
}

// serveManyStreams runs the rows of SCALE, with shared connections and with many connections.
func serveManyStreams(t *testing.T, binary string) {
	t.Parallel()
	for _, r := range (options{scale: 0.02}).atScale().rows {
		t.Run(r.label, func(t *testing.T) {
			t.Parallel()
			f, err := r.run(options{tender: binary})
			if err != nil {
				t.Fatal(err)
			}
			if f.cpu <= 0 || f.p50 <= 0 || f.p50 > f.p99 || f.resident <= 0 {
				t.Errorf("figures %+v", f)
			}
		})
	}
}

// serveByTLS runs the rows of TLS: clients connect, receive and reconnect in plaintext and with mutual TLS.
func serveByTLS(t *testing.T, binary string) {
	t.Parallel()
	for _, r := range (options{scale: 0.02}).secured().rows {
		t.Run(r.label, func(t *testing.T) {
			t.Parallel()
			r.setup.clients = min(r.setup.clients, 20)
			f, err := r.run(options{tender: binary})
			if err != nil {
				t.Fatal(err)
			}
			idle := strings.HasPrefix(r.label, "idle")
			if idle != (f.heap > 0) || !idle && (f.sync <= 0 || f.syncCPU <= 0) || f.totalCPU <= 0 || f.highestRSS <= 0 {
				t.Errorf("figures %+v", f)
			}
			if herd := f.peace != nil; herd != strings.HasPrefix(r.label, "herd") || herd && (f.p99 <= 0 || f.peace.p99 <= 0) {
				t.Errorf("figures %+v, before the herd %+v", f, f.peace)
			}
			if returns := strings.HasPrefix(r.label, "return"); returns && (f.connects <= 0 || (f.resumed == 100) != r.setup.resume || f.again != 0) {
				t.Errorf("figures %+v, want resumed sessions if the server resumes them, and nothing sent again", f)
			}
		})
	}
}

// returnToControlPlane runs the rows of RETURN with a few node groups.
func returnToControlPlane(t *testing.T, binary string) {
	t.Parallel()
	for _, r := range (options{scale: 0.02}).returned().rows {
		t.Run(r.label, func(t *testing.T) {
			t.Parallel()
			f, err := r.run(options{tender: binary})
			if err != nil {
				t.Fatal(err)
			}
			o := f.origin
			if o.cpu <= 0 || o.requests < o.streams || o.responses < o.streams || o.sent <= 0 || o.burst > o.sent || o.over <= 0 {
				t.Errorf("figures %+v", o)
			}
			if content := float64(4*200) / 1024; (o.sent > content) != (r.label != "versions are hashes") {
				t.Errorf("%.2f MiB were sent, all content is %.2f MiB", o.sent, content)
			}
		})
	}
}

// serveEnvoys runs a few real Envoys that connect to a relay, and then directly to go-control-plane.
func serveEnvoys(t *testing.T, binary string) {
	for _, r := range (options{scale: 0.02}).fleet().rows {
		t.Run(r.label, func(t *testing.T) {
			f, err := r.run(options{tender: binary})
			if err != nil {
				t.Fatal(err)
			}
			if f.sync <= 0 || f.syncCPU <= 0 || f.held <= 0 || f.cpu <= 0 || f.p50 <= 0 || f.p50 > f.reached || f.reached > f.max {
				t.Errorf("figures %+v", f)
			}
		})
	}
}

// runOthers runs the rows of all scenarios that no other test runs, at a fiftieth of their size or less. Eight rows run
// at a time, since they spend much of the time waiting. It skips rows that run only in the first round.
func runOthers(t *testing.T, binary string) {
	t.Parallel()
	o := options{scale: 0.02, tender: binary}
	others := []string{o.hostile().id, o.rollouts().id, o.atScale().id, o.observer().id, o.secured().id, o.returned().id, o.fleet().id, o.model().id}
	slots := make(chan struct{}, 8)
	var running sync.WaitGroup
	for _, s := range scenarios(o) {
		if slices.Contains(others, s.id) {
			continue
		}
		for _, r := range s.rows {
			if r.once {
				continue
			}
			r.setup.clients = min(r.setup.clients, 8)
			slots <- struct{}{}
			running.Go(func() { // awaited below
				defer func() { <-slots }()
				if f, err := r.run(o); err != nil || f.totalCPU <= 0 || f.highestRSS <= 0 {
					t.Errorf("%s, %s: figures %+v, %v", s.id, r.label, f, err)
				}
			})
		}
	}
	running.Wait()
}

// TestChecksNameRows verifies that each check refers to existing rows.
func TestChecksNameRows(t *testing.T) {
	for _, s := range scenarios(options{scale: 1}) {
		for _, c := range s.checks {
			for _, label := range []string{c.a, c.b} {
				if label != "" && !slices.ContainsFunc(s.rows, func(r row) bool { return r.label == label }) {
					t.Errorf("%s: a check of %q names the row %q, which does not exist", s.id, c.what, label)
				}
			}
		}
	}
}

// TestGOGC verifies that the GOGC of a row takes precedence over the flag -gogc.
func TestGOGC(t *testing.T) {
	var got []string
	r := row{kind: "raw", setup: clusters(1, 1), act: func(st *stage, _ *figures) error {
		got = st.environ
		return nil
	}}
	r.setup.environ = tracing
	if _, err := r.run(options{gogc: "50"}); err != nil {
		t.Fatal(err)
	}
	if want := append([]string{"GOGC=50"}, tracing...); !slices.Equal(got, want) {
		t.Errorf("environment %q, want %q", got, want)
	}
}

// sendWhatChangedAlone verifies that reconnecting clients receive only the changed resource.
func sendWhatChangedAlone(t *testing.T, binary string) {
	for _, kind := range []string{"grpc", "tender"} {
		var f figures
		st, err := raise(kind, binary, clusters(20, 10))
		if err != nil {
			t.Fatal(err)
		}
		defer st.strike()
		if err := st.fill(&f); err != nil {
			t.Fatal(err)
		}
		if err := st.dropAndReturn(&f); err != nil {
			t.Fatal(err)
		}
		if f.again != 0 || f.sync <= 0 {
			t.Errorf("%s: figures %+v, want no unchanged resource sent again", kind, f)
		}
	}
}

// TestLostDeliveryIsAnError compares the clients with a change that the server has not
// sent.
func TestLostDeliveryIsAnError(t *testing.T) {
	l, err := load.New()
	if err != nil {
		t.Fatal(err)
	}
	server := serve.New("raw")
	var address string
	kinds := []content.Kind{{TypeURL: content.Cluster, Count: 3, Bytes: 256}}
	if err := server.Start(serve.Options{Kinds: kinds}, &address); err != nil {
		t.Fatal(err)
	}
	interests := []load.Interest{{TypeURL: content.Cluster, Wildcard: true, Of: 3}}
	if err := l.Open(load.Open{Addresses: []string{address}, Interests: interests, Clients: 2, All: 2}, &struct{}{}); err != nil {
		t.Fatal(err)
	}
	var p load.Progress
	for p.Synced < 2 {
		if err := l.Progress(struct{}{}, &p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // the load generator can only be polled
	}
	latest := map[string][]content.Stamp{content.Cluster: {{Index: 0}, {Index: 1, Change: 1}, {Index: 2}}}
	n := 0
	if err := l.Differences(latest, &n); err != nil || n != 2 {
		t.Errorf("differences %d, %v, want one of each client", n, err)
	}
}
