package hostile_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestB35_StreamsOfAConnectionAreBounded: a client opens four thousand streams on one connection. The relay resets
// those above the limit, and they start no goroutine. (B.35)
func TestB35_StreamsOfAConnectionAreBounded(t *testing.T) {
	const allowed, tried = guard.MaxStreamsPerConnection, 4000
	v := serve(t)
	v.during(func() {
		a := v.attack()
		for i := range uint32(tried) {
			if err := a.open(2*i + 1); err != nil {
				t.Error(err)
				return
			}
		}
		v.await("resets of all streams above the limit", func() bool { return a.reset(http2.ErrCodeRefusedStream) == tried-allowed })
		if n := v.Streams(); n > allowed+1 {
			t.Errorf("%d streams are open, want at most %d and that of the neighbour", n, allowed)
		}
		a.close()
	})
	v.await("only the stream of the neighbour", func() bool { return v.Streams() == 1 })
}

// TestB35_RapidReset: a client opens streams and resets them at once. The relay delays it, because a reset counts as
// many frames, and no stream remains. (CVE-2023-44487)
func TestB35_RapidReset(t *testing.T) {
	v := serve(t)
	v.during(func() {
		a := v.attack()
		for i := range uint32(1000) {
			if err := a.open(2*i + 1); err != nil {
				t.Error(err)
				return
			}
			if err := a.WriteRSTStream(2*i+1, http2.ErrCodeCancel); err != nil {
				t.Error(err)
				return
			}
		}
		v.await("a count of the rate limit", func() bool { return v.Stats().Refused[guard.LimitFrames] == 1 })
	})
	v.await("only the stream of the neighbour", func() bool { return v.Streams() == 1 })
}

// TestB35_ContinuationFlood: the relay closes the connection of a client that sends endless CONTINUATION frames.
// (CVE-2023-45288)
func TestB35_ContinuationFlood(t *testing.T) {
	v := serve(t)
	v.during(func() {
		a := v.attack()
		if err := a.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: a.block()}); err != nil {
			t.Error(err)
		}
		var more []byte
		for range 16 {
			more = append(more, a.block(hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 900), Sensitive: true})...)
		}
		a.until(10_000, func() error { return a.WriteContinuation(1, false, more) })
		if code := a.awaitEnd(); code != http2.ErrCodeNo && code != http2.ErrCodeProtocol && code != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("the connection ended with %v", code)
		}
	})
}

// TestB35_LargeHeaders: a header list that is too large after HPACK decompression ends the stream but not the
// connection.
func TestB35_LargeHeaders(t *testing.T) {
	v := serve(t)
	v.during(func() {
		a := v.attack()
		large := hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 3000)} // fits into the dynamic table of HPACK
		for i := range uint32(10) {
			bomb := make([]hpack.HeaderField, 1000) // 3 MB, which HPACK encodes in a few bytes per field
			for j := range bomb {
				bomb[j] = large
			}
			if err := a.open(2*i+1, bomb...); err != nil {
				t.Error(err)
			}
		}
		v.await("resets of the streams", func() bool { return a.reset(http2.ErrCodeFrameSize) == 10 })
		if err := a.open(101); err != nil {
			t.Error(err)
		}
		v.await("another open stream", func() bool { return v.Streams() == 2 })
	})
}

// TestB34_PingFlood: the relay answers too many pings with GOAWAY and closes the connection. (B.34)
func TestB34_PingFlood(t *testing.T) {
	v := serve(t)
	v.during(func() {
		a := v.attack()
		a.until(1_000_000, func() error { return a.WritePing(false, [8]byte{}) })
		// A reset of the connection may discard the GOAWAY.
		if code := a.awaitEnd(); code != http2.ErrCodeEnhanceYourCalm && code != http2.ErrCodeNo {
			t.Errorf("the connection ended with %v, want ENHANCE_YOUR_CALM", code)
		}
	})
}

