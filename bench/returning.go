package main

import (
	"errors"
	"fmt"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/bench/bound"
	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/serve"
	"github.com/xdstender/tender/relay/relaytest"
)

// returned is RETURN: the cost for a restarted control plane when a relay with many node groups reconnects.
func (o options) returned() scenario {
	groups := o.scaled(50)
	s := setup{
		kinds: []content.Kind{{TypeURL: content.Cluster, Count: 200, Bytes: 1024}}, groups: groups, clients: groups,
		environ: []string{"TENDER_NODE_GROUP_BY=cluster", "TENDER_MAX_GROUPS_PER_CLIENT=1000", "TENDER_COLD_WAIT=1s"},
	}
	opaque, full := s, s
	opaque.opaque = true
	full.environ = append([]string{"TENDER_RESYNC=full"}, s.environ...)
	return scenario{
		id: "RETURN", title: fmt.Sprintf("the control plane restarts below a relay with %d groups, each of 200 clusters of 1 KiB", groups), rounds: 3,
		rows: []row{
			{label: "versions are hashes", kind: "tender", setup: s, act: returning(1, uncompared)},
			{label: "compared", kind: "tender", setup: opaque, act: returning(2, quiet)},
			{label: "all at once", kind: "tender", setup: full, act: returning(1, quiet)},
		},
		checks: []check{
			{what: "CPU of the control plane", figure: cost, a: "compared", b: "versions are hashes", reported: true},
			{what: "CPU of the control plane", figure: cost, a: "compared", b: "all at once", reported: true},
			{what: "bytes", figure: sent, a: "compared", b: "all at once", reported: true},
			{what: "most bytes within a second", figure: burst, a: "compared", b: "all at once", reported: true},
		},
	}
}

const (
	// quiet and uncompared are the times without a request after which a measurement ends. uncompared is for runs in
	// which the relay might still compare content: it starts to do so 20 s after a stream was opened.
	quiet      = 3 * time.Second
	uncompared = 25 * time.Second

	// confirmed is the time before the restart in which the relay confirms its wildcard sets: it does so
	// TENDER_COLD_WAIT after the last new name.
	confirmed = 7 * time.Second
)

// returning returns an act that restarts the control plane, and measures until no request has arrived for silence. It
// expects each group to open that many streams.
func returning(streams int, silence time.Duration) func(*stage, *figures) error {
	return func(st *stage, f *figures) (err error) {
		tb := bound.New()
		defer func() { err = errors.Join(err, tb.End()) }()
		var clients []*relaytest.LightClient
		if err := tb.Do(func() { clients = follow(tb, st) }); err != nil {
			return err
		}
		time.Sleep(confirmed)
		before, err := st.changer.CPU()
		if err != nil {
			return err
		}
		received := responses(clients)
		began := time.Now()
		if err := st.changer.Call("Restart", struct{}{}, &struct{}{}); err != nil {
			return err
		}
		t, err := st.traffic(streams*st.groups, silence)
		if err != nil {
			return err
		}
		after, err := st.changer.CPU()
		if err != nil {
			return err
		}
		if now := responses(clients); now != received {
			return fmt.Errorf("the control plane restarted with what it had, and clients were sent %d responses", now-received)
		}
		f.origin = &originFigures{
			cpu: milliseconds(after - before), streams: float64(t.Streams), requests: float64(t.Requests), responses: float64(t.Responses),
			sent: float64(t.Bytes) / (1 << 20), burst: float64(t.Burst) / (1 << 20), over: time.Unix(0, t.Last).Sub(began).Seconds(),
		}
		return nil
	}
}

// follow connects one client for each node group, and waits until each has received all clusters.
func follow(tb *bound.TB, st *stage) (clients []*relaytest.LightClient) {
	for i := range st.groups {
		conn, err := grpc.NewClient(st.addresses[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			tb.Fatalf("dial: %v", err)
		}
		tb.Cleanup(func() { _ = conn.Close() }) // an error has no consequence here
		c := relaytest.NewLightClient(tb, conn, relaytest.LightOptions{Node: &corepb.Node{Id: fmt.Sprint("client-", i), Cluster: serve.GroupName(i)}})
		c.Subscribe(relaytest.ClusterType)
		clients = append(clients, c)
	}
	for _, c := range clients {
		c.WaitState(tb.Context(), func(s relaytest.State) bool { return len(s[relaytest.ClusterType]) == st.kinds[0].Count })
	}
	return clients
}

// responses returns the number of responses that all clients have received.
func responses(clients []*relaytest.LightClient) (n int) {
	for _, c := range clients {
		n += c.Counts().Responses
	}
	return n
}

// traffic waits until that many streams were opened and no request has arrived for silence.
func (st *stage) traffic(streams int, silence time.Duration) (t serve.Traffic, err error) {
	// Each call costs the control plane CPU time, which is measured, so calls are rare.
	for deadline := time.Now().Add(2 * patience); ; time.Sleep(2 * time.Second) {
		t = serve.Traffic{} // gob omits zero fields, so the old values would remain
		if err := st.changer.Call("Traffic", struct{}{}, &t); err != nil {
			return t, err
		}
		switch {
		case t.Streams > streams:
			return t, fmt.Errorf("%d streams were opened, want %d", t.Streams, streams)
		case t.Streams == streams && time.Since(time.Unix(0, t.Last)) > silence:
			return t, nil
		case time.Now().After(deadline):
			return t, fmt.Errorf("wait until %d groups have returned: not after %v, but %+v", st.groups, 2*patience, t)
		}
	}
}

// originFigures are the costs of a control plane.
type originFigures struct {
	cpu                          float64 // in ms
	streams, requests, responses float64
	names                        float64 // names in all requests, divided by the number of distinct names
	sent, burst                  float64 // MiB sent in total, and at most within a second
	over                         float64 // time until the last request, in seconds
}

// ofOrigin returns an accessor for a figure of the control plane; it is 0 if that was not measured.
func ofOrigin(figure func(originFigures) float64) func(figures) float64 {
	return func(f figures) float64 {
		if f.origin == nil {
			return 0
		}
		return figure(*f.origin)
	}
}

var (
	cost  = ofOrigin(func(f originFigures) float64 { return f.cpu })
	sent  = ofOrigin(func(f originFigures) float64 { return f.sent })
	named = ofOrigin(func(f originFigures) float64 { return f.names })
	burst = ofOrigin(func(f originFigures) float64 { return f.burst })
)
