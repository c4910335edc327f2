package conformance_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest"
)

// Each origin has versions of its own: a change at the one leaves those of the
// other's types as they are, if two relays stand for them and if one does, with a
// view of each.
func TestR025_VersionsAreApartForEachOrigin(t *testing.T) {
	t.Parallel()
	type side struct {
		content *relaytest.Content
		client  *relaytest.Client
	}
	apart := func(t *testing.T, clusters, endpoints side) {
		clusters.content.Put(relaytest.Cluster("a"), relaytest.Endpoints("a", "127.0.0.1:9"))
		endpoints.content.Put(relaytest.Cluster("a"), relaytest.Endpoints("a", "127.0.0.1:9"))
		ask := func(s side, typeURL string) string {
			s.client.Subscribe(typeURL, "a")
			return streamTake(t, s.client, typeURL, "a").Version
		}
		before := ask(endpoints, streamEDS)
		first := ask(clusters, streamCDS)
		clusters.content.Put(relaytest.Cluster("a", "other"), relaytest.Endpoints("a", "127.0.0.1:10"))
		if v := streamTake(t, clusters.client, streamCDS, "a").Version; v == first {
			t.Errorf("version %q stands for two sets", v)
		}
		streamQuiet(t, endpoints.client, time.Minute)
		endpoints.client.Unsubscribe(streamEDS, "a")
		if after := ask(endpoints, streamEDS); after != before {
			t.Errorf("version %q became %q by a change at the other origin", before, after)
		}
	}
	sotw := func(cluster string) relaytest.ClientOptions {
		return relaytest.ClientOptions{Variant: relaytest.SotW, Node: streamNode(func(n *corepb.Node) { n.Cluster = cluster })}
	}
	t.Run("two relays", func(t *testing.T) {
		streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
			p := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
			apart(t, side{o.Content, start(t, o).Client(sotw("one"))}, side{p.Content, start(t, p).Client(sotw("one"))})
		})
	})
	t.Run("two views", func(t *testing.T) {
		streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
			two := o.For(func(n *corepb.Node) bool { return n.GetCluster() == "two" })
			r := start(t, o, "TENDER_NODE_GROUP_BY=cluster")
			apart(t, side{o.Content, r.Client(sotw("one"))}, side{two, r.Client(sotw("two"))})
		})
	})
}

// A client that returns while it warms its clusters asks for endpoints and secrets first,
// and maybe never for clusters. Each type is answered when it is asked for, endpoints and
// secrets also where the client says that it holds them (B.3), and none waits for
// clusters or for the rest of the names.
func TestC05_TypesAreAnsweredAsTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	for _, relay := range []string{"warm", "cold"} {
		t.Run(relay, func(t *testing.T) {
			streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
				o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
				types := []string{streamEDS, relaytest.SecretType, streamRDS, streamCDS, streamLDS}
				for _, typeURL := range types {
					for _, name := range []string{"a", "b"} {
						o.Set(typeURL, name, relaytest.Opaque(typeURL, name, nil), "1")
					}
				}
				r := start(t, o)
				held := make(map[string]string) // SotW versions
				ask := func(c *relaytest.Client, typeURL string, names ...string) {
					if v == relaytest.Delta {
						c.Send(streamDelta(relaytest.EnvoyNode("client"), typeURL, names, map[string]string{"a": "1"}))
					} else {
						c.Send(streamReturning(typeURL, held[typeURL], names...))
					}
				}
				if relay == "warm" {
					before := r.Client(relaytest.ClientOptions{Variant: v})
					for _, typeURL := range types {
						before.Subscribe(typeURL, "a")
						held[typeURL] = streamTake(t, before, typeURL, "a").Version
					}
					before.Close()
				}
				c := r.Client(relaytest.ClientOptions{Variant: v})
				for _, typeURL := range []string{streamEDS, relaytest.SecretType} {
					ask(c, typeURL, "a", "missing")
					c.Ack(oddWant(t, c, orderShort(typeURL), "a"))
				}
				for _, typeURL := range []string{streamEDS, relaytest.SecretType} {
					o.Set(typeURL, "a", relaytest.Opaque(typeURL, "a", []byte("changed")), "2")
					c.Ack(oddWant(t, c, orderShort(typeURL)+" changed", "a"))
				}
				ask(c, streamRDS, "b", "missing")
				c.Ack(oddWant(t, c, "routes", "b"))
				ask(c, streamLDS, "b") // and no clusters
				c.Ack(oddWant(t, c, "listeners", "b"))
			})
		})
	}
}

