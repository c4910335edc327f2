package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// TestWaitHelp verifies that the help has the output as it is printed.
func TestWaitHelp(t *testing.T) {
	now := time.Now()
	clients := exampleFleet(now).clients[1:3]
	for i := range clients {
		clients[i].Types = clients[i].Types[:2]
	}
	s := &waitState{WaitedSeconds: 60, Relays: []relayWait{
		{
			Address: "self", Relay: "relay-0", Matching: 40, NotInSync: 2, Clients: []admin.Client{clients[1], clients[0]},
			Origins: []admin.TierOrigin{{Name: "default", Connected: true}, {Name: "eu", Error: "connection refused"}},
			Pending: []admin.PendingChange{{
				Origin: "default", Group: "shop", TypeURL: wire.ClusterType, Change: "change", Reason: "frozen", Count: 1, Names: []string{"web"},
				Since: now.Add(-9 * time.Minute), Ends: "operator", By: "alice", Note: "bad routes",
			}},
		},
		{Address: "10.0.0.2:9901", Error: "connection refused"},
		{Address: "10.0.0.3:9901", Origins: []admin.TierOrigin{{Name: "default", Connected: true}}},
	}}
	var out strings.Builder
	if err := printWait(&out, s, &waitChoice{wholeTier: true}, false, now); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(waitExample, out.String()); diff != "" {
		t.Errorf("tender wait --tier (-help +printed):\n%s", diff)
	}
	if _, help, _ := execute("wait", "--help"); !strings.Contains(help, waitExample) {
		t.Errorf("tender wait --help lacks the example:\n%s", help)
	}
}

// TestWaitArguments verifies that arguments which no state can fulfil, or that the relay refuses, fail at once.
func TestWaitArguments(t *testing.T) {
	t.Setenv(adminVariable, serveAdmin(t, "unix", admin.Status{}, func(cfg *admin.Config) { cfg.Fleet = exampleFleet(time.Now()) }))
	for args, want := range map[string]string{
		"xx":                             "type=xx: want a type URL, or a short name such as cds",
		"--timeout 1s":                   "--timeout=1s: want more than --settle (1s)",
		"--timeout 5s --settle 1m":       "--timeout=5s: want more than --settle (1m0s)",
		"--settle=-1s":                   "--settle=-1s: want 0 or more",
		"--clients=-1":                   "--clients=-1: want 0 or more",
		"-o text":                        "--output=text: want table, wide, yaml or json",
		"cds xdstp:///%zz":               "name=xdstp:///%zz: ",
		"cds" + strings.Repeat(" n", 21): "21 names: want at most 20",
	} {
		must(t, exitUsage, []string{want}, append([]string{"wait"}, strings.Fields(args)...)...)
	}
	must(t, exitUsage, []string{"TYPE is empty"}, "wait", "")
	must(t, exitUsage, []string{"a NAME is empty"}, "wait", "cds", "")
	must(t, exitFailure, []string{"TENDER_PEERS is off"}, "wait", "--tier")
	must(t, exitFailure, []string{"set --admin or TENDER_ADMIN_LISTEN"}, "wait", "--admin", proxy.Refused(t))
}

// A waited is a relay of one origin with two clusters.
type waited struct {
	*remote
	origin *relaytest.Origin
}

// startWaited starts a relay.
func startWaited(t *testing.T, env ...string) waited {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
	o.Put(relaytest.Cluster("web"), relaytest.Cluster("cart"))
	return waited{startRemote(t, instance.Options{Origins: []*relaytest.Origin{o}, Env: append(env, "TENDER_NODE_ID=relay-7")}), o}
}

// client starts a client that subscribes to all clusters.
func (w waited) client(options relaytest.ClientOptions) *relaytest.Client {
	if options.Node == nil {
		options.Node = relaytest.EnvoyNode("edge")
	}
	c := w.Client(options)
	c.Subscribe(relaytest.ClusterType, "*")
	return c
}

