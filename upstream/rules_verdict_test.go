package upstream_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// rejected returns what clients reject of clusters in the view.
func (r *rig) rejected(names ...string) (all []upstream.Rejection) {
	for _, name := range names {
		e := r.view.Generation().Type(clusters).Wildcard.Get(r.view.FindName(clusters, name))
		all = append(all, upstream.Rejection{
			TypeURL: clusters, Name: name, Resource: e.Resource,
			Rejecting: 1, Clients: 3, At: time.Now(), Err: "no " + name,
		})
	}
	return all
}

// report tells the loop of the view what clients reject.
func (r *rig) report(rejected []upstream.Rejection) {
	r.control.Report(r.t.Context(), rejected)
	r.pass(0)
}

// verdicts returns the answers to responses since the last call, as "ACK" or the error of a NACK with the nonce and, in
// SotW, the version. seen is the number of requests before.
func (r *rig) verdicts(seen *int) string {
	var out []string
	all := r.requests()
	for _, req := range all[*seen:] {
		switch m, sotw := req.Message, req.SotW; {
		case m != nil && m.GetResponseNonce() != "":
			out = append(out, verdict(m.GetResponseNonce(), "", m.GetErrorDetail().GetMessage()))
			if len(m.GetResourceNamesSubscribe())+len(m.GetResourceNamesUnsubscribe())+len(m.GetInitialResourceVersions()) > 0 {
				r.t.Errorf("an answer with names: %v", m)
			}
		case sotw != nil && sotw.GetResponseNonce() != "":
			out = append(out, verdict(sotw.GetResponseNonce(), "@"+sotw.GetVersionInfo(), sotw.GetErrorDetail().GetMessage()))
		}
	}
	*seen = len(all)
	return strings.Join(out, ", ")
}

// requests returns the requests of all streams by time.
func (r *rig) requests() (all []relaytest.Request) {
	for _, s := range r.State().Streams {
		all = append(all, s.Requests...)
	}
	slices.SortStableFunc(all, func(a, b relaytest.Request) int { return a.At.Compare(b.At) })
	return all
}

func verdict(nonce, version, detail string) string {
	if detail == "" {
		return "ACK" + version + " of " + nonce
	}
	return "NACK" + version + " of " + nonce + ": " + detail
}

// newest returns the nonce and, in SotW, the version of the newest answer.
func (r *rig) newest(sotw bool) string {
	all := r.requests()
	last := all[len(all)-1]
	if sotw {
		return "@" + last.SotW.GetVersionInfo() + " of " + last.SotW.GetResponseNonce()
	}
	return " of " + last.Message.GetResponseNonce()
}

// bothOrigins runs a test with a Delta origin and a SotW origin.
func bothOrigins(t *testing.T, test func(t *testing.T, r *rig, sotw bool)) {
	for name, cfg := range map[string]upstream.Config{"delta": {}, "sotw": forced} {
		t.Run(name, func(t *testing.T) {
			sotw := cfg.Protocol == forced.Protocol
			inBubble(t, relaytest.Behaviour{SotW: sotw}, cfg, func(t *testing.T, r *rig) { test(t, r, sotw) })
		})
	}
}

const noA, noB = `resource "a" rejected by 1 of 3 clients: "no a"`, `resource "b" rejected by 1 of 3 clients: "no b"`

// TestB9_RejectsOfClientsAreTold: a NACK of the newest response tells the origin what clients reject, with the version of
// that response in SotW. An ACK says that they do not any more.
func TestB9_RejectsOfClientsAreTold(t *testing.T) {
	bothOrigins(t, func(t *testing.T, r *rig, sotw bool) {
		r.follow(clusters, "a@1", "b@1", "c@1")
		seen := 0
		r.verdicts(&seen)
		last := r.newest(sotw)
		r.report(r.rejected("a"))
		r.expect("the first report", r.verdicts(&seen), "NACK"+last+": "+noA)
		r.report(r.rejected("a"))
		r.pass(reportAgain)
		r.expect("the same again", r.verdicts(&seen), "")

		both := r.rejected("a", "b")
		both[1].Rejecting = 2
		r.report(both)
		r.expect("one more", r.verdicts(&seen), "NACK"+last+": "+strings.Replace(noB, "by 1", "by 2", 1)+"; "+noA)
		r.report(nil)
		r.expect("none", r.verdicts(&seen), "ACK"+last)
		r.report(nil)
		r.expect("still none", r.verdicts(&seen), "")
	})
}

const reportAgain, reportInterval = 10 * time.Minute, 10 * time.Second

