package conformance_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
)

// haltsSeen is the time within which a halt is known at all relays below.
const haltsSeen = 5 * time.Second

// rolloutEnv returns the settings of a relay with stages, apart from other relays.
func rolloutEnv(t testing.TB, env ...string) []string {
	return append([]string{rolloutStages, "TENDER_DELTA_VERSIONS=content", operated,
		"TENDER_SNAPSHOT_DIR=" + filepath.Join(t.TempDir(), "snapshots")}, env...)
}

// haltsAbove returns the halts of relays above that a relay shows, a line for each.
func haltsAbove(t testing.TB, r *running) string {
	t.Helper()
	var lines []string
	for _, o := range getJSON[admin.Status](t, r, "/api/v1/status").Origins {
		for _, h := range o.HaltedAbove {
			lines = append(lines, fmt.Sprintf("%s stage %d (%d): %s", h.Part, h.Stage, h.Resources, h.Reason))
		}
	}
	return strings.Join(lines, "\n")
}

// TestB55_HaltsAreShownBelow: each relay below shows what the uppermost has halted within 5 s, through a relay without rollouts,
// until it is resumed.
func TestB55_HaltsAreShownBelow(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"delta", "sotw"} {
		rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
			top := w.relay
			middle := relayBelow(top, "zone", "TENDER_ORIGIN_PROTOCOL="+protocol)
			low := relayBelow(middle, "cell", rolloutEnv(w.t, "TENDER_ORIGIN_PROTOCOL="+protocol)...)
			w.clientAt(low, v, "below", nil)
			w.clientAt(middle, v, "beside", nil)
			w.client(v, "canary", w.rejecting("cds a@2"))
			w.sleep(time.Minute)
			w.change("cds a@2")
			w.sleep(haltsSeen)
			reason := w.expectPhase(rollout.Halted, 0).Halted.Reason
			for _, r := range []*running{middle, low} {
				got := haltsAbove(w.t, r)
				w.t.Log(got)
				if !strings.HasPrefix(got, "cds/a stage 1 (1): ") || !strings.HasSuffix(got, reason) {
					w.t.Fatalf("halts: %s\nwant that of cds/a: %s", got, reason)
				}
			}
			if got := haltsAbove(w.t, top); got != "" {
				w.t.Errorf("the uppermost relay shows halts above: %s", got)
			}
			w.change("cds a@3")
			for began := time.Now(); haltsAbove(w.t, low) != ""; w.sleep(100 * time.Millisecond) {
				if time.Since(began) > haltsSeen {
					w.t.Fatalf("halts after the resumption: %s", haltsAbove(w.t, low))
				}
			}
		})
	}
}

// A teller makes an origin look like a relay that tells halts.
type teller struct {
	mu    sync.Mutex
	told  []byte // what each stream that asks is told; nil for nothing
	next  chan struct{}
	asked int // streams that asked
}

// newTeller returns a teller whose origin tells nothing before tell.
func newTeller() *teller { return &teller{next: make(chan struct{})} }

// tell tells an encoded message on all streams that ask.
func (o *teller) tell(told []byte) {
	o.mu.Lock()
	o.told = told
	close(o.next)
	o.next = make(chan struct{})
	o.mu.Unlock()
	synctest.Wait()
}

