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
)

// B.35: of ten thousand streams on one connection, those that are too many are refused, and
// cost no goroutine.
func TestB35_StreamsOfAConnectionAreBounded(t *testing.T) {
	const allowed, tried = 100, 10_000
	v := serve(t, "TENDER_MAX_STREAMS_PER_CONNECTION=100", "TENDER_MAX_FRAME_RATE=1000000")
	v.during(func() {
		a := v.attack()
		for i := range uint32(tried) {
			if err := a.open(2*i + 1); err != nil {
				t.Error(err)
				return
			}
		}
		v.await("streams are refused", func() bool { return a.reset(http2.ErrCodeRefusedStream) == tried-allowed })
		if n := v.Streams(); n > allowed+1 {
			t.Errorf("%d streams are open, want %d and the neighbour's", n, allowed)
		}
		a.close()
	})
	v.await("only the neighbour is left", func() bool { return v.Streams() == 1 })
}

// CVE-2023-44487: streams that are opened and reset at once leave nothing, and never are more
// than allowed.
func TestB35_RapidReset(t *testing.T) {
	v := serve(t, "TENDER_MAX_STREAMS_PER_CONNECTION=100", "TENDER_MAX_FRAME_RATE=1000000")
	v.during(func() {
		a := v.attack()
		for i := range uint32(20_000) {
			if err := a.open(2*i + 1); err != nil {
				t.Error(err)
				return
			}
			if err := a.WriteRSTStream(2*i+1, http2.ErrCodeCancel); err != nil {
				t.Error(err)
				return
			}
			if n := v.Streams(); n > 2*100+1 { // as many as are open, and as many that are about to end
				t.Errorf("%d streams after %d resets", n, i)
				return
			}
		}
	})
	v.await("only the neighbour is left", func() bool { return v.Streams() == 1 })
}

// CVE-2023-45288: a header that never ends is not read on.
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

// A header that is too large, also one that is small until it is unpacked, ends the stream
// and not the connection.
func TestB35_LargeHeaders(t *testing.T) {
	v := serve(t)
	v.during(func() {
		a := v.attack()
		large := hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 3000)} // goes into the table of HPACK
		for i := range uint32(10) {
			bomb := make([]hpack.HeaderField, 1000) // 3 MB of a few bytes each
			for j := range bomb {
				bomb[j] = large
			}
			if err := a.open(2*i+1, bomb...); err != nil {
				t.Error(err)
			}
		}
		v.await("streams are reset", func() bool { return a.reset(http2.ErrCodeFrameSize) == 10 })
		if err := a.open(101); err != nil {
			t.Error(err)
		}
		v.await("another stream is open", func() bool { return v.Streams() == 2 })
	})
}

// B.34: pings without end are answered with GOAWAY.
func TestB34_PingFlood(t *testing.T) {
	v := serve(t)
	v.during(func() {
		a := v.attack()
		a.until(1_000_000, func() error { return a.WritePing(false, [8]byte{}) })
		if code := a.awaitEnd(); code != http2.ErrCodeEnhanceYourCalm && code != http2.ErrCodeNo { // which the reset of the connection may have overtaken
			t.Errorf("the connection ended with %v, want ENHANCE_YOUR_CALM", code)
		}
	})
}

// Frames that are lawful and mean nothing cost their own connection, and at most a core.
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

// B.35: of frames that are too many the rest is read later, and what comes after them waits; also where
// polls are served.
func TestB35_AFloodOfFrames(t *testing.T) {
	for name, addrs := range map[string]func(*relay.Relay) []net.Addr{"gRPC": (*relay.Relay).Addrs, "polls": (*relay.Relay).RESTAddrs} {
		t.Run(name, func(t *testing.T) {
			v := serve(t, "TENDER_MAX_FRAME_RATE=100")
			v.during(func() {
				a := v.attackAt(addrs(v.Relay.Relay)[0])
				for range 20_000 { // more than three minutes' worth
					if err := a.WritePriority(1, http2.PriorityParam{Weight: 1}); err != nil {
						t.Error(err)
						return
					}
				}
				if err := a.open(1); err != nil {
					t.Error(err)
				}
				v.await("it is counted", func() bool { return v.Stats().Refused[guard.LimitFrames] == 1 })
			})
			if n := v.Streams(); n != 1 {
				t.Errorf("%d streams are open, want the neighbour's alone", n)
			}
		})
	}
}

// B.35: a first request that comes a byte at a time is not waited for longer than one that
// does not come.
func TestB35_SlowFirstRequest(t *testing.T) {
	v := serve(t, "TENDER_FIRST_REQUEST_TIMEOUT=500ms")
	v.during(func() {
		a := v.attack()
		if err := a.open(1); err != nil {
			t.Error(err)
		}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		if err := a.WriteData(1, false, []byte{0, 0, 1, 0, 0}); err != nil { // of 64 KiB
			t.Error(err)
		}
		for end := time.Now().Add(10 * time.Second); a.told("4") == 0; <-tick.C { // DEADLINE_EXCEEDED
			if err := a.WriteData(1, false, []byte{0x0a}); err != nil || time.Now().After(end) {
				t.Errorf("the stream goes on: %v", err)
				return
			}
		}
	})
}

// B.35: what comes of requests and is not whole is held, so it is bounded for a peer, however it
// comes; who sends small requests from the same address is served all the while.
func TestB35_RequestsThatAreNeverWhole(t *testing.T) {
	for name, size := range map[string]int{"large frames": 16 << 10, "single bytes": 1} {
		t.Run(name, func(t *testing.T) {
			const peer = 1 << 20
			v := serve(t, "TENDER_MAX_BUFFERED_REQUEST_BYTES=4MiB", "TENDER_MAX_REQUEST_BYTES=1MiB", "TENDER_MAX_FRAME_RATE=1000000")
			v.during(func() {
				a := v.attack()
				sent, frame := 0, make([]byte, size)
				for stream := uint32(1); stream < 32; stream += 2 {
					if err := errors.Join(a.open(stream), a.WriteData(stream, false, []byte{0, 0, 0x0f, 0xff, 0xff})); err != nil {
						t.Error(err)
					}
				}
				most := 64<<10 + peer + 8<<20 // what was sent, at the most, before the end has come here
				a.until(most/max(size, 64), func() error {
					sent++
					return a.WriteData(uint32(sent%16*2+1), false, frame)
				})
				a.awaitEnd()
				if sent < peer/2/max(size, 64) {
					t.Errorf("the connection has ended after %d frames, long before %d bytes", sent, peer)
				}
			})
			if n := v.Stats().Refused[guard.LimitUnread]; n != 1 {
				t.Errorf("%d connections were counted, want 1", n)
			}
		})
	}
}
