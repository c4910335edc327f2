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

// sizeHard is what no response exceeds that can be cut, with some bytes for what is not
// resources.
const sizeHard = 3_500_000 + 200

// sizeNames returns the names of a set of 11 MiB: most resources have 8 KiB, two have
// 3 MiB, so that one of these does not fit behind many of those.
func sizeNames() (names []string) {
	for i := range 700 {
		names = append(names, fmt.Sprintf("thing-%03d", i))
	}
	return names
}

// sizeThing returns such a resource in one of its revisions.
func sizeThing(typeURL, name string, rev int) proto.Message {
	size := 8 << 10
	if strings.HasSuffix(name, "99") && name < "thing-200" {
		size = 3 << 20
	}
	return relaytest.Opaque(typeURL, name, fmt.Append(make([]byte, size), rev))
}

// sizeForms are the ways to ask for a large set that is sent in parts.
var sizeForms = []struct {
	variant relaytest.Variant
	typeURL string
	named   bool
}{
	{relaytest.Delta, typeCDS, false},
	{relaytest.Delta, typeCDS, true},
	{relaytest.Delta, typeEDS, false},
	{relaytest.Delta, typeEDS, true},
	{relaytest.SotW, typeEDS, true},
	{relaytest.SotW, typeEDS, false},
	{relaytest.SotW, streamAcmeType, true},
}

// B.32: a large set comes in responses that fit what clients take by default, one
// after the answer to another, and as few as can be; nothing is missing, nothing comes
// twice, and where much of it goes while much else changes, what goes comes last.
func TestB32_LargeSetsComeInParts(t *testing.T) {
	t.Parallel()
	for _, form := range sizeForms {
		t.Run(fmt.Sprintf("%v %s named=%v", form.variant, shortName(form.typeURL), form.named), func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				names := sizeNames()
				o.Apply(func(tx *relaytest.Tx) {
					for _, name := range names {
						tx.Put(sizeThing(form.typeURL, name, 1))
					}
				})
				c := startMuted(t, o, "TENDER_ACK_WAIT=10m").Client(relaytest.ClientOptions{Variant: form.variant})
				ask := []string{"*"}
				if form.named {
					ask = names
				}
				c.Subscribe(form.typeURL, ask...)
				time.Sleep(10 * time.Second)
				first := sizeParts(t, c)
				if got := slices.Concat(first...); len(got) != len(names) {
					t.Errorf("%d resources came, want each of %d once", len(got), len(names))
				}
				o.Apply(func(tx *relaytest.Tx) {
					for i, name := range names {
						switch i % 3 {
						case 0:
							tx.Remove(form.typeURL, name)
						case 1:
							tx.Put(sizeThing(form.typeURL, name, 2))
						}
					}
				})
				changes := slices.Concat(sizeParts(t, c)...)
				wantChanged, wantGone := 233, 234
				if form.variant == relaytest.SotW {
					wantGone = 0
				}
				gone := slices.IndexFunc(changes, func(name string) bool { return strings.HasPrefix(name, "-") })
				if gone < 0 {
					gone = len(changes)
				}
				if gone != wantChanged || len(changes)-gone != wantGone {
					t.Errorf("%d resources came, and then %d names of what is gone or changed, want %d and then %d",
						gone, len(changes)-gone, wantChanged, wantGone)
				}
			})
		})
	}
}

// sizeParts receives all that is there for a client, part by part, and returns the names
// in each; what is gone has a "-" before it. It checks the sizes, and that each part
// waits for the answer to the one before.
func sizeParts(t *testing.T, c *relaytest.Client) (parts [][]string) {
	t.Helper()
	const most = 40
	synctest.Wait()
	for r := c.TryRecv(); r != nil; r = c.TryRecv() {
		if size := proto.Size(r.Message); size > sizeHard {
			t.Errorf("a response of %d bytes, want at most %d", size, sizeHard)
		}
		if more := c.TryRecv(); more != nil {
			t.Fatalf("%d resources came before the response with %d was answered", len(more.Resources), len(r.Resources))
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
		t.Errorf("%d responses, want from 2 to %d", len(parts), most)
	}
	return parts
}

// B.32: no resource is split. One that is larger than a response may be comes alone,
// and the log tells; those beside it come in responses of the usual size.
func TestB32_AResourceLargerThanAResponse(t *testing.T) {
	t.Parallel()
	for _, form := range sizeForms {
		t.Run(fmt.Sprintf("%v %s named=%v", form.variant, shortName(form.typeURL), form.named), func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				names := []string{"a", "b", "c", "d", "e"}
				o.Apply(func(tx *relaytest.Tx) {
					for _, name := range names {
						size := map[string]int{"b": 1500 << 10, "c": 5 << 20}[name] + 1000
						tx.Put(relaytest.Opaque(form.typeURL, name, make([]byte, size)))
					}
				})
				r := start(t, o)
				r.DialOptions = append(r.DialOptions, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
				c := r.Client(relaytest.ClientOptions{Variant: form.variant, AutoAck: true})
				ask := []string{"*"}
				if form.named {
					ask = names
				}
				c.Subscribe(form.typeURL, ask...)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if !c.State().SameContent(o.Resources(), form.typeURL) {
					t.Errorf("the client has %q, want %q", c.State().Names(form.typeURL), names)
				}
				for _, resp := range c.Responses() {
					if size := proto.Size(resp.Message); size > sizeHard && len(resp.Resources) > 1 {
						t.Errorf("a response of %d bytes has %d resources, want one", size, len(resp.Resources))
					}
				}
				if n := r.Log.Count("response exceeds the default limit of gRPC clients"); n != 1 {
					t.Errorf("%d lines of log tell of the large response, want 1", n)
				}
			})
		})
	}
}