// TestWait verifies that the command succeeds once the clients have accepted the last change, and that it fails for each
// reason for which they do not have it.
func TestWait(t *testing.T) {
	const inSync = "in sync: 1 client of 1 relay accepted what the origin stated last"
	acking := relaytest.ClientOptions{AutoAck: true}
	for name, run := range map[string]func(*testing.T){
		"success": func(t *testing.T) {
			w := startWaited(t)
			w.client(acking)
			began := time.Now()
			must(t, exitOK, []string{inSync}, "wait")
			if waited := time.Since(began); waited < time.Second {
				t.Errorf("waited for %v, want --settle", waited)
			}
			time.Sleep(time.Minute)
			began = time.Now()
			must(t, exitOK, []string{inSync}, "wait", "--settle", "0s")
			if waited := time.Since(began); waited != 0 {
				t.Errorf("--settle 0s waited for %v", waited)
			}
		},
		"no client": func(t *testing.T) {
			startWaited(t)
			must(t, exitFailure, []string{"NOT IN SYNC after 10s: 0 clients, want at least 1 (--clients)"}, "wait", "--timeout", "10s")
			must(t, exitOK, []string{"in sync: 0 clients of 1 relay"}, "wait", "--clients", "0")
			must(t, exitFailure, []string{`there is no origin "x"`}, "wait", "--origin", "x")
		},
		"frozen": func(t *testing.T) {
			w := startWaited(t)
			w.client(acking)
			time.Sleep(time.Minute) // the set is complete
			must(t, exitOK, []string{"FROZEN"}, "freeze", "--reason", "bad routes")
			w.origin.Put(relaytest.Cluster("new"))
			must(t, exitFailure, []string{"NOT IN SYNC after 10s: 1 change is pending", "cds add frozen", "1 new bad routes"}, "wait", "--timeout", "10s")
			must(t, exitFailure, []string{"1 change is pending", "cds add frozen"}, "wait", "cds", "web", "new", "--timeout", "10s")
			for _, others := range []string{"lds --clients 0", "cds web", "--group other --clients 0"} {
				must(t, exitOK, []string{"in sync: "}, append([]string{"wait"}, strings.Fields(others)...)...)
			}
			thawed := time.AfterFunc(20*time.Second, func() { must(t, exitOK, []string{"changes are distributed"}, "thaw") })
			began := time.Now()
			if must(t, exitOK, []string{inSync}, "wait"); time.Since(began) < 20*time.Second || thawed.Stop() {
				t.Errorf("the wait ended after %v, before the thaw", time.Since(began))
			}
		},
		"interval": func(t *testing.T) {
			w := startWaited(t, "TENDER_MIN_PUSH_INTERVAL=cds=10s")
			w.client(acking)
			must(t, exitOK, []string{inSync}, "wait")
			w.origin.Put(relaytest.Cluster("new")) // within the interval of the first set
			must(t, exitFailure, []string{"1 change is pending", "cds add interval"}, "wait", "--timeout", "5s")
			must(t, exitOK, []string{inSync}, "wait")
		},
		"rejecting": func(t *testing.T) {
			w := startWaited(t)
			w.client(relaytest.ClientOptions{AutoAck: true, Reject: func(*relaytest.Response) error { return errors.New("no such filter") }})
			must(t, exitFailure, []string{"1 of 1 client is not in sync", "edge user_agent_name=envoy relay-7 rejecting REJECTED", "cds: INVALID_ARGUMENT", "no such filter"}, "wait", "--timeout", "10s")
		},
		"behind": func(t *testing.T) {
			w := startWaited(t)
			w.client(acking)
			slow := w.client(relaytest.ClientOptions{Node: relaytest.EnvoyNode("slow")})
			slow.Ack(slow.Recv(t.Context()))
			must(t, exitOK, []string{"in sync: 2 clients"}, "wait")
			w.origin.Put(relaytest.StaticCluster("web", "127.0.0.1:1"))
			synctest.Wait()
			must(t, exitFailure, []string{"1 of 2 clients are not in sync", "slow user_agent_name=envoy relay-7 behind behind 10s"}, "wait", "--timeout", "10s")
			must(t, exitFailure, []string{"1 of 2 clients are not in sync", "slow"}, "wait", "cds", "cart", "web", "--timeout", "10s")
			must(t, exitOK, []string{"in sync: 2 clients"}, "wait", "cds", "cart")
			time.AfterFunc(20*time.Second, func() { slow.Ack(slow.Recv(t.Context())) })
			must(t, exitOK, []string{"in sync: 2 clients"}, "wait")
		},
		"unknown": func(t *testing.T) {
			w := startWaited(t)
			c := w.client(acking)
			must(t, exitOK, []string{inSync}, "wait")
			w.origin.Freeze(true) // it does not answer
			c.Subscribe(relaytest.EndpointType, "nowhere")
			must(t, exitFailure, []string{"1 of 1 client is not in sync", "edge user_agent_name=envoy relay-7 unknown in sync unknown"}, "wait", "--timeout", "10s")
			must(t, exitFailure, []string{"1 of 1 client is not in sync"}, "wait", "eds", "other", "--timeout", "10s")
			must(t, exitOK, []string{inSync}, "wait", "cds")
		},
		"origin gone": func(t *testing.T) {
			w := startWaited(t)
			w.client(acking)
			must(t, exitOK, []string{inSync}, "wait")
			w.origin.Stop()
			must(t, exitFailure, []string{"NOT IN SYNC after 10s: 1 origin is not received", "origin default is NOT CONNECTED: "}, "wait", "--timeout", "10s")
			time.AfterFunc(20*time.Second, w.origin.Restart)
			must(t, exitOK, []string{inSync}, "wait", "--timeout", "5m")
		},
		"relay gone": func(t *testing.T) {
			w := startWaited(t)
			time.AfterFunc(5*time.Second, w.Stop)
			must(t, exitFailure, []string{"NOT IN SYNC after 10s: 1 relay is unknown", "UNKNOWN: request to the relay: "}, "wait", "--timeout", "10s")
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, run) })
	}
}

