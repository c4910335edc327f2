package upstream_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// response returns a response with resources written name@version.
func response(typeURL string, resources ...string) *discoverypb.DeltaDiscoveryResponse {
	resp := &discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURL}
	for _, text := range resources {
		name, version, _ := strings.Cut(text, "@")
		resp.Resources = append(resp.Resources, &discoverypb.Resource{
			Name: name, Version: version, Resource: relaytest.Opaque(typeURL, name, []byte(version)),
		})
	}
	return resp
}

// TestR032_EveryResponseIsAnsweredOnce: the relay sends one ACK or NACK per response, with its nonce, in order of
// arrival.
func TestR032_EveryResponseIsAnsweredOnce(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Manual: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		s := r.Accept(t.Context())
		s.Recv(t.Context())
		good, bad := response(clusters, "a@1"), response(clusters, "b@1", "b@1")
		want := "[cds node]"
		for i := range 300 {
			resp := proto.CloneOf(good)
			resp.Nonce = fmt.Sprint("n", i)
			answer := "ACK"
			if i%3 == 1 {
				resp, answer = proto.CloneOf(bad), "NACK"
				resp.Nonce = fmt.Sprint("n", i)
			}
			s.Send(resp)
			want += fmt.Sprintf(" [cds %s n%d]", answer, i)
		}
		r.pass(soon)
		r.expect("stream", r.conversation(0), want)
		if st := r.State().Type(clusters); st.Unanswered() != 0 || st.Strays != 0 {
			t.Errorf("%d responses without an ACK or NACK, %d strays, want 0 and 0", st.Unanswered(), st.Strays)
		}
	})
}

// TestR033_R062_R063_NackRefusesWholeResponse: for a response that violates the protocol, the relay sends a NACK that
// names the fault. Cached resources stay.
func TestR033_R062_R063_NackRefusesWholeResponse(t *testing.T) {
	res := func(name string, typeURL string) *discoverypb.Resource {
		return &discoverypb.Resource{Name: name, Version: "2", Resource: relaytest.Opaque(typeURL, name, nil)}
	}
	tests := []struct {
		name string
		resp *discoverypb.DeltaDiscoveryResponse
		want string // part of the message of the NACK
	}{
		{"duplicate name", &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{res("a", clusters), res("dup", clusters), res("dup", clusters)}}, `"dup"`},
		{"duplicate across the lists", &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{res("b", clusters)}, RemovedResources: []string{"a", "b"}}, `"b"`},
		{"removed twice", &discoverypb.DeltaDiscoveryResponse{RemovedResources: []string{"a", "a"}}, `"a"`},
		{"resource of another type", &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{res("a", clusters), res("b", endpoints)}}, `"b"`},
		{"resource without a name", &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{res("a", clusters), res("", clusters)}}, "without a name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
				r.put(clusters, "a@1")
				r.watch.SubscribeAll(clusters)
				r.pass(soon)
				seq := r.view.Generation().Seq
				tt.resp.TypeUrl = clusters
				r.Inject(tt.resp)
				r.pass(soon)
				requests := r.State().Requests(clusters)
				last := requests[len(requests)-1].Message
				if got := last.GetErrorDetail(); codes.Code(got.GetCode()) != codes.InvalidArgument || !strings.Contains(got.GetMessage(), tt.want) {
					t.Errorf("NACK with %v, want INVALID_ARGUMENT with %s", got, tt.want)
				}
				r.expect("members", r.members(clusters), "a@1")
				if got := r.view.Generation().Seq; got != seq {
					t.Errorf("position %d after a refused response, want %d", got, seq)
				}
				// The stream continues.
				r.put(clusters, "a@2")
				r.membersAfter(soon, "members after the next response", clusters, "a@2")
				check.Equal(t, "streams", r.streams(), 1)
			})
		})
	}
}

// TestB9_R069_R091_UnusualResponsesAccepted: only the faults of B.9 cause a NACK. Unknown types, and unusual but valid
// content, do not.
func TestB9_R069_R091_UnusualResponsesAccepted(t *testing.T) {
	tests := []struct {
		name string
		resp *discoverypb.DeltaDiscoveryResponse
	}{
		{"R069 unknown name removed", &discoverypb.DeltaDiscoveryResponse{RemovedResources: []string{"nope"}}},
		{"empty response", &discoverypb.DeltaDiscoveryResponse{}},
		{"R091 system version only", &discoverypb.DeltaDiscoveryResponse{SystemVersionInfo: "7"}},
		{"resource without a body", &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{{Name: "a"}}}},
		{"unchanged resource", response(clusters, "a@1")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
				r.put(clusters, "a@1")
				r.watch.SubscribeAll(clusters)
				r.pass(10 * time.Second)
				seq := r.view.Generation().Seq
				tt.resp.TypeUrl = clusters
				r.Inject(tt.resp)
				r.pass(soon)
				st := r.State().Type(clusters)
				if st.ACKs != 2 || st.NACKs != 0 || st.Strays != 0 {
					t.Errorf("%d ACKs, %d NACKs, %d strays, want 2, 0, 0", st.ACKs, st.NACKs, st.Strays)
				}
				check.Equal(t, "position of the unchanged view", r.view.Generation().Seq, seq)
				r.expect("members", r.members(clusters), "a@1")
			})
		})
	}
}

// slowCommit is the trace of a response that takes a second to apply.
type slowCommit struct{}

// Applied implements cache.Trace.
func (slowCommit) Applied(cache.Application) fanout.Span {
	time.Sleep(time.Second) // virtual
	return nil
}

