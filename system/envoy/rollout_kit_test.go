package envoy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
	"github.com/xdstender/tender/relay/rollout"
)

// A stagedFleet is twenty Envoys of two relay replicas that distribute changes in stages. The first two Envoys are
// canaries, one of each replica. Each Envoy has a load, and a Prometheus scrapes the canaries and the replicas.
type stagedFleet struct {
	t        *testing.T
	client   client
	stages   rollout.Stages
	origin   *envoytest.ControlPlane
	backends []*envoytest.Backend // alternating endpoints of the cluster "one"
	changes  int                  // number of changes of its endpoints so far
	replicas []*envoytest.RelayProcess
	settings [][]string // variables of each replica
	saved    []string   // snapshot directory of each replica
	editions []string   // last halted edition of each replica
	envoys   []*stagedEnvoy
	good     envoytest.Config // last good configuration

	prometheus, targets string // URL of the Prometheus, and its file of targets
}

// A stagedEnvoy is one Envoy of a stagedFleet.
type stagedEnvoy struct {
	*envoytest.Envoy
	options envoytest.Options
	cohort  int
	home    int          // index of its replica
	link    *proxy.Proxy // between a canary and its replica; nil for others
	load    *envoytest.Load
}

const (
	canaries = 2
	// fleetStages has a first stage that is long enough for several scrapes.
	fleetStages = "metadata.canary=true 8s, 50% 1s"

	// fleetInterval is the interval between requests through one Envoy.
	fleetInterval = 100 * time.Millisecond

	// errorsOfCanaries is a query that returns samples while requests through canaries are answered with 5xx.
	errorsOfCanaries = `sum(rate(envoy_http_downstream_rq_xx{canary="true",envoy_response_code_class="5"}[4s])) > 0`

	// fleetQuery also returns a sample if any replica halted after the change arrived, in Unix seconds.
	fleetQuery = errorsOfCanaries + ` or max(tender_rollout_halted_time_seconds) > %d`
)

// newStagedFleet starts a fleet whose Envoys have a listener "web". Bad resources of later changes must have names
// that begin with "bad-", which onlyGood detects.
func newStagedFleet(t *testing.T, c client) *stagedFleet {
	t.Helper()
	f := &stagedFleet{t: t, client: c, origin: envoytest.NewControlPlane(t), targets: filepath.Join(t.TempDir(), "targets.json")}
	if err := f.stages.UnmarshalText([]byte(fleetStages)); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		f.backends = append(f.backends, envoytest.NewBackend(t, fmt.Sprint("backend-", i)))
	}
	f.origin.Put(web("one", f.backends[0])...)
	f.prometheus = envoytest.StartPrometheus(t, fmt.Sprintf(`
global: {scrape_interval: 1s}
scrape_configs:
- job_name: fleet
  file_sd_configs: [{files: [%q], refresh_interval: 1s}]
`, f.targets))
	for i := range 2 {
		f.saved = append(f.saved, filepath.Join(t.TempDir(), "snapshots"))
		f.settings = append(f.settings, []string{
			fmt.Sprint("TENDER_NODE_ID=tender/", i), "TENDER_LISTEN=" + proxy.FreeAddress(t), "TENDER_ADMIN_LISTEN=" + proxy.FreeAddress(t),
			"TENDER_SNAPSHOT_DIR=" + f.saved[i], "TENDER_DELTA_VERSIONS=content", "TENDER_COLD_WAIT=1s",
			"TENDER_ROLLOUT=" + fleetStages, "TENDER_ROLLOUT_CHECK=" + f.gate(),
		})
		f.replicas = append(f.replicas, envoytest.StartRelay(t, f.origin.Addr, f.settings[i]...))
		f.editions = append(f.editions, "")
	}
	for i := range 20 {
		f.envoys = append(f.envoys, f.start(i))
	}
	f.writeTargets()
	for _, e := range f.envoys {
		f.beginLoad(e)
	}
	f.good = f.envoys[canaries].Config()
	for _, e := range f.envoys {
		e.AwaitConfig(f.good)
	}
	for _, r := range f.replicas { // a last good configuration exists once the sets are confirmed
		f.envoys[0].Await("confirmed sets", func() error { return incomplete(r) })
	}
	onlyGood(t, f.others()...) // only canaries receive bad resources
	return f
}