// option connects a relay to the origin as to a relay.
func (o *teller) option() grpc.DialOption {
	return grpc.WithStreamInterceptor(func(
		ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		stream, err := open(ctx, desc, cc, method, opts...)
		sent, _ := metadata.FromOutgoingContext(ctx)
		if err != nil || len(sent.Get(wire.HaltsHeader)) == 0 {
			return stream, err
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.asked++
		t := &tellingStream{ClientStream: stream, teller: o, received: make(chan error), messages: make(chan []byte)}
		go t.receive() // ends with the stream
		return t, nil
	})
}

// A tellingStream is a stream with the messages of a teller among the responses.
type tellingStream struct {
	grpc.ClientStream
	teller   *teller
	received chan error // of the origin
	messages chan []byte
	last     []byte
}

// Header returns the header of a relay that tells halts. It does not wait for that of the origin.
func (t *tellingStream) Header() (metadata.MD, error) {
	return metadata.Pairs(wire.HaltsHeader, "1"), nil
}

// receive passes on what the origin sends.
func (t *tellingStream) receive() {
	for {
		var msg wire.Message
		if err := t.ClientStream.RecvMsg(&msg); err != nil {
			select {
			case t.received <- err:
			case <-t.Context().Done():
			}
			return
		}
		select {
		case t.messages <- msg.Bytes:
		case <-t.Context().Done():
			return
		}
	}
}

// RecvMsg returns the next message of the origin or of the teller.
func (t *tellingStream) RecvMsg(m any) error {
	for {
		t.teller.mu.Lock()
		told, next := t.teller.told, t.teller.next
		t.teller.mu.Unlock()
		if told != nil && !bytes.Equal(told, t.last) {
			t.last = told
			m.(*wire.Message).Bytes = (&haltsMessage{told}).encode()
			return nil
		}
		select {
		case m.(*wire.Message).Bytes = <-t.messages:
			return nil
		case err := <-t.received:
			return err
		case <-next:
		case <-t.Context().Done():
			return t.Context().Err()
		}
	}
}

// A haltsMessage is a response that tells halts.
type haltsMessage struct{ told []byte }

func (h *haltsMessage) encode() []byte {
	body, tail := (&wire.Response{Body: wire.NewHaltsBody(h.told)}).Encode()
	return append(body.Materialize(), tail...)
}

// haltOf returns a message of a halt of each cluster, as a relay above encodes it. The first is of some time, each other one a
// nanosecond later.
func haltOf(t testing.TB, instance string, at time.Time, clusters ...proto.Message) []byte {
	t.Helper()
	answer := admin.PeerRollouts{Instance: instance}
	for i, c := range clusters {
		packed := relaytest.Pack(c)
		digest := sha256.Sum256(append([]byte(packed.TypeUrl+"\x00"), packed.Value...))
		name := c.(interface{ GetName() string }).GetName()
		answer.Halted = append(answer.Halted, admin.DecidedChanges{
			Origin: "other", Part: "cds/" + name, At: at.Add(time.Duration(i)), Reason: "a canary above", Stage: 2,
			Sections: []snapshot.RejectedSection{{
				Resources: map[string]map[string]string{typeCDS: {name: hex.EncodeToString(digest[:])}},
			}},
		})
	}
	text, err := json.Marshal(answer)
	check.OK(t, err)
	return text
}

// A toldWorld is a relay with stages whose origin looks like a relay, and a canary of its own.
type toldWorld struct {
	t      testing.TB
	origin *relaytest.Origin
	above  *teller
	relay  *running
	canary *relaytest.Client
}

// toldBubble runs f with a relay that has served the first content of a cluster.
func toldBubble(t *testing.T, f func(w *toldWorld), env ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
		w := &toldWorld{t: t, origin: o, above: newTeller()}
		opts := instance.Of(o)
		opts.Options.DialOptions = append(opts.Options.DialOptions, w.above.option())
		w.relay = startRelay(t, opts, rolloutEnv(t, env...)...)
		w.canary = w.relay.Client(relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode("canary")})
		w.canary.Subscribe(typeCDS)
		sleep(time.Minute)
		f(w)
	})
}

// status returns the rollout of the relay.
func (w *toldWorld) status() *rollout.Status {
	w.t.Helper()
	return statusOf(w.t, w.relay).Origins[0].Rollout
}

// expect fails the test unless the rollout has this phase, and the canary has the changed cluster or not.
func (w *toldWorld) expect(when string, phase rollout.Phase, changed bool) {
	w.t.Helper()
	check.Equal(w.t, when, w.status().Phase, phase)
	got := w.canary.State().Digest(typeCDS, "a") == relaytest.DigestOf(relaytest.Cluster("a", "changed"))
	check.Equal(w.t, when+": the canary has the change", got, changed)
}