// A refusal is said in the log, with the response that it is of and the client's
// words, at a bounded rate; it changes nothing for the stream's other types, for
// other clients, and for the origin.
func TestB10_ARefusalIsRecordedAndNoMore(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"), streamRoute("r", "0"))
		r := start(t, o)
		other := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		other.Subscribe(streamRDS, "r")
		c := r.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(streamCDS, "*")
		streamTake(t, c, streamCDS, "a")
		c.Subscribe(streamRDS, "r")
		const refusals = 50
		for i := range refusals {
			resp := c.Recv(t.Context())
			streamHas(t, resp, streamRDS, "r")
			c.Send(streamAnswer(v, resp, "", "not this one", "r"))
			synctest.Wait()
			if i == 0 && r.Log.Count("nonce="+resp.Nonce+" code=13 detail=\"not this one\"") != 1 {
				t.Error("the log does not have the nonce, the code and the words of a refusal")
			}
			if c.TryRecv() != nil {
				t.Fatal("what was refused was sent again")
			}
			o.Put(streamRoute("r", fmt.Sprint(i+1)))
		}
		if n := r.Log.Count("client refused a response"); n < 1 || n > refusals/2 {
			t.Errorf("%d of %d refusals at once were logged", n, refusals)
		}
		synctest.Wait()
		if got, want := other.State().Digest(streamRDS, "r"), o.Resources().Digest(streamRDS, "r"); got != want {
			t.Errorf("the other client has %v, want %v", got, want)
		}
		streamTake(t, c, streamRDS, "r") // the last change
		o.Put(relaytest.Cluster("a", "changed"))
		streamTake(t, c, streamCDS, "a")
		if n := o.State().Type(streamRDS).NACKs; n != 0 {
			t.Errorf("%d refusals reached the origin", n)
		}
	})
}

// A name that is asked for again is sent again out of what the relay holds: the origin is
// not asked, since not every origin answers twice.
func TestC07_AskedForAgainOfTheRelayAlone(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		for _, typeURL := range []string{streamCDS, streamEDS, streamAcmeType} {
			o.Set(typeURL, "a", relaytest.Opaque(typeURL, "a", []byte("held")), "1")
			c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
			c.Subscribe(typeURL, "a")
			streamTake(t, c, typeURL, "a")
			synctest.Wait() // for the relay's ACK
			asked := len(o.State().Requests(typeURL))
			again := func() {
				t.Helper()
				r := streamNext(t, c)
				streamHas(t, r, typeURL, "a")
				c.Ack(r)
			}
			for range 2 {
				c.Unsubscribe(typeURL, "a")
				c.Subscribe(typeURL, "a")
				again()
				if v == relaytest.Delta {
					c.Send(streamRequest(v, typeURL, "", "a")) // held all the while
					again()
				}
				time.Sleep(time.Minute) // shorter than the linger
			}
			if n := len(o.State().Requests(typeURL)); n != asked {
				t.Errorf("%s: the origin got %d more requests", typeURL, n-asked)
			}
		}
	})
}

// Bad, then revert: what was accepted before the content that was refused is sent
// again, although the client has accepted it once; and whoever comes after a
// client that refused is served.
func TestC10_BadThenRevertIsSent(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{Variant: v})
		for typeURL, put := range map[string]func(what string){
			streamCDS: func(what string) { o.Put(relaytest.Cluster("x", what)) },
			streamRDS: func(what string) { o.Put(streamRoute("x", what)) },
		} {
			put("A")
			c.Subscribe(typeURL, "x")
			good := streamTake(t, c, typeURL, "x")
			put("bad")
			c.Nack(c.Recv(t.Context()), "this is bad")
			streamQuiet(t, c, time.Hour)
			put("A")
			again := streamTake(t, c, typeURL, "x")
			if again.Resources[0].Digest != good.Resources[0].Digest {
				t.Errorf("%s: after the refusal: %v, want what was accepted", typeURL, again)
			}
		}
		refuser := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true,
			Reject: func(*relaytest.Response) error { return errors.New("never") }})
		refuser.Subscribe(streamLDS, "*")
		refuser.Recv(t.Context())
		late := r.Client(relaytest.ClientOptions{Variant: v})
		late.Subscribe(streamLDS, "*")
		streamTake(t, late, streamLDS)
		o.Put(relaytest.Listener("l", "x"))
		streamTake(t, late, streamLDS, "l")
		for _, typeURL := range []string{streamCDS, streamRDS, streamLDS} {
			for _, req := range o.State().Requests(typeURL) {
				if req.Message.GetErrorDetail() != nil {
					t.Errorf("a client's refusal reached the origin: %v", req.Message)
				}
			}
		}
	})
}