// start starts the i-th Envoy. Variants alternate.
func (f *stagedFleet) start(i int) *stagedEnvoy {
	f.t.Helper()
	e := &stagedEnvoy{home: i % len(f.replicas)}
	e.options = f.client.speaking(ads[i%len(ads)]).options(f.replicas[e.home].Addr, fmt.Sprintf("edge-%02d", i))
	if node := e.options.Node; i < canaries {
		node.Id = fmt.Sprint("canary-", i)
		node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"canary": structpb.NewBoolValue(true)}}
		e.link = proxy.New(f.t, e.options.Server)
		e.options.Server = e.link.Addr()
	}
	e.cohort = f.stages.Cohort(e.options.Node, false)
	e.Envoy = envoytest.Start(f.t, e.options)
	return e
}

// restartReplicas kills the replicas and starts them again.
func (f *stagedFleet) restartReplicas() {
	f.t.Helper()
	for i, r := range f.replicas {
		r.Kill()
		f.replicas[i] = envoytest.StartRelay(f.t, f.origin.Addr, f.settings[i]...)
	}
}

// awaitSaved waits until the snapshots of all replicas contain a name.
func (f *stagedFleet) awaitSaved(name string) {
	f.t.Helper()
	for i, dir := range f.saved {
		f.replicas[i].Await("snapshot of "+name, func() error {
			files, _ := filepath.Glob(dir + "/*.snapshot") // the pattern is valid
			for _, file := range files {
				if content, err := os.ReadFile(file); err == nil && bytes.Contains(content, []byte(name)) {
					return nil
				}
			}
			return fmt.Errorf("not in %q", files)
		})
	}
}

// beginLoad starts the load of an Envoy once its listener "web" accepts connections.
func (f *stagedFleet) beginLoad(e *stagedEnvoy) {
	f.t.Helper()
	e.load = envoytest.StartLoad(f.t, e.Listener("web"), fleetInterval)
}

// restart kills an Envoy and starts it again, with a new load.
func (f *stagedFleet) restart(e *stagedEnvoy) {
	f.t.Helper()
	e.load.Stop()
	e.Kill()
	e.Envoy = envoytest.Start(f.t, e.options)
	f.beginLoad(e)
	f.writeTargets()
}

// reconnect makes a canary connect to a replica.
func (f *stagedFleet) reconnect(e *stagedEnvoy, to *envoytest.RelayProcess) {
	f.t.Helper()
	e.link.Forward(to.Addr)
	e.link.Cut() // discards data that is held back
	e.link.Set(proxy.Link{})
}

// canaries returns the Envoys of the first stage, and others returns all other Envoys.
func (f *stagedFleet) canaries() []*stagedEnvoy { return f.envoys[:canaries] }
func (f *stagedFleet) others() []*stagedEnvoy   { return f.envoys[canaries:] }

// onlyGood checks twice a second until the test ends that Envoys have no bad resource.
func onlyGood(t *testing.T, envoys ...*stagedEnvoy) {
	stop, watching := make(chan struct{}), new(sync.WaitGroup)
	for _, e := range envoys {
		watching.Go(func() {
			again := time.NewTicker(500 * time.Millisecond)
			defer again.Stop()
			for {
				if err := e.bad(); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-again.C:
				case <-stop:
					return
				}
			}
		})
	}
	t.Cleanup(watching.Wait) // before Envoys end
	t.Cleanup(func() { close(stop) })
}

