package envoy_test

import (
	"testing"

	"github.com/xdstender/tender/relay/envoytest"
)

// TestB7_EnvoysMoveToAFrozenRelay: an Envoy moves from one relay to another that was frozen before a listener was renamed on its
// address. It serves the frozen listener, and the new one after the thaw, and rejects neither: to keep the new listener beside the
// frozen one would be a conflict.
func TestB7_EnvoysMoveToAFrozenRelay(t *testing.T) {
	of := renames[0]
	matrix(t, ads, func(t *testing.T, c client) {
		f := newRenaming(t, c, &outcome{t: t}, &of, "TENDER_ADMIN_LISTEN=127.0.0.1:0")
		frozen := f.relays[0]
		frozen.relay.Tender("freeze")
		f.startRelay("TENDER_SNAPSHOT_DIR=" + t.TempDir())
		f.down.Cut()
		f.origin.Apply("", func(w *envoytest.World) {
			w.Put(of.after(f)...)
			w.Remove(of.typeURL, of.removed...)
		})
		f.answers(f.load, f.new)
		f.down.Forward(frozen.addr)
		f.down.Cut()
		f.answers(f.load, f.old)
		frozen.relay.Tender("thaw")
		f.answers(f.load, f.new)
		r := f.load.Stop()
		r.Failures = nil // those of an Envoy that replaces a listener
		f.judge(f.envoy, r)
	})
}