// TestWaitJSON verifies that the output is one object with the final state.
func TestWaitJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWaited(t)
		c := w.client(relaytest.ClientOptions{})
		for _, want := range []bool{false, true} {
			code, stdout, stderr := execute("wait", "-o", "json", "--timeout", "10s")
			checkOutput(t, "wait", stdout)
			var s waitState
			decode := json.NewDecoder(strings.NewReader(stdout))
			decode.DisallowUnknownFields()
			if err := decode.Decode(&s); err != nil || decode.More() || (code == exitOK) != want || s.InSync != want || len(s.Relays) != 1 {
				t.Fatalf("tender wait -o json: %v, code %d, %s%s, want in_sync=%t of one relay", err, code, stdout, stderr, want)
			}
			r := s.Relays[0]
			if (r.NotInSync == 0) != want || (len(r.Clients) == 0) != want || r.Matching != 1 || r.Relay != "relay-7" || len(r.Origins) != 1 || !strings.Contains(stdout, `"pending": []`) {
				t.Errorf("tender wait -o json: %s, want %t", stdout, want)
			}
			if !want {
				c.Ack(c.Recv(t.Context()))
			}
		}
	})
}

// TestWaitOfDirectory verifies that a file that the relay refuses is not what clients have.
func TestWaitOfDirectory(t *testing.T) {
	for faults, o := range map[string]admin.TierOrigin{
		"has 2 bad files: tender status":                        {Connected: true, BadFiles: 2},
		"is NOT READ: no such directory":                        {Connected: true, Error: "no such directory"},
		"has no stream for 4 node groups: NAMESPACE=a, b, c, …": {Connected: true, StaleGroups: []string{`metadata.NAMESPACE="a"`, "b", "c", "d"}},
		"has no stream for xdstp names that node groups share":  {Connected: true, StaleShared: true},
		"is NOT CONNECTED":                                      {StaleShared: true},
	} {
		r := relayWait{Origins: []admin.TierOrigin{o}}
		if got := strings.Join(originFaults(&o), "; "); got != faults || r.has() {
			t.Errorf("%+v: %q, want %q, and not in sync", o, got, faults)
		}
	}
	if r := (relayWait{Origins: []admin.TierOrigin{{Connected: true}}}); !r.has() {
		t.Error("a relay that is connected, without changes and clients, is not in sync")
	}
}