// isFollowed fails the test unless the relay shows halts above that its rollout follows or not.
func (w *toldWorld) isFollowed(when string, want ...bool) {
	w.t.Helper()
	var got []bool
	for _, h := range getJSON[admin.Status](w.t, w.relay, "/api/v1/status").Origins[0].HaltedAbove {
		got = append(got, h.Followed)
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("%s: halts above are followed: %v, want %v", when, got, want)
	}
}

// TestB55_HaltsAboveAreFollowed: with TENDER_FOLLOW_HALTS, a change that a relay above has halted reaches no client until the
// relay ends the halt, or an operator promotes it here. Silence ends none, nor another process. Other content is no concern.
func TestB55_HaltsAboveAreFollowed(t *testing.T) {
	t.Parallel()
	changed, at := relaytest.Cluster("a", "changed"), time.Date(2000, 1, 1, 0, 0, 30, 0, time.UTC)
	const on = "TENDER_FOLLOW_HALTS=on"
	t.Run("halted before it arrives", func(t *testing.T) {
		toldBubble(t, func(w *toldWorld) {
			w.above.tell(haltOf(t, "one", at, changed))
			w.origin.Put(changed)
			sleep(haltsSeen)
			w.expect("halted", rollout.Halted, false)
			check.Equal(w.t, "who has halted it", w.status().Halted.Peer, w.origin.Target())
			w.above.tell([]byte(`{"instance": "another"}`)) // it does not know of the halt
			w.origin.Stop()
			sleep(time.Hour)
			w.expect("without the relay above", rollout.Halted, false)
			w.origin.Restart()
			w.above.tell(haltOf(t, "another", at, changed))
			sleep(time.Minute)
			w.expect("halted again", rollout.Halted, false)
			w.above.tell([]byte(`{"instance": "another", "incomplete": true}`)) // the halt has no room
			sleep(haltsSeen)
			w.expect("not told", rollout.Halted, false)
			check.Equal(w.t, "shown", haltsAbove(w.t, w.relay), "cds/a stage 2 (1): a canary above")
			w.above.tell([]byte(`{"instance": "another"}`))
			sleep(haltsSeen)
			w.expect("resumed above", rollout.Rolling, true)
		}, on)
	})
	t.Run("halted in a stage", func(t *testing.T) {
		toldBubble(t, func(w *toldWorld) {
			w.above.tell(haltOf(t, "one", at, relaytest.Cluster("a", "other"), relaytest.Cluster("b", "other")))
			w.origin.Put(changed)
			sleep(haltsSeen)
			w.expect("with a halt of other content", rollout.Rolling, true)
			w.isFollowed("with a halt of other content", false, false)
			w.above.tell(haltOf(t, "one", at, changed))
			sleep(haltsSeen)
			w.expect("halted", rollout.Halted, false)
			w.isFollowed("halted", true)
			operate[admin.RolloutScope, admin.Rollouts](w.t, w.relay, "rollout/promote", admin.RolloutScope{All: true})
			w.above.tell(haltOf(t, "one", at, changed, relaytest.Cluster("b", "bad")))
			sleep(haltsSeen)
			w.expect("promoted here", rollout.Current, true)
			w.isFollowed("promoted here", false, false)
		}, on)
	})
	t.Run("shown only", func(t *testing.T) {
		toldBubble(t, func(w *toldWorld) {
			w.above.tell(haltOf(t, "one", at, changed))
			w.origin.Put(changed)
			sleep(haltsSeen)
			w.expect("off", rollout.Rolling, true)
			check.Equal(w.t, "shown", haltsAbove(w.t, w.relay), "cds/a stage 2 (1): a canary above")
			all := getJSON[admin.Rollouts](w.t, w.relay, "/api/v1/rollouts").HaltedAbove["default"]
			want := []admin.HaltAbove{{Relay: w.origin.Target(), Part: "cds/a", At: at, Stage: 2, Reason: "a canary above", Resources: 1}}
			if !slices.Equal(all, want) {
				w.t.Errorf("rollouts: halts above %+v, want %+v", all, want)
			}
		})
	})
}