// B.32: a complete SotW set cannot be cut. The log tells of one that many clients do not
// take, at a bounded rate.
func TestB32_AFullSetIsNotCut(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{typeCDS, typeLDS, relaytest.ScopedRouteType} {
		originBubble(t, func(t *testing.T, o *relaytest.Origin) {
			names := []string{"a", "b", "c", "d"}
			put := func(name string, rev int) {
				o.Put(relaytest.Opaque(typeURL, name, fmt.Append(make([]byte, 1<<20), rev)))
			}
			for _, name := range names {
				put(name, 0)
			}
			r := start(t, o)
			r.DialOptions = append(r.DialOptions, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
			c := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW, AutoAck: true})
			c.Subscribe(typeURL, "*")
			time.Sleep(10 * time.Second)
			for i := range 9 {
				put("a", i+1)
				synctest.Wait()
			}
			if n := len(c.Responses()); n != 10 {
				t.Errorf("%s: %d responses, want 10", shortName(typeURL), n)
			}
			for _, resp := range c.Responses() {
				expectNames(t, resp, typeURL, names...)
			}
			if n := r.Log.Count("response exceeds the default limit of gRPC clients"); n < 1 || n > 5 {
				t.Errorf("%s: %d lines of log tell of 10 large responses, want a few", shortName(typeURL), n)
			}
		})
	}
}

// A client that holds 50,000 resources says so in a request of several MiB when it
// returns, and is told the difference and nothing else.
func TestC21_FiftyThousandHeldVersions(t *testing.T) {
	t.Parallel()
	const held = 50_000
	for _, named := range []bool{false, true} {
		originBubble(t, func(t *testing.T, o *relaytest.Origin) {
			at := func(i int) string {
				return fmt.Sprintf("a-resource-with-a-name-as-long-as-names-of-clusters-in-large-meshes-are/%05d", i)
			}
			o.Apply(func(tx *relaytest.Tx) {
				for i := range held + 5 {
					if i >= 5 { // these are gone
						tx.Set(typeRDS, at(i), relaytest.Opaque(typeRDS, at(i), []byte("x")), fmt.Sprintf("version-%016d", i))
					}
				}
			})
			r := startMuted(t, o)
			req := &discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("returning"), TypeUrl: typeRDS, InitialResourceVersions: make(map[string]string)}
			for i := range held {
				req.InitialResourceVersions[at(i)] = fmt.Sprintf("version-%016d", i)
				if i >= 5 && i < 10 {
					req.InitialResourceVersions[at(i)] = "an older one"
				}
				req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, at(i))
			}
			req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, at(held), at(held+1), at(held+2), at(held+3), at(held+4))
			if !named {
				req.ResourceNamesSubscribe = []string{"*"}
			}
			if size := proto.Size(req); size < 5<<20 {
				t.Fatalf("a request of %d bytes, want more than gRPC servers take by default", size)
			}
			c := r.Client(relaytest.ClientOptions{})
			c.Send(req)
			var came, gone []string
			for range 20 {
				time.Sleep(time.Second)
				synctest.Wait()
				for resp := c.TryRecv(); resp != nil; resp = c.TryRecv() {
					came, gone = append(came, resp.Names()...), append(gone, resp.Removed...)
					c.Ack(resp)
				}
			}
			slices.Sort(came)
			slices.Sort(gone)
			want := []string{at(5), at(6), at(7), at(8), at(9), at(held), at(held + 1), at(held + 2), at(held + 3), at(held + 4)}
			if !slices.Equal(came, want) || !slices.Equal(gone, []string{at(0), at(1), at(2), at(3), at(4)}) {
				t.Errorf("named=%v: told of %.200q, and that %.200q are gone; want the 5 that changed, the 5 that are new, and the 5 that are gone", named, came, gone)
			}
		})
	}
}

// What the relay itself holds is not told to its origin where that would be more than
// servers take: it asks for everything, and its clients are told the difference alone.
func TestC21_HeldVersionsThatDoNotFit(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		at := func(i int) string { return fmt.Sprintf("%05d%s", i, strings.Repeat("x", 980)) }
		o.Apply(func(tx *relaytest.Tx) {
			for i := range 3600 {
				tx.Put(relaytest.Cluster(at(i), "service"))
			}
		})
		r := startMuted(t, o)
		var clients []*relaytest.Client
		for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
			r.DialOptions = append(r.DialOptions, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
			c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			c.Subscribe(typeCDS, "*")
			clients = append(clients, c)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		before := []int{len(clients[0].Responses()), len(clients[1].Responses())}
		o.Stop()
		o.Put(relaytest.Cluster(at(1), "changed"))
		o.Remove(typeCDS, at(2))
		o.Restart()
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if req := o.State().Last().Requests[0].Message; len(req.GetInitialResourceVersions()) != 0 {
			t.Errorf("the first request has %d versions in %d bytes, want none", len(req.GetInitialResourceVersions()), proto.Size(req))
		}
		for i, c := range clients {
			if !c.State().SameContent(o.Resources(), typeCDS) {
				t.Errorf("%v has %d clusters, want the origin's %d", c, len(c.State()[typeCDS]), len(o.Resources()[typeCDS]))
			}
			for _, resp := range c.Responses()[before[i]:] {
				if !resp.SotW() && len(resp.Resources)+len(resp.Removed) > 1 {
					t.Errorf("%v was told of %d clusters and %d removals at once, want what changed", c, len(resp.Resources), len(resp.Removed))
				}
			}
			if n := len(c.Responses()) - before[i]; n > 2 {
				t.Errorf("%v got %d responses, want one for each change", c, n)
			}
		}
	})
}