// TestWaitOfTier verifies that a relay that cannot be reached, or that says nothing of its origins, is never in sync, and
// that all others are asked.
func TestWaitOfTier(t *testing.T) {
	both := newTier(t, func(*certs.CA) []string { return nil })
	flags := append([]string{"--clients", "0", "--tier", "--admin", both.addr}, both.certificate(eve)...)
	must(t, exitOK, []string{"in sync: 0 clients of 2 relays"}, append([]string{"wait"}, flags...)...)
	must(t, exitFailure, []string{`there is no origin "x"`}, append([]string{"wait", "--origin", "x"}, flags...)...)

	broken := newTier(t, func(*certs.CA) []string { return []string{proxy.Refused(t)} })
	flags = append([]string{"--clients", "0", "--timeout", "200ms", "--settle", "100ms", "--tier", "--admin", broken.addr}, broken.certificate(eve)...)
	must(t, exitFailure, []string{": 1 relay is unknown", "relay unknown (127.0.0.1:", "UNKNOWN: ", "connection refused"}, append([]string{"wait"}, flags...)...)

	var r relayWait
	if r.addPending([]admin.TierAnswer{{Address: "self"}}, 1); r.has() {
		t.Error("a relay without an answer about pending changes is in sync")
	}
	r = relayWait{Address: "a"}
	if r.addPending([]admin.TierAnswer{{Address: "self"}, {Address: "a", Error: "broken"}}, 1); r.Error != "broken" || r.has() {
		t.Errorf("a relay whose answer is an error: %+v, want it not in sync", r)
	}
	r = relayWait{Address: "a"}
	if r.addPending([]admin.TierAnswer{{Address: "self"}, {Address: "a", Answer: []byte(fmt.Sprintf(`{"pending":[{"count":%d}]}`, 3))}}, 1); len(r.Pending) != 1 || r.has() {
		t.Errorf("a relay with a pending change: %+v, want it not in sync", r)
	}
}

// TestWaitSettles verifies that states have to be in sync for all of --settle, from the end of the first request to the
// beginning of the last, and that one that is not starts again.
func TestWaitSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &settling{settle: time.Second}
		for i, tt := range []struct {
			inSync, want bool
			pause        time.Duration
		}{
			{false, false, waitEvery}, {true, false, waitEvery}, {true, false, waitEvery}, {false, false, waitEvery},
			{true, false, waitEvery}, {true, false, waitEvery}, {true, true, 0},
		} {
			if got := l.add(tt.inSync, time.Now()); got != tt.want || l.pause() != tt.pause {
				t.Errorf("state %d: %t, pause %v, want %t, %v", i, got, l.pause(), tt.want, tt.pause)
			}
			time.Sleep(l.pause())
		}
		if !(&settling{}).add(true, time.Now()) {
			t.Error("without --settle, one state is not enough")
		}
	})
}

// An earlierTier has a peer of an earlier release, which does not say anything about its origins.
type earlierTier struct{ scriptedTier }

// Status implements [admin.Tier].
func (earlierTier) Status(_ context.Context, own *admin.TierSummary) admin.TierStatus {
	return admin.TierStatus{Relays: []admin.TierRelay{
		{Address: admin.Self, TierSummary: own}, {Address: "peer:1", TierSummary: &admin.TierSummary{NodeID: "relay-1"}},
	}}
}

// Query implements [admin.Tier].
func (earlierTier) Query(context.Context, string, string, string, time.Duration) (json.RawMessage, error) {
	return json.RawMessage(`{}`), nil
}

// TestWaitOfEarlierRelease verifies that a relay that does not say whether it receives what its origins state is unknown.
func TestWaitOfEarlierRelease(t *testing.T) {
	t.Setenv(adminVariable, serveAdmin(t, "unix", admin.Status{}, func(cfg *admin.Config) {
		pending := admin.NewCommand("pending", func(context.Context, admin.PendingChoice) (admin.Pending, error) { return admin.Pending{}, nil })
		pending.Reads, pending.Forwarded = true, true
		cfg.Commands, cfg.Fleet = []admin.Command{pending}, exampleFleet(time.Now())
		cfg.Tier = earlierTier{scriptedTier{answers: []admin.TierAnswer{{Address: "peer:1", Answer: []byte("{}")}}}}
		cfg.Summary = func() *admin.TierSummary {
			return &admin.TierSummary{NodeID: "relay-0", Origins: []admin.TierOrigin{{Name: "default", Connected: true}}}
		}
	}))
	must(t, exitFailure, []string{": 1 relay is unknown", "relay relay-1 (peer:1)", "UNKNOWN: its release does not say whether it is connected to its origins"},
		"wait", "--tier", "--clients", "0", "--settle", "0s", "--timeout", "100ms")
}