// A nonce is a decimal number that counts the responses of its stream over all
// types, and no stream shares its counter.
func TestB13_NoncesCountTheResponsesOfAStream(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(streamRoute("r", "0"), relaytest.Endpoints("e", "127.0.0.1:1"))
		r := start(t, o)
		for range 2 {
			c := r.Client(relaytest.ClientOptions{Variant: v})
			c.Subscribe(streamRDS, "r")
			streamTake(t, c, streamRDS, "r")
			c.Subscribe(streamEDS, "e")
			streamTake(t, c, streamEDS, "e")
			for i := range 5 {
				o.Put(streamRoute("r", c.String()+fmt.Sprint(i)))
				streamTake(t, c, streamRDS, "r")
			}
			for i, resp := range c.Responses() {
				if resp.Nonce != strconv.Itoa(i+1) {
					t.Errorf("response %d has nonce %q", i+1, resp.Nonce)
				}
			}
			c.Close()
		}
	})
}

// A refusal with an older nonce is one of that response: the newer one is still
// unanswered, and its answer counts.
func TestB14_ALateRefusalIsOfItsOwnResponse(t *testing.T) {
	t.Parallel()
	streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(streamRoute("a", "1"))
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		c.Subscribe(streamRDS, "a")
		first := streamTake(t, c, streamRDS, "a")
		o.Put(streamRoute("a", "2"))
		second := c.Recv(t.Context())
		c.Send(&discoverypb.DiscoveryRequest{TypeUrl: streamRDS, ResponseNonce: first.Nonce, ResourceNames: []string{"a"},
			ErrorDetail: status.New(codes.Internal, "too late").Proto()})
		o.Put(streamRoute("a", "3"))
		streamQuiet(t, c, 2*time.Second)
		if r.Log.Count("nonce="+first.Nonce+" code=13") != 1 || r.Log.Count("client refused a response") != 1 {
			t.Error("the refusal was not recorded for the first response alone")
		}
		c.Ack(second)
		streamHas(t, streamNext(t, c), streamRDS, "a")
	})
}

// SotW: a name twice in a list counts once, and so does *.
func TestB22_NameTwiceInASotWList(t *testing.T) {
	t.Parallel()
	streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(streamRoute("a", "1"), relaytest.Cluster("a"), relaytest.Cluster("b"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		ask := func(typeURL, nonce string, names ...string) {
			c.Send(streamSotW(&discoverypb.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ResourceNames: names}))
		}
		ask(streamRDS, "", "a", "a")
		first := c.Recv(t.Context())
		streamHas(t, first, streamRDS, "a")
		ask(streamRDS, first.Nonce, "a")
		streamQuiet(t, c, time.Minute)
		ask(streamRDS, first.Nonce)
		synctest.Wait()
		o.Put(streamRoute("a", "2"))
		streamQuiet(t, c, time.Minute)

		ask(streamCDS, "", "*", "a", "*", "a")
		all := c.Recv(t.Context())
		streamHas(t, all, streamCDS, "a", "b")
		ask(streamCDS, all.Nonce, "*")
		streamQuiet(t, c, time.Minute)
		o.Put(relaytest.Cluster("b", "2"))
		streamTake(t, c, streamCDS, "a", "b")
	})
}