// Waits implements cache.Trace.
func (slowCommit) Waits(time.Time) {}

func (slowCommit) Waited(string, time.Time, time.Time) {}

// Answered implements upstream.Trace.
func (slowCommit) Answered(error) {}

// IDs implements upstream.Trace.
func (slowCommit) IDs() (traceID, spanID string) { return "", "" }

// TestB9_CommittedBeforeAck: a response is applied to the view before it is acknowledged.
func TestB9_CommittedBeforeAck(t *testing.T) {
	cfg := upstream.Config{Trace: func(upstream.Received) upstream.Trace { return slowCommit{} }}
	inBubble(t, relaytest.Behaviour{Manual: true}, cfg, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		s := r.Accept(t.Context())
		s.Recv(t.Context())
		sent := time.Now()
		s.Send(response(clusters, "a@1"))
		r.expect("request", received(s.Recv(t.Context())), "[cds ACK 1]")
		check.Equal(t, "time until the ACK", time.Since(sent), time.Second)
		r.expect("members at the time of the ACK", r.members(clusters), "a@1")
	})
}

// TestR088_NamesExceedRequestSize: names that exceed one request are sent in several. Only the first reports versions.
func TestR088_NamesExceedRequestSize(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, "held@1")
		names := []string{"held"}
		for i := range 1200 {
			names = append(names, fmt.Sprintf("%04d-%s", i, strings.Repeat("x", 5000)))
		}
		r.watch.Subscribe(endpoints, names)
		r.pass(time.Second)
		before := r.State().Last().Type(endpoints)
		r.Restart()
		r.pass(10 * time.Second)
		last := r.State().Last()
		if len(last.Requests) == 0 {
			t.Fatal("the origin received no request after the reconnect")
		}
		if got, want := len(last.Type(endpoints).Names), len(before.Names); got != want || want != len(names) {
			t.Errorf("%d names after the reconnect, %d before, want %d", got, want, len(names))
		}
		for i, req := range last.Requests {
			if size := proto.Size(req.Message); size > 4<<20 {
				t.Errorf("request %d has %d bytes, want at most 4 MiB", i, size)
			}
			if got := len(req.Message.GetInitialResourceVersions()); got != 0 && i > 0 {
				t.Errorf("request %d reports %d versions, want versions only in the first", i, got)
			}
		}
		check.Equal(t, "versions in the first request", len(last.Requests[0].Message.GetInitialResourceVersions()), 1)
	})
}

// TestR091_SystemVersionIsIgnored: responses that differ only in system_version_info change nothing for clients.
func TestR091_SystemVersionIsIgnored(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SystemVersion: "9"}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1")
		r.watch.SubscribeAll(clusters)
		r.pass(10 * time.Second)
		for _, system := range []string{"8", "", "9", "zebra"} {
			before := r.view.Generation()
			r.Change(func(b *relaytest.Behaviour) { b.SystemVersion = system })
			r.put(clusters, "a@1")
			r.pass(soon)
			generation := r.view.Generation()
			if before.Seq != generation.Seq || before.Type(clusters).Wildcard.Sum() != generation.Type(clusters).Wildcard.Sum() {
				t.Errorf("system version %q changed the view: position %d, want %d", system, generation.Seq, before.Seq)
			}
			check.Equal(t, "system version", generation.Type(clusters).Wildcard.System(), system)
			// The same system version does not hide a change.
			r.put(clusters, "a@2")
			r.membersAfter(soon, "members", clusters, "a@2")
			r.put(clusters, "a@1")
			r.pass(soon)
		}
	})
}

// TestR136_RequestedOnlyWhileConnected: a name counts as requested only while its stream is connected, so that no timer
// runs against an unreachable origin.
func TestR136_RequestedOnlyWhileConnected(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.Stop()
		n := r.watch.Subscribe(endpoints, []string{"a"})[0]
		r.pass(soon)
		if !n.Asked().IsZero() {
			t.Error("the name counts as requested before a stream is open")
		}
		r.Restart()
		r.pass(time.Minute)
		if n.Asked().IsZero() {
			t.Error("the name does not count as requested on an open stream")
		}
		r.Stop()
		r.pass(soon)
		late := r.watch.Subscribe(endpoints, []string{"b"})[0]
		r.pass(10 * time.Minute)
		for _, n := range []*cache.Name{n, late} {
			if !n.Asked().IsZero() {
				t.Errorf("%v counts as requested at %v without an origin", n, n.Asked())
			}
		}
		r.Restart()
		up := time.Now()
		r.pass(time.Minute)
		for _, n := range []*cache.Name{n, late} {
			if n.Asked().Before(up) {
				t.Errorf("%v requested at %v, want after %v", n, n.Asked(), up)
			}
		}
	})
}

// TestR136_SilentPortReceivesNoRequest: an origin that accepts TCP connections and sends nothing is not connected. No
// name counts as requested, even after ten minutes.
func TestR136_SilentPortReceivesNoRequest(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, "a@1")
		r.Freeze(true)
		n := r.watch.Subscribe(endpoints, []string{"a"})[0]
		for range 20 {
			r.pass(30 * time.Second)
			if !n.Asked().IsZero() || r.view.Generation().First().Connected {
				t.Fatalf("name requested at %v, connected %v; want neither", n.Asked(), r.view.Generation().First().Connected)
			}
		}
		r.Freeze(false)
		up := time.Now()
		r.pass(time.Minute)
		if n.Asked().Before(up) {
			t.Errorf("name requested at %v, want after %v", n.Asked(), up)
		}
		r.expect("named", r.named(endpoints), "a@1")
	})
}
