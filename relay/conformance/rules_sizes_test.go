package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// maxResponseBytes is the largest size of a response that can be split, plus some bytes for fields other than
// resources.
const maxResponseBytes = 3_500_000 + 200

// sizeNames returns the names of a set of 4 MiB. Most resources have 32 KiB, one has 3 MiB and therefore does not fit
// behind many small ones.
func sizeNames() (names []string) {
	for i := range 31 {
		names = append(names, fmt.Sprintf("thing-%03d", i))
	}
	return names
}

// sizedResource returns a resource of the set in a revision.
func sizedResource(typeURL, name string, rev int) proto.Message {
	size := 32 << 10
	if name == "thing-027" {
		size = 3 << 20
	}
	return relaytest.Opaque(typeURL, name, fmt.Append(make([]byte, size), rev))
}

// sizeForms are the subscriptions to a large set that the relay splits.
var sizeForms = []struct {
	variant relaytest.Variant
	typeURL string
	named   bool
}{
	{relaytest.Delta, typeCDS, false},
	{relaytest.Delta, typeEDS, true},
	{relaytest.SotW, typeEDS, true},
	{relaytest.SotW, typeEDS, false},
	{relaytest.SotW, acmeType, true},
}

// B.32: a large set is split into as few responses as possible, none larger than a client's default limit, each
// sent after the ACK of the previous one. Each resource is sent once, and removals are sent after changes.
func TestB32_LargeSetsAreSplit(t *testing.T) {
	t.Parallel()
	for _, form := range sizeForms {
		t.Run(fmt.Sprintf("%v %s named=%v", form.variant, shortName(form.typeURL), form.named), func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				names := sizeNames()
				o.Apply(func(tx *relaytest.Tx) {
					for _, name := range names {
						tx.Put(sizedResource(form.typeURL, name, 1))
					}
				})
				c := startMuted(t, o, "TENDER_ACK_WAIT=10m").Client(relaytest.ClientOptions{Variant: form.variant})
				subscription := []string{"*"}
				if form.named {
					subscription = names
				}
				c.Subscribe(form.typeURL, subscription...)
				time.Sleep(10 * time.Second)
				first := recvParts(t, c)
				if got := slices.Concat(first...); len(got) != len(names) {
					t.Errorf("got %d resources, want each of %d once", len(got), len(names))
				}
				o.Apply(func(tx *relaytest.Tx) {
					for i, name := range names {
						switch i % 5 {
						case 0:
							tx.Remove(form.typeURL, name)
						case 1, 2, 3:
							tx.Put(sizedResource(form.typeURL, name, 2))
						}
					}
				})
				changes := slices.Concat(recvParts(t, c)...)
				wantChanged, wantRemoved := 18, 7
				if form.variant == relaytest.SotW {
					wantRemoved = 0
				}
				removed := slices.IndexFunc(changes, func(name string) bool { return strings.HasPrefix(name, "-") })
				if removed < 0 {
					removed = len(changes)
				}
				if removed != wantChanged || len(changes)-removed != wantRemoved {
					t.Errorf("got %d resources and then %d names, want %d changes and then %d removals",
						removed, len(changes)-removed, wantChanged, wantRemoved)
				}
			})
		})
	}
}

// recvParts receives a set in parts, and returns the names in each part, with a "-" before removals. It checks the
// sizes, and that each part is sent after the ACK of the previous one.
func recvParts(t *testing.T, c *relaytest.Client) (parts [][]string) {
	t.Helper()
	const most = 40
	synctest.Wait()
	for r := c.TryRecv(); r != nil; r = c.TryRecv() {
		if size := proto.Size(r.Message); size > maxResponseBytes {
			t.Errorf("got a response of %d bytes, want at most %d", size, maxResponseBytes)
		}
		if more := c.TryRecv(); more != nil {
			t.Fatalf("got a response of %d resources before the ACK of one with %d", len(more.Resources), len(r.Resources))
		}
		part := r.Names()
		for _, name := range r.Removed {
			part = append(part, "-"+name)
		}
		parts = append(parts, part)
		c.Ack(r)
		synctest.Wait()
	}
	if len(parts) < 2 || len(parts) > most {
		t.Errorf("got %d responses, want from 2 to %d", len(parts), most)
	}
	return parts
}