// What is deleted while a client is away, or while the origin is, is gone for the
// client in the end, and nothing else is (R086, B.15).
func TestC14_DeletionsDuringADisconnectArrive(t *testing.T) {
	t.Parallel()
	for _, b := range []relaytest.Behaviour{{}, {IgnoreIRV: true}, {IgnoreIRV: true, EmptyVersions: true, SilentOnMissing: true}} {
		orderVariants(t, func(t *testing.T, v relaytest.Variant) {
			orderBubble(t, nil, func(w *orderWorld) {
				w.origin.Change(func(have *relaytest.Behaviour) { *have = b })
				w.change("cds a@1", "cds b@1", "cds c@1", "lds a@1", "lds b@1", "lds c@1", "srds a@1", "srds b@1", "srds c@1")
				open := func() *orderClient {
					return w.ready(v).subscribe("cds", "").subscribe("lds", "").subscribe("srds", "")
				}
				stays, leaves := open(), open()
				w.settle()
				have := func(when string, names ...string) {
					t.Helper()
					for _, c := range []*orderClient{stays, leaves} {
						for _, short := range []string{"cds", "lds", "srds"} {
							if got := c.State().Names(orderTypes[short]); !slices.Equal(got, names) {
								t.Errorf("%v, %s, %v: %v has %q, want %q", b, short, when, c.Client, got, names)
							}
						}
					}
				}
				have("at first", "a", "b", "c")
				leaves.Close()
				w.change("cds -b", "lds -b", "srds -b")
				leaves.Reconnect(w.relay.Conn())
				w.settle()
				have("after the client was away", "a", "c")
				w.stop()
				w.change("cds -c", "lds -c", "srds -c")
				w.restart()
				have("after the origin was away", "a")
				for _, c := range []*orderClient{stays, leaves} {
					for _, resp := range c.Responses() {
						if slices.Contains(resp.Removed, "a") || resp.SotW() && !slices.Contains(resp.Names(), "a") {
							t.Errorf("%v: %v was told that a is gone: %v", b, c.Client, resp)
						}
					}
				}
			})
		})
	}
}

// What an origin removes is removed, at once and however much it is. What it only
// does not mention is not: neither in a push of one resource of many, nor, by
// name, ever.
func TestC33_OnlyWhatTheOriginRemovesGoes(t *testing.T) {
	t.Parallel()
	names := sendNames(30)
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		begin := func(w *orderWorld) (all, named *relaytest.Client) {
			w.origin.Apply(func(tx *relaytest.Tx) {
				for _, name := range names {
					tx.Put(relaytest.Cluster(name), relaytest.Listener(name, "x"))
				}
			})
			all, named = w.ready(v).Client, w.ready(v).Client
			all.Subscribe(relaytest.ClusterType)
			named.Subscribe(relaytest.ListenerType, names...)
			w.settle()
			return all, named
		}
		has := func(t *testing.T, when string, all, named *relaytest.Client, want []string) {
			t.Helper()
			if got := all.State().Names(relaytest.ClusterType); !slices.Equal(got, want) {
				t.Errorf("%s: by wildcard %q, want %q", when, got, want)
			}
			if got := named.State().Names(relaytest.ListenerType); !slices.Equal(got, want) {
				t.Errorf("%s: by name %q, want %q", when, got, want)
			}
		}
		t.Run("too many", func(t *testing.T) {
			orderBubble(t, nil, func(w *orderWorld) {
				all, named := begin(w)
				w.origin.Apply(func(tx *relaytest.Tx) {
					for _, name := range names[1:] {
						tx.Remove(relaytest.ClusterType, name)
						tx.Remove(relaytest.ListenerType, name)
					}
				})
				w.pass(time.Second)
				has(t, "removed", all, named, names[:1])
			})
		})
		t.Run("too few", func(t *testing.T) {
			orderBubble(t, nil, func(w *orderWorld) {
				w.origin.Change(func(b *relaytest.Behaviour) { b.IgnoreIRV, b.SilentOnMissing = true, true })
				all, named := begin(w)
				w.origin.Put(relaytest.Cluster(names[0], "changed"), relaytest.Listener(names[0], "changed"))
				w.pass(time.Hour)
				has(t, "a push of one", all, named, names)
				w.stop()
				for _, name := range names[1:] {
					w.origin.Remove(relaytest.ListenerType, name)
				}
				w.restart()
				w.pass(24 * time.Hour)
				has(t, "not mentioned", all, named, names)
			})
		})
	})
}