// TestB9_RejectsOfOldContentAreNotTold: the answer to a response is an ACK at once. What clients reject of an earlier
// content is no news to the origin, and a content that is the newest again is told only after a while.
func TestB9_RejectsOfOldContentAreNotTold(t *testing.T) {
	bothOrigins(t, func(t *testing.T, r *rig, sotw bool) {
		r.follow(clusters, "a@1", "b@1")
		seen, old := 0, r.rejected("a")
		r.report(old)
		r.verdicts(&seen)
		r.put(clusters, "a@2")
		r.pass(time.Second)
		r.expect("new content", r.verdicts(&seen), "ACK"+r.newest(sotw))
		r.report(old)
		r.pass(time.Hour)
		r.expect("old content", r.verdicts(&seen), "")

		r.report(r.rejected("a"))
		r.expect("the new one", r.verdicts(&seen), "NACK"+r.newest(sotw)+": "+noA)
		r.put(clusters, "b@2")
		r.pass(time.Second)
		r.expect("another resource changes", r.verdicts(&seen), "ACK"+r.newest(sotw))
		r.pass(reportAgain - 3*time.Second)
		r.expect("soon after", r.verdicts(&seen), "")
		r.pass(3 * time.Second)
		r.expect("the origin was sent an ACK since", r.verdicts(&seen), "NACK"+r.newest(sotw)+": "+noA)
	})
}

// TestB9_RejectsOfClientsAndOfTheRelay: one NACK has both, and an ACK comes only when neither rejects the response.
func TestB9_RejectsOfClientsAndOfTheRelay(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{MaxResourceBytes: 100}, func(t *testing.T, r *rig) {
		r.follow(clusters, "a@1", "b@1")
		seen := 0
		r.verdicts(&seen)
		r.put(clusters, "b@"+strings.Repeat("x", 200))
		r.pass(time.Second)
		last := r.newest(false)
		own := strings.TrimPrefix(r.verdicts(&seen), "NACK"+last+": ")
		if !strings.Contains(own, "TENDER_MAX_RESOURCE_BYTES") {
			t.Fatalf("the relay answers %q", own)
		}
		r.report(r.rejected("a"))
		r.expect("clients, too", r.verdicts(&seen), "NACK"+last+": "+own+"; "+noA)
		r.report(nil)
		r.expect("no client any more", r.verdicts(&seen), "NACK"+last+": "+own)
		r.put(clusters, "b@2")
		r.pass(time.Second)
		r.expect("no resource is too large", r.verdicts(&seen), "ACK"+r.newest(false))
	})
}

// TestB9_OriginsThatAnswerNACKs: an origin that sends everything again for each NACK, or ends its stream, is told as
// rarely as any other.
func TestB9_OriginsThatAnswerNACKs(t *testing.T) {
	for _, ends := range []bool{false, true} {
		t.Run(fmt.Sprint("ends the stream: ", ends), func(t *testing.T) {
			bothOrigins(t, func(t *testing.T, r *rig, sotw bool) {
				r.follow(clusters, "a@1")
				stream := r.Accept(t.Context())
				seen, nacks := 0, 0
				r.report(r.rejected("a"))
				for range 3600 {
					if strings.Contains(r.verdicts(&seen), "NACK") {
						nacks++
						switch {
						case ends:
							stream.Close(status.New(codes.InvalidArgument, "no NACKs, please"))
							stream = r.Accept(t.Context())
						case sotw:
							stream.SendSotW(&discoverypb.DiscoveryResponse{TypeUrl: clusters, VersionInfo: "again", Nonce: fmt.Sprint("again", nacks),
								Resources: []*anypb.Any{relaytest.Opaque(clusters, "a", []byte("1"))}})
						default:
							stream.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: clusters, Nonce: fmt.Sprint("again", nacks),
								Resources: []*discoverypb.Resource{{Name: "a", Version: "again", Resource: relaytest.Opaque(clusters, "a", []byte("1"))}}})
						}
					}
					r.pass(time.Second)
				}
				if most := int(time.Hour/reportAgain) + 1; nacks < 2 || nacks > most {
					t.Errorf("%d NACKs in an hour, want 2 to %d", nacks, most)
				}
			})
		})
	}
}

// TestB9_RejectsAreTooMany: clients that reject ever other content cause a NACK for each interval, which names a few.
func TestB9_RejectsAreTooMany(t *testing.T) {
	bothOrigins(t, func(t *testing.T, r *rig, _ bool) {
		var names []string
		r.Apply(func(tx *relaytest.Tx) {
			for i := range 600 {
				names = append(names, fmt.Sprintf("c%03d", i))
				putIn(tx, clusters, names[i]+"@1")
			}
		})
		r.watch.SubscribeAll(clusters)
		r.pass(confirmed)
		seen, nacks := 0, 0
		r.verdicts(&seen)
		for i := range names {
			all := r.rejected(names[:i+1]...)
			for at := range all {
				all[at].Err = strings.Repeat("ü", 2000)
			}
			r.report(all)
			if text := r.verdicts(&seen); text != "" {
				if nacks++; len(text) > 4<<10 || i > 10 && !strings.Contains(text, "; and ") {
					t.Fatalf("%d bytes: %s", len(text), text)
				}
			}
			r.pass(time.Second)
		}
		if want := int(600 * time.Second / reportInterval); nacks < want-1 || nacks > want+1 {
			t.Errorf("%d NACKs in 10 minutes, want %d", nacks, want)
		}
		check.Equal(t, "streams", r.streams(), 1)
	})
}