// TestB35_FramesOfNothing: a client sends many valid frames without effect, and the neighbour is served meanwhile.
func TestB35_FramesOfNothing(t *testing.T) {
	const frames = 50_000
	for _, tt := range []struct {
		name  string
		frame func(a *attacker) error
	}{
		{"SETTINGS", func(a *attacker) error { return a.WriteSettings() }},
		{"WINDOW_UPDATE", func(a *attacker) error { return a.WriteWindowUpdate(1, 1) }},
		{"DATA", func(a *attacker) error { return a.WriteData(1, false, nil) }},
		{"PRIORITY", func(a *attacker) error { return a.WritePriority(1, http2.PriorityParam{Weight: 1}) }},
		{"RST_STREAM", func(a *attacker) error { return a.WriteRSTStream(1, http2.ErrCodeCancel) }},
		{"unknown", func(a *attacker) error { return a.WriteRawFrame(0xee, 0, 1, nil) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := serve(t)
			v.during(func() {
				a := v.attack()
				if err := a.open(1); err != nil {
					t.Error(err)
				}
				for range frames {
					if err := tt.frame(a); err != nil {
						t.Error(err)
						return
					}
				}
			})
		})
	}
}

// TestB35_AFloodOfFrames: the relay delays reading from a client that exceeds the frame rate, so that later frames
// wait. This applies to gRPC and to polls. (B.35)
func TestB35_AFloodOfFrames(t *testing.T) {
	for name, addrs := range map[string]func(*relay.Relay) []net.Addr{"gRPC": (*relay.Relay).Addrs, "polls": (*relay.Relay).RESTAddrs} {
		t.Run(name, func(t *testing.T) {
			v := serve(t)
			v.during(func() {
				a := v.attackAt(addrs(v.Relay.Relay)[0])
				if err := a.open(1); err != nil {
					t.Error(err)
				}
				for range 20_000 { // half a minute's worth
					if err := a.WriteData(1, false, nil); err != nil {
						t.Error(err)
						return
					}
				}
				if err := a.open(3); err != nil {
					t.Error(err)
				}
				v.await("a count of the rate limit", func() bool { return v.Stats().Refused[guard.LimitFrames] == 1 })
			})
			if n := v.Streams(); n > 2 {
				t.Errorf("%d streams are open, want those of the neighbour and before the flood", n)
			}
		})
	}
}

// TestB35_SlowFirstRequest: the timeout of the first request also applies if the request arrives one byte at a time.
// (B.35)
func TestB35_SlowFirstRequest(t *testing.T) {
	v := serve(t, "TENDER_FIRST_REQUEST_TIMEOUT=3s")
	v.during(func() {
		a := v.attack()
		if err := a.open(1); err != nil {
			t.Error(err)
		}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		if err := a.WriteData(1, false, []byte{0, 0, 1, 0, 0}); err != nil { // prefix of a message of 64 KiB
			t.Error(err)
		}
		for end := time.Now().Add(relaytest.Patience); a.told("4") == 0; <-tick.C { // DEADLINE_EXCEEDED
			if err := a.WriteData(1, false, []byte{0x0a}); err != nil || time.Now().After(end) {
				t.Errorf("the stream did not end: %v", err)
				return
			}
		}
	})
}

// TestB35_RequestsThatAreNeverWhole: the relay buffers incomplete requests and limits their total size per client
// address, whatever the size of frames. A client with small requests from the same address is served meanwhile.
// (B.35)
func TestB35_RequestsThatAreNeverWhole(t *testing.T) {
	for name, size := range map[string]int{"large frames": 16 << 10, "single bytes": 1} {
		t.Run(name, func(t *testing.T) {
			const peer = 256 << 10
			undo := limitBuffers(mebibyte)
			v := serve(t, "TENDER_MAX_REQUEST_BYTES=256KiB")
			undo()
			v.during(func() {
				a := v.attack()
				sent, frame := 0, make([]byte, size)
				for stream := uint32(1); stream < 32; stream += 2 {
					if err := errors.Join(a.open(stream), a.WriteData(stream, false, []byte{0, 0, 0x03, 0xff, 0xff})); err != nil {
						t.Error(err)
					}
				}
				const header = 9
				most := 64<<10 + peer + 8<<20 // maximum of bytes on the wire before the close arrives, or a write blocks until it does
				a.until(most/(size+header), func() error {
					sent++
					return a.WriteData(uint32(sent%16*2+1), false, frame)
				})
				a.awaitEnd()
				if sent < peer/2/max(size, 64) {
					t.Errorf("the connection ended after %d frames, long before the limit of %d bytes", sent, peer)
				}
			})
			if n := v.Stats().Refused[guard.LimitUnread]; n != 1 {
				t.Errorf("%d connections are counted, want 1", n)
			}
		})
	}
}