// TestB55_InvalidHaltsAreRefused: an invalid message is logged once and changes nothing: what was told before remains in force,
// and clients are served.
func TestB55_InvalidHaltsAreRefused(t *testing.T) {
	t.Parallel()
	at := time.Date(2000, 1, 1, 0, 0, 30, 0, time.UTC)
	valid := func(i int) []byte { return haltOf(t, fmt.Sprint("one", i), at, relaytest.Cluster("a", "changed")) }
	for name, told := range map[string][]byte{
		"empty":         {},
		"garbled":       bytes.Repeat([]byte{0xff}, 1000),
		"truncated":     valid(1)[:100],
		"large":         append(valid(1), bytes.Repeat([]byte(" "), 512<<10)...),
		"a list":        []byte(`[]`),
		"no instance":   []byte(`{"halted": []}`),
		"no part":       []byte(`{"instance": "one1", "halted": [{"at": "2000-01-01T00:00:00Z"}]}`),
		"no time":       []byte(`{"instance": "one1", "halted": [{"part": "cds/a"}]}`),
		"no resource":   []byte(`{"instance": "one1", "halted": [{"part": "cds/a", "at": "2000-01-01T00:00:00Z"}]}`),
		"a group":       bytes.Replace(valid(1), []byte(`"group":""`), []byte(`"group":"x"`), 1),
		"101 halts":     haltOf(t, "one", at, slices.Repeat([]proto.Message{relaytest.Cluster("a")}, 101)...),
		"a long part":   bytes.Replace(valid(1), []byte(`cds/a`), bytes.Repeat([]byte("x"), 5000), 1),
		"a bad time":    bytes.Replace(valid(1), []byte(`2000-01-01T00:00:30Z`), []byte(`2000-99-01T00:00:30Z`), 1),
		"a bad section": []byte(`{"instance": "one1", "halted": [{"part": "cds/a", "at": "2000-01-01T00:00:00Z", "sections": 7}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			toldBubble(t, func(w *toldWorld) {
				w.above.tell(valid(1))
				w.origin.Put(relaytest.Cluster("a", "changed"))
				sleep(haltsSeen)
				for range 3 {
					w.above.tell(told)
					w.above.tell(append(slices.Clone(told), 0))
				}
				sleep(haltsSeen)
				w.expect("after an invalid message", rollout.Halted, false)
				check.Equal(w.t, "shown", haltsAbove(w.t, w.relay), "cds/a stage 2 (1): a canary above")
				check.Equal(w.t, "warnings", strings.Count(w.relay.Log.String(), "halts of a relay above refused"), 1)
				w.origin.Put(relaytest.Endpoints("e", "127.0.0.1:1"))
				w.canary.Subscribe(relaytest.EndpointType, "e")
				sleep(time.Second)
				if !slices.Equal(w.canary.State().Names(relaytest.EndpointType), []string{"e"}) {
					w.t.Error("the canary is not served endpoints after an invalid message")
				}
				check.Equal(w.t, "streams that asked", w.above.asked, 1)
				w.above.tell([]byte(`{"instance": "one1"}`))
				sleep(haltsSeen)
				w.expect("resumed above", rollout.Rolling, true)
			}, "TENDER_FOLLOW_HALTS=on")
		})
	}
}

// TestB55_OnlyRelaysThatAskAreTold: no other client is sent anything else than responses, even one that calls itself a relay.
func TestB55_OnlyRelaysThatAskAreTold(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		conn := func(names ...string) *grpc.ClientConn {
			return w.relay.Conn(grpc.WithStreamInterceptor(func(
				ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				for _, name := range names {
					ctx = metadata.AppendToOutgoingContext(ctx, name, "0123456789abcdef")
				}
				return open(ctx, desc, cc, method, opts...)
			}))
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		asks, err := discoverypb.NewAggregatedDiscoveryServiceClient(conn(wire.RelayHeader, wire.HaltsHeader)).DeltaAggregatedResources(ctx)
		check.OK(w.t, err)
		check.OK(w.t, asks.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("asks"), TypeUrl: typeLDS}))
		var others []*relaytest.Client
		for _, names := range [][]string{nil, {wire.RelayHeader}, {wire.HaltsHeader}} {
			c := relaytest.NewClient(w.t, conn(names...), relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode("other")})
			c.Subscribe(typeCDS)
			others = append(others, c)
		}
		w.client(v, "canary", w.rejecting("cds a@2"))
		w.sleep(time.Minute)
		w.change("cds a@2")
		w.sleep(haltsSeen)
		w.expectPhase(rollout.Halted, 0)
		for i, want := range []string{"", typeLDS, ""} { // at first, the listeners, and the halt
			r, err := asks.Recv()
			check.OK(w.t, err)
			told := len(r.ProtoReflect().GetUnknown()) > 0
			if check.Equal(w.t, fmt.Sprint("type of message ", i), r.TypeUrl, want); told != (want == "") {
				w.t.Errorf("message %d tells halts: %v", i, told)
			}
		}
		for i, c := range others {
			for _, r := range c.Responses() {
				check.Equal(w.t, fmt.Sprint("type of a response to client ", i), r.TypeURL, typeCDS)
			}
		}
	})
}

// TestB55_AHaltSurvivesAFailover: on sockets, a relay that has heard of a halt, and whose relay above goes away, fails over to one
// that serves the change. It halts the change with TENDER_FOLLOW_HALTS, and starts its stages otherwise. It shows the halt.
func TestB55_AHaltSurvivesAFailover(t *testing.T) {
	noLeaks(t)
	for _, follow := range []string{"on", "off"} {
		t.Run(follow, func(t *testing.T) {
			t.Parallel()
			o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
			o.Put(relaytest.Cluster("a"))
			const wait = "TENDER_COLD_WAIT=1s" // on real clocks
			halts, serves := start(t, o, rolloutEnv(t, wait)...), start(t, o, operated, wait)
			low := startRelay(t, instance.Options{}, rolloutEnv(t, wait,
				"TENDER_ORIGIN="+halts.Target+","+serves.Target, "TENDER_FOLLOW_HALTS="+follow)...)
			canary := func(r *running, reject func(*relaytest.Response) error) *relaytest.Client {
				c := r.Client(relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode("canary"), Reject: reject})
				c.Subscribe(typeCDS)
				c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(typeCDS, "a") != relaytest.Digest{} })
				return c
			}
			changed := relaytest.DigestOf(relaytest.Cluster("a", "changed"))
			canary(halts, func(r *relaytest.Response) error {
				if slices.ContainsFunc(r.Resources, func(r relaytest.Resource) bool { return r.Digest == changed }) {
					return errors.New("a is bad")
				}
				return nil
			})
			below := canary(low, nil)
			isSettled := func(s admin.Status) bool { // otherwise clients are served the change at once
				return s.Origins[0].Rollout.WaitsFor == "" && s.Views[0].Types[0].Phase == "confirmed"
			}
			for _, r := range []*running{halts, low} {
				awaitStatus(t, r, "settled", isSettled)
			}
			o.Put(relaytest.Cluster("a", "changed"))
			isShown := func(s admin.Status) bool { return len(s.Origins[0].HaltedAbove) == 1 }
			s := awaitStatus(t, low, "with a halt above", isShown)
			check.Equal(t, "relay above", s.Origins[0].HaltedAbove[0].Relay, halts.Target)
			halts.Stop()
			if follow == "off" {
				below.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(typeCDS, "a") == changed })
			}
			s = awaitStatus(t, low, "decided", func(s admin.Status) bool { return s.Origins[0].Rollout.Phase > rollout.Held && isShown(s) })
			if halt := s.Origins[0].Rollout.Halted; follow == "on" && (halt == nil || halt.Peer != halts.Target) {
				t.Errorf("halted: %+v, want with the relay above", halt)
			} else if follow == "off" && halt != nil {
				t.Errorf("halted: %+v, want a stage", halt)
			}
			got := below.State().Digest(typeCDS, "a") == changed
			check.Equal(t, "the canary has the change", got, follow == "off")
		})
	}
}
