package conformance_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
)

// A sotwWorld is an origin that only supports SotW, and its relay.
type sotwWorld struct {
	*relaytest.Origin
	t     *testing.T
	relay *running
}

// sotwBubble runs a test with a sotwWorld in a bubble.
func sotwBubble(t *testing.T, test func(w *sotwWorld)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Behaviour: relaytest.Behaviour{SotW: true}})
		w := &sotwWorld{o, t, start(t, o)}
		test(w)
		w.relay.Stop()
	})
}

// Resources of a SotW origin are passed on unchanged, including unknown types, and names and aliases in wrappers.
func TestR004_R093_SotWOriginKeepsBytes(t *testing.T) {
	t.Parallel()
	odd := protowire.AppendTag(nil, 4242, protowire.BytesType)
	odd = protowire.AppendString(odd, "unknown, and before the name")
	odd = protowire.AppendString(protowire.AppendTag(odd, 1, protowire.BytesType), "odd")
	odd = append(odd, 0x20, 0x81, 0x80, 0x00) // field 4, a varint with redundant bytes
	oddAny := &anypb.Any{TypeUrl: relaytest.ClusterType, Value: odd}
	sotwBubble(t, func(w *sotwWorld) {
		const acme = "type.googleapis.com/acme.Foo"
		w.Set(relaytest.ClusterType, "odd", oddAny, "")
		foo := relaytest.Opaque(acme, "its own idea of a name", []byte{0, 255})
		w.SetRaw(acme, &discoverypb.Resource{Name: "foo", Version: "7", Aliases: []string{"bar"}, Resource: foo})
		clients := w.relay.bothVariants(relaytest.ClientOptions{}, func(c *relaytest.Client) {
			c.Subscribe(relaytest.ClusterType)
			c.Subscribe(acme, "bar")
		})
		sleep(10 * time.Second)
		for _, c := range clients {
			bodies := map[string][]byte{}
			for _, resp := range c.Responses() {
				for _, res := range resp.Resources {
					bodies[resp.TypeURL] = res.Body.GetValue()
					if resp.TypeURL == acme && !resp.SotW() &&
						(res.Name != "foo" || res.Version != "7" || !slices.Equal(res.Aliases, []string{"bar"})) {
						w.t.Errorf("%v: name %q version %q aliases %q, want foo, 7 and bar", c, res.Name, res.Version, res.Aliases)
					}
				}
			}
			if !bytes.Equal(bodies[relaytest.ClusterType], odd) || !bytes.Equal(bodies[acme], foo.GetValue()) {
				w.t.Errorf("%v: got % x", c, bodies)
			}
		}
	})
}

// The system version of a SotW origin is passed on, and not compared (B.2). Equal sets have equal versions behind
// a SotW and a Delta origin.
func TestB2_SotWOriginVersions(t *testing.T) {
	t.Parallel()
	versions := map[bool]string{}
	for _, sotw := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := relaytest.Behaviour{SotW: sotw, SystemVersion: "theirs"}
			o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Behaviour: b})
			o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
			r := start(t, o)
			c := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW, AutoAck: true})
			c.Subscribe(relaytest.ClusterType)
			versions[sotw] = c.Recv(t.Context()).Version
			r.Stop()
		})
	}
	if versions[true] != versions[false] || !strings.HasPrefix(versions[true], "theirs~r1.") {
		t.Errorf("version_info is %q behind SotW and %q behind Delta, want equal ones with the prefix theirs~",
			versions[true], versions[false])
	}
}

// TENDER_ORIGIN_PROTOCOL selects the variant. With delta, a relay of a SotW origin stays cold.
func TestOriginProtocolVariable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		protocol string
		sotw     bool
		served   bool
	}{
		{"auto", false, true}, {"auto", true, true},
		{"delta", false, true}, {"delta", true, false},
		{"sotw", false, false}, {"sotw", true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Behaviour: relaytest.Behaviour{SotW: tt.sotw}})
			o.Put(relaytest.Cluster("a"))
			r := start(t, o, "TENDER_ORIGIN_PROTOCOL="+tt.protocol)
			c := r.Client(relaytest.ClientOptions{AutoAck: true})
			c.Subscribe(relaytest.ClusterType)
			sleep(5 * time.Second)
			if got := c.State().Has(relaytest.ClusterType, "a"); got != tt.served {
				t.Errorf("%s, SotW origin=%v: served=%v, want %v", tt.protocol, tt.sotw, got, tt.served)
			}
			r.Stop()
		})
	}
}