// bad returns an error if the configuration of the Envoy contains a bad resource.
func (e *stagedEnvoy) bad() error {
	dump, err := e.Get("/config_dump?include_eds")
	if at := bytes.Index(dump, []byte(`"bad-`)); at >= 0 {
		err = fmt.Errorf("Envoy %s has a bad resource: %s", e.ID(), dump[max(0, at-200):min(len(dump), at+200)])
	}
	return err
}

// shows returns an error unless a page of the admin endpoint contains a text.
func (e *stagedEnvoy) shows(page, text string) error {
	got, err := e.Get(page)
	if err == nil && !bytes.Contains(got, []byte(text)) {
		err = fmt.Errorf("no %q in %s", text, got)
	}
	return err
}

// status returns the status of the only rollout of a replica.
func (f *stagedFleet) status(r *envoytest.RelayProcess) *rollout.Status {
	f.t.Helper()
	var all admin.Rollouts
	if err := json.Unmarshal(r.Get("/api/v1/rollouts"), &all); err != nil || len(all.Rollouts) != 1 {
		f.t.Fatalf("rollouts: %+v, %v", all, err)
	}
	return all.Rollouts[0]
}

// await waits until met returns true for the rollout of a replica.
func (f *stagedFleet) await(r *envoytest.RelayProcess, what string, met func(*rollout.Status) bool) {
	f.t.Helper()
	f.envoys[canaries].Await(what, func() error {
		if s := f.status(r); !met(s) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// halted waits until both replicas have halted a new edition, and returns their reasons.
func (f *stagedFleet) halted() (reasons []string) {
	f.t.Helper()
	for i, r := range f.replicas {
		f.await(r, "halt", func(s *rollout.Status) bool { return s.Phase == rollout.Halted && s.Edition != f.editions[i] })
		s := f.status(r)
		reasons, f.editions[i] = append(reasons, s.Halted.Reason), s.Edition
	}
	f.t.Logf("halted: %q", reasons)
	return reasons
}

// restored waits until all Envoys have exactly the last good configuration. It restores the endpoints of that first.
func (f *stagedFleet) restored() {
	f.t.Helper()
	if f.changes%len(f.backends) != 0 {
		f.moveEndpoints() // back to those of the last good configuration
	}
	for _, e := range f.envoys {
		e.AwaitConfig(f.good)
	}
}

// moveEndpoints replaces the endpoints and waits until all Envoys use the new ones.
func (f *stagedFleet) moveEndpoints() {
	f.t.Helper()
	f.changes++
	next := f.backends[f.changes%len(f.backends)]
	f.origin.Put(relaytest.Endpoints("one", next.Addr))
	for _, e := range f.envoys {
		e.Await("endpoints", func() error {
			return e.shows("/clusters", "one::"+next.Addr+"::")
		})
	}
	for _, e := range f.others() {
		before := e.load.Report().Answers[next.Name]
		e.load.Await("answers of "+next.Name, func(r envoytest.Report) bool { return r.Answers[next.Name] > before })
	}
}

// whileHalted makes the canaries reconnect to their replica, move to the other one, and restart, while endpoints
// change. After each step, all Envoys must have the last good configuration.
func (f *stagedFleet) whileHalted() {
	f.t.Helper()
	f.moveEndpoints()
	for i, e := range f.canaries() {
		f.reconnect(e, f.replicas[i])
	}
	f.restored()
	for i, e := range f.canaries() {
		f.reconnect(e, f.replicas[1-i])
	}
	f.moveEndpoints()
	f.restored()
	for i, e := range f.canaries() {
		e.link.Forward(f.replicas[i].Addr)
		f.restart(e)
	}
	f.restored()
	for _, r := range f.replicas {
		if s := f.status(r); s.Phase != rollout.Halted {
			f.t.Errorf("the rollout is %+v, want it halted", s)
		}
	}
}

// pass waits until an edition has passed all stages and all Envoys have it. listener is one of its listeners. A
// command ends the first stage early, and the second stage ends after its duration.
func (f *stagedFleet) pass(listener string) {
	f.t.Helper()
	for stage := 1; stage <= len(f.stages); stage++ {
		for i, r := range f.replicas {
			f.await(r, fmt.Sprint("stage ", stage), func(s *rollout.Status) bool { return s.Stage >= stage || s.Phase == rollout.Current })
			f.await(r, "acceptance", func(s *rollout.Status) bool {
				return s.Cohorts[stage-1].Accepted > 0 || s.Stage > stage || s.Phase == rollout.Current
			})
			for _, e := range f.envoys {
				if e.home == i && e.cohort >= stage && e.shows("/listeners", listener+"::") == nil {
					if s := f.status(r); s.Phase == rollout.Rolling && s.Stage <= stage {
						f.t.Errorf("Envoy %s of cohort %d has the edition in stage %d", e.ID(), e.cohort, stage)
					}
				}
			}
		}
		for _, r := range f.replicas {
			if stage == 1 {
				f.promote(r)
			}
		}
	}
	for _, r := range f.replicas {
		f.await(r, "promotion", func(s *rollout.Status) bool { return s.Phase == rollout.Current })
	}
	for _, e := range f.envoys {
		e.Listener(listener)
	}
	f.good = f.envoys[canaries].Config()
	f.restored()
}

// promote makes a replica serve the edition to the next stage. On a slow machine the stages may have ended already,
// which is not an error.
func (f *stagedFleet) promote(r *envoytest.RelayProcess) {
	f.t.Helper()
	resp, err := http.Post("http://"+r.Admin+"/api/v1/rollout/promote", "application/json", strings.NewReader("{}"))
	if err != nil {
		f.t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK && (resp.StatusCode != http.StatusConflict || f.status(r).Phase != rollout.Current) {
		f.t.Fatalf("promote: %s", resp.Status)
	}
}

// end stops the loads of all Envoys but the canaries. It fails the test if a request through one failed, or if one
// rejected an update or has a bad resource.
func (f *stagedFleet) end() {
	f.t.Helper()
	for _, e := range f.others() {
		if err := e.bad(); err != nil {
			f.t.Error(err)
		}
		noFault(f.t, e.Envoy, e.load.Stop())
	}
}

// writeTargets makes the Prometheus scrape the replicas and the response counters of the canaries.
func (f *stagedFleet) writeTargets() {
	f.t.Helper()
	type target struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	var all []target
	for _, r := range f.replicas {
		all = append(all, target{Targets: []string{r.Admin}})
	}
	for _, e := range f.canaries() {
		all = append(all, target{[]string{e.Admin()}, map[string]string{
			"canary": "true", "__metrics_path__": "/stats/prometheus", "__param_filter": "downstream_rq",
		}})
	}
	text, err := json.Marshal(all)
	if err == nil {
		err = os.WriteFile(f.targets+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(f.targets+".new", f.targets)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// gate starts the webhook of rollouts, which rejects an edition if fleetQuery returns samples, and returns its URL.
func (f *stagedFleet) gate() string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var edition rollout.CheckRequest
		err := json.NewDecoder(r.Body).Decode(&edition)
		samples := 0
		if err == nil {
			samples, err = f.samples(fmt.Sprintf(fleetQuery, edition.Changed.Unix()))
		}
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case samples > 0:
			http.Error(w, fmt.Sprintf("the query returned %d samples", samples), http.StatusForbidden)
		}
	}))
	f.t.Cleanup(server.Close)
	return server.URL
}

// samples returns the number of samples that a query of the Prometheus returns.
func (f *stagedFleet) samples(query string) (int, error) {
	resp, err := http.PostForm(f.prometheus+"/api/v1/query", url.Values{"query": {query}})
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	var result struct{ Data struct{ Result []any } }
	if err := json.NewDecoder(resp.Body).Decode(&result); err != nil || resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("query %s: %s: %w", query, resp.Status, err)
	}
	return len(result.Data.Result), nil
}
