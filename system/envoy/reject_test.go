package envoy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
)

// newer returns a listener with a field that no Envoy knows. Only an Envoy that rejects unknown fields rejects it.
func newer(name string, value uint64) *listenerpb.Listener {
	l := relaytest.Listener(name, "web")
	l.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 12345, protowire.VarintType), value))
	return l
}

// An answered has the answers to the listeners of a go-control-plane, as its callbacks see them: the error of a NACK, or
// "ACK".
type answered struct {
	origin *controlplane.Server
	all    []string
}

// read adds the answers that have arrived, and returns all so far.
func (a *answered) read() []string {
	for _, r := range a.origin.Requests() {
		switch {
		case r.GetTypeUrl() != relaytest.ListenerType || r.GetResponseNonce() == "":
		case r.GetErrorDetail() == nil:
			a.all = append(a.all, "ACK")
		default:
			a.all = append(a.all, r.GetErrorDetail().GetMessage())
		}
	}
	return a.all
}

// await waits for a number of answers after the first ones.
func (a *answered) await(e *envoytest.Envoy, after, least int) {
	e.Await("answers", func() error {
		if all := a.read(); len(all) < after+least {
			return fmt.Errorf("answers %q, want %d after %d", all, least, after)
		}
		return nil
	})
}

// TestB10_EnvoyRejectsReachGoControlPlane: one of two Envoys rejects a listener. The callbacks of the go-control-plane see one
// NACK that names it and how many clients reject it. Neither the control plane nor the relay sends anything because of it.
// The corrected listener has one ACK. The same content that returns is not told again, and another one is.
func TestB10_EnvoyRejectsReachGoControlPlane(t *testing.T) {
	const told = `resource "next" rejected by 1 of 2 clients: "`
	matrix(t, ads, func(t *testing.T, c client) {
		kind := map[variant]string{delta: controlplane.ADSSnapshots, sotw: controlplane.SnapshotsSotW}[c.variant]
		origin := controlplane.New(t, kind, nil, web("one", envoytest.NewBackend(t, "one"))...)
		relay := envoytest.NewRelay(t, origin.Target(), "TENDER_REPORT_REJECTS=on")
		o := c.options(relay.Addr, "strict")
		o.Arguments = []string{"--reject-unknown-dynamic-fields"}
		strict, other := envoytest.Start(t, o), envoytest.Start(t, c.options(relay.Addr, "other"))
		load := envoytest.StartLoad(t, strict.Listener("web"), interval)
		other.Listener("web")
		strict.Await("confirmed sets", func() error { return incomplete(relay) })
		answers := &answered{origin: origin}

		for round, tt := range []struct {
			value uint64
			want  []string
		}{{1, []string{"ACK", told}}, {1, []string{"ACK"}}, {2, []string{"ACK", told}}} {
			before, rejected := len(answers.read()), strict.Stats(envoytest.Judged).Sum("update_rejected")
			origin.Put(newer("next", tt.value))
			other.Listener("next")
			awaitSum(strict, "update_rejected", rejected+1)
			answers.await(strict, before, len(tt.want))
			sent := origin.Responses()
			load.Continue(requestsIn(4 * time.Second)) // the relay looks each second
			if got := answers.read()[before:]; !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
				t.Errorf("change %d: answers to a listener that one Envoy rejects: %q, want %q", round, got, tt.want)
			}
			if n := origin.Responses() - sent; n != 0 {
				t.Errorf("change %d: %d responses of the control plane after the NACK, want none", round, n)
			}
			if now := strict.Stats(envoytest.Judged).Sum("update_rejected"); now != rejected+1 {
				t.Errorf("change %d: the Envoy rejected %d updates, want one", round, now-rejected)
			}

			before = len(answers.read())
			origin.Put(relaytest.Listener("next", "web"))
			strict.Listener("next")
			load.Continue(requestsIn(2 * time.Second))
			answers.await(strict, before, 1)
			if got := answers.read()[before:]; !slices.Equal(got, []string{"ACK"}) {
				t.Errorf("change %d: answers to the corrected listener: %q, want one ACK", round, got)
			}
			origin.Remove(relaytest.ListenerType, "next")
			(&outcome{t: t}).awaitGone(strict, "dynamic_listeners", "next")
			answers.await(strict, before, 2)
		}
		if r := load.Stop(); len(r.Failures) > 0 {
			t.Error(r)
		}
	})
}
