package h2

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/net/http2"
)

// TestFramesAreThoseOfHTTP2 reads the frames that this package writes with the framer
// of package http2.
func TestFramesAreThoseOfHTTP2(t *testing.T) {
	message := bytes.Repeat([]byte("0123456789"), 4000) // three frames
	b := ClientPreface("/path")
	b = AppendWindowUpdate(b, 1, 1000)
	b = AppendSettingsAck(b)
	b = AppendPong(b, []byte("12345678"))
	b = AppendMessage(b, message)
	rest, ok := bytes.CutPrefix(b, []byte(http2.ClientPreface))
	if !ok {
		t.Fatalf("preface is %q", b[:24])
	}
	theirs := http2.NewFramer(nil, bytes.NewReader(rest))
	var data []byte
	want := []http2.FrameType{
		http2.FrameSettings, http2.FrameWindowUpdate, http2.FrameHeaders, http2.FrameWindowUpdate,
		http2.FrameSettings, http2.FramePing, http2.FrameData, http2.FrameData, http2.FrameData,
	}
	for i, kind := range want {
		frame, err := theirs.ReadFrame()
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		ours, n, err := NextFrame(rest)
		if err != nil || ours.Type != kind || frame.Header().Type != kind || len(ours.Payload) != int(frame.Header().Length) || ours.Stream != frame.Header().StreamID {
			t.Fatalf("frame %d: %v of %d bytes, %v, want %v", i, ours.Type, n, err, frame.Header())
		}
		if kind == http2.FrameData {
			data = append(data, ours.Data()...)
		}
		rest = rest[n:]
	}
	if len(rest) > 0 {
		t.Errorf("%d bytes follow the frames, want 0", len(rest))
	}
	if !bytes.Equal(data[MessageHeaderBytes:], message) {
		t.Error("the DATA frames do not contain the message")
	}
}

func TestNextFrameWaits(t *testing.T) {
	b := AppendPong(nil, []byte("12345678"))
	for n := range b {
		if _, got, err := NextFrame(b[:n]); got != 0 || err != nil {
			t.Errorf("NextFrame of the first %d bytes = %d, %v, want 0 for an incomplete frame", n, got, err)
		}
	}
	if _, _, err := NextFrame([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0}); !errors.Is(err, ErrFrame) {
		t.Errorf("frame of 64 KiB: %v, want %v", err, ErrFrame)
	}
}

func TestPadding(t *testing.T) {
	padded := Frame{Type: http2.FrameData, Flags: http2.FlagDataPadded, Payload: []byte{2, 'a', 'b', 0, 0}}
	if got := string(padded.Data()); got != "ab" {
		t.Errorf("Data() = %q, want ab", got)
	}
}

// TestMessages reads a stream of messages in pieces of every size.
func TestMessages(t *testing.T) {
	want := []string{"first", "", "the third one", "x"}
	var stream []byte
	for _, m := range want {
		stream = append(AppendMessageHeader(stream, len(m)), m...)
	}
	for size := 1; size <= len(stream); size++ {
		var got []string
		var m Messages
		for b := stream; len(b) > 0; {
			n := min(size, len(b))
			if err := m.Read(b[:n], func(b []byte) error { got = append(got, string(b)); return nil }); err != nil {
				t.Fatalf("pieces of %d: %v", size, err)
			}
			b = b[n:]
		}
		if len(got) != len(want) {
			t.Fatalf("pieces of %d: messages %q, want %q", size, got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("pieces of %d: message %d is %q, want %q", size, i, got[i], want[i])
			}
		}
	}
}

func TestMessagesRefuseCompression(t *testing.T) {
	var m Messages
	if err := m.Read([]byte{1, 0, 0, 0, 0}, func([]byte) error { return nil }); !errors.Is(err, ErrCompressed) {
		t.Errorf("Read = %v, want %v", err, ErrCompressed)
	}
}