// B.32: resources are not split. One that is larger than a response's limit is sent alone, and the relay logs it.
// The other resources are sent in responses within the limit.
func TestB32_AResourceLargerThanAResponse(t *testing.T) {
	t.Parallel()
	for _, form := range sizeForms {
		t.Run(fmt.Sprintf("%v %s named=%v", form.variant, shortName(form.typeURL), form.named), func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				names := []string{"a", "b", "c", "d", "e"}
				o.Apply(func(tx *relaytest.Tx) {
					for _, name := range names {
						size := map[string]int{"b": 500 << 10, "c": 3600 << 10}[name] + 1000
						tx.Put(relaytest.Opaque(form.typeURL, name, make([]byte, size)))
					}
				})
				r := start(t, o)
				r.DialOptions = append(r.DialOptions, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
				c := r.Client(relaytest.ClientOptions{Variant: form.variant, AutoAck: true})
				subscription := []string{"*"}
				if form.named {
					subscription = names
				}
				c.Subscribe(form.typeURL, subscription...)
				sleep(10 * time.Second)
				if !c.State().SameContent(o.Resources(), form.typeURL) {
					t.Errorf("the client has %q, want %q", c.State().Names(form.typeURL), names)
				}
				for _, resp := range c.Responses() {
					if size := proto.Size(resp.Message); size > maxResponseBytes && len(resp.Resources) > 1 {
						t.Errorf("a response of %d bytes has %d resources, want 1", size, len(resp.Resources))
					}
				}
				if n := r.Log.Count("response exceeds the default limit of gRPC clients"); n != 1 {
					t.Errorf("logged the large response %d times, want once", n)
				}
			})
		})
	}
}

// B.32: a complete SotW set is not split. The relay logs, at a limited rate, sets that exceed the default limit of
// clients.
func TestB32_CompleteSetsAreNotSplit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		typeURL string
		changes int
		logged  int // at most; one type shows the limit of the rate
	}{{typeCDS, 6, 5}, {typeLDS, 1, 2}, {relaytest.ScopedRouteType, 1, 2}} {
		typeURL := tt.typeURL
		originBubble(t, func(t *testing.T, o *relaytest.Origin) {
			names := []string{"a", "b", "c", "d"}
			put := func(name string, rev int) {
				size := 1200 << 10
				if name == "a" {
					size = 1000
				}
				o.Put(relaytest.Opaque(typeURL, name, fmt.Append(make([]byte, size), rev)))
			}
			for _, name := range names {
				put(name, 0)
			}
			r := start(t, o)
			r.DialOptions = append(r.DialOptions, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
			c := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW, AutoAck: true})
			c.Subscribe(typeURL, "*")
			time.Sleep(10 * time.Second)
			for i := range tt.changes {
				put("a", i+1)
				synctest.Wait()
			}
			if n := len(c.Responses()); n != 1+tt.changes {
				t.Errorf("%s: got %d responses, want %d", shortName(typeURL), n, 1+tt.changes)
			}
			for _, resp := range c.Responses() {
				expectNames(t, resp, typeURL, names...)
			}
			if n := r.Log.Count("response exceeds the default limit of gRPC clients"); n < 1 || n > tt.logged {
				t.Errorf("%s: logged %d large responses %d times, want 1 to %d", shortName(typeURL), 1+tt.changes, n, tt.logged)
			}
		})
	}
}

// A client that reconnects with many resources, in a request of more than 4 MiB, receives only the differences.
func TestC21_ManyHeldVersions(t *testing.T) {
	t.Parallel()
	const held = 2_000
	for _, named := range []bool{false, true} {
		originBubble(t, func(t *testing.T, o *relaytest.Origin) {
			at := func(i int) string { return fmt.Sprintf("%05d%s", i, strings.Repeat("x", 2100)) }
			o.Apply(func(tx *relaytest.Tx) {
				for i := range held + 5 {
					if i >= 5 { // the others were removed
						tx.Set(typeRDS, at(i), relaytest.Opaque(typeRDS, at(i), []byte("x")), fmt.Sprintf("version-%016d", i))
					}
				}
			})
			r := startMuted(t, o)
			req := &discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("returning"), TypeUrl: typeRDS,
				InitialResourceVersions: make(map[string]string)}
			for i := range held {
				req.InitialResourceVersions[at(i)] = fmt.Sprintf("version-%016d", i)
				if i >= 5 && i < 10 {
					req.InitialResourceVersions[at(i)] = "an older one"
				}
				req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, at(i))
			}
			req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, at(held), at(held+1), at(held+2), at(held+3),
				at(held+4))
			if !named {
				req.ResourceNamesSubscribe = []string{"*"}
			}
			if size := proto.Size(req); size < 4<<20 {
				t.Fatalf("the request has %d bytes, want more than the default limit of gRPC servers", size)
			}
			c := r.Client(relaytest.ClientOptions{})
			c.Send(req)
			var got, removed []string
			for range 20 {
				sleep(time.Second)
				for resp := c.TryRecv(); resp != nil; resp = c.TryRecv() {
					got, removed = append(got, resp.Names()...), append(removed, resp.Removed...)
					c.Ack(resp)
				}
			}
			slices.Sort(got)
			slices.Sort(removed)
			want := []string{at(5), at(6), at(7), at(8), at(9), at(held), at(held + 1), at(held + 2), at(held + 3), at(held + 4)}
			if !slices.Equal(got, want) || !slices.Equal(removed, []string{at(0), at(1), at(2), at(3), at(4)}) {
				t.Errorf("named=%v: got %.200q and the removals %.200q; want 5 changed, 5 new and 5 removed resources", named, got,
					removed)
			}
		})
	}
}

// The relay omits initial_resource_versions in a request to the origin that would exceed a server's default limit.
// The origin then sends everything; clients still receive only the differences.
func TestC21_HeldVersionsThatDoNotFit(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		at := func(i int) string { return fmt.Sprintf("%05d%s", i, strings.Repeat("x", 3900)) }
		o.Apply(func(tx *relaytest.Tx) {
			for i := range 900 {
				tx.Put(relaytest.Cluster(at(i), "service"))
			}
		})
		r := startMuted(t, o)
		r.DialOptions = append(r.DialOptions, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
		clients := r.bothVariants(relaytest.ClientOptions{}, func(c *relaytest.Client) { c.Subscribe(typeCDS, "*") })
		sleep(time.Minute)
		before := []int{len(clients[0].Responses()), len(clients[1].Responses())}
		o.Stop()
		o.Put(relaytest.Cluster(at(1), "changed"))
		o.Remove(typeCDS, at(2))
		o.Restart()
		sleep(2 * time.Minute)
		if req := o.State().Last().Requests[0].Message; len(req.GetInitialResourceVersions()) != 0 {
			t.Errorf("the first request has %d versions in %d bytes, want none", len(req.GetInitialResourceVersions()),
				proto.Size(req))
		}
		for i, c := range clients {
			if !c.State().SameContent(o.Resources(), typeCDS) {
				t.Errorf("%v has %d clusters, want the origin's %d", c, len(c.State()[typeCDS]), len(o.Resources()[typeCDS]))
			}
			for _, resp := range c.Responses()[before[i]:] {
				if !resp.SotW() && len(resp.Resources)+len(resp.Removed) > 1 {
					t.Errorf("%v got a response of %d clusters and %d removals, want only the changes", c, len(resp.Resources),
						len(resp.Removed))
				}
			}
			if n := len(c.Responses()) - before[i]; n > 2 {
				t.Errorf("%v got %d responses, want one per change", c, n)
			}
		}
	})
}
