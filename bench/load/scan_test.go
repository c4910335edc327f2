package load

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"slices"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/h2"
)

var kind = content.Kind{TypeURL: content.Cluster, Count: 10, Bytes: 256}

// payload returns the resource that a stamp describes.
func payload(s content.Stamp) *anypb.Any {
	return &anypb.Any{TypeUrl: content.Cluster, Value: kind.Encode(s)}
}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestScan scans messages that the generated encoder wrote.
func TestScan(t *testing.T) {
	one, two := content.Stamp{Index: 1, Change: 5, Made: 77}, content.Stamp{Index: 2}
	delta := marshal(t, &discoverypb.DeltaDiscoveryResponse{
		SystemVersionInfo: "v", TypeUrl: content.Cluster, Nonce: "n", ControlPlane: &corepb.ControlPlane{Identifier: "x"},
		RemovedResources: []string{"a", "b"},
		Resources:        []*discoverypb.Resource{{Name: "1", Version: "v1", Resource: payload(one)}, {Name: "2", Version: "v2", Resource: payload(two)}},
	})
	sotw := marshal(t, &discoverypb.DiscoveryResponse{
		VersionInfo: "v", TypeUrl: content.Cluster, Nonce: "n", Canary: true, ControlPlane: &corepb.ControlPlane{Identifier: "x"},
		Resources: []*anypb.Any{payload(one), payload(two)},
	})
	for name, tt := range map[string]struct {
		message  []byte
		sotw     bool
		removed  int
		versions [2]string
	}{
		"delta": {message: delta, removed: 2, versions: [2]string{"v1", "v2"}},
		"sotw":  {message: sotw, sotw: true},
	} {
		for size := 1; size <= len(tt.message)+5; size++ { // cut into pieces of every size
			var stamps []content.Stamp
			ended := 0
			to := sink{
				resource: func(r resource) error {
					if string(r.version) != tt.versions[len(stamps)%2] || string(r.typeURL) != content.Cluster {
						t.Errorf("%s: resource %q of version %q, want %q", name, r.typeURL, r.version, tt.versions[len(stamps)%2])
					}
					stamps = append(stamps, r.stamp)
					return nil
				},
				end: func(r response) error {
					ended++
					if string(r.version) != "v" || string(r.typeURL) != content.Cluster || string(r.nonce) != "n" || r.removed != tt.removed || r.bytes != len(tt.message) {
						t.Errorf("%s: read %+v", name, r)
					}
					return nil
				},
			}
			if err := scan(twice(tt.message), size, tt.sotw, to); err != nil {
				t.Fatalf("%s: in pieces of %d: %v", name, size, err)
			}
			if ended != 2 || len(stamps) != 4 || stamps[0] != one || stamps[1] != two || stamps[2] != one || stamps[3] != two {
				t.Fatalf("%s: in pieces of %d: %d responses, stamps %v, want %v and %v, twice", name, size, ended, stamps, one, two)
			}
		}
	}
}

// twice returns two gRPC messages with the same content.
func twice(message []byte) []byte {
	b := append(h2.AppendMessageHeader(nil, len(message)), message...)
	return append(b, b...)
}

// scan passes b to a scanner in pieces of size bytes.
func scan(b []byte, size int, sotw bool, to sink) error {
	var s scanner
	for len(b) > 0 {
		n := min(size, len(b))
		if err := s.read(b[:n], sotw, to); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// TestScanCompressed scans a compressed message between others.
func TestScanCompressed(t *testing.T) {
	message := marshal(t, &discoverypb.DeltaDiscoveryResponse{
		Nonce: "n", Resources: []*discoverypb.Resource{{Name: "1", Resource: payload(content.Stamp{Index: 1})}, {Name: "2", Resource: payload(content.Stamp{Index: 2})}},
	})
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(message); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	header := h2.AppendMessageHeader(nil, packed.Len())
	header[0] = 1
	b := slices.Concat(twice(message), header, packed.Bytes(), twice(message))
	for size := 1; size <= len(b); size++ {
		resources, sizes := 0, []int(nil)
		to := sink{
			resource: func(resource) error { resources++; return nil },
			end:      func(r response) error { sizes = append(sizes, r.bytes); return nil },
		}
		n := len(message)
		if err := scan(b, size, false, to); err != nil || resources != 10 || !slices.Equal(sizes, []int{n, n, packed.Len(), n, n}) {
			t.Fatalf("in pieces of %d: %v, %d resources, messages of %v bytes", size, err, resources, sizes)
		}
	}
}

func TestScanRefuses(t *testing.T) {
	unstamped := marshal(t, &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{{Name: "1", Resource: &anypb.Any{Value: []byte("no stamp")}}}})
	stamped := marshal(t, &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{{Name: "1", Resource: payload(content.Stamp{})}}})
	to := sink{resource: func(resource) error { return nil }, end: func(response) error { return nil }}
	for name, message := range map[string][]byte{"no stamp": unstamped, "cut off": stamped[:len(stamped)-1], "no tag": {0xff, 0xff}} {
		for _, size := range []int{1, 1 << 20} {
			if err := scan(twice(message), size, false, to); !errors.Is(err, errMalformed) {
				t.Errorf("%s, in pieces of %d: %v, want %v", name, size, err, errMalformed)
			}
		}
	}
	if err := scan([]byte{1, 0, 0, 0, 1, 0}, 6, false, to); !errors.Is(err, errCompressed) {
		t.Errorf("compressed: %v, want %v", err, errCompressed)
	}
}

// TestAcks decodes hand-encoded ACKs with the generated decoder.
func TestAcks(t *testing.T) {
	r := response{typeURL: []byte("t"), nonce: []byte("n"), version: []byte("v")}
	var delta discoverypb.DeltaDiscoveryRequest
	if err := proto.Unmarshal(appendDeltaAck(nil, r), &delta); err != nil || delta.GetTypeUrl() != "t" || delta.GetResponseNonce() != "n" {
		t.Errorf("delta ACK %v, %v", &delta, err)
	}
	var sotw discoverypb.DiscoveryRequest
	err := proto.Unmarshal(appendSotWAck(nil, r, []string{"a", "b"}), &sotw)
	if err != nil || sotw.GetTypeUrl() != "t" || sotw.GetResponseNonce() != "n" || sotw.GetVersionInfo() != "v" || len(sotw.GetResourceNames()) != 2 {
		t.Errorf("SotW ACK %v, %v", &sotw, err)
	}
}

// TestHoldings checks that place and index are inverse to each other, and that all
// names have the same number of subscribers.
func TestHoldings(t *testing.T) {
	for _, tt := range []struct{ count, of, clients, each int }{{50, 1000, 200, 10}, {5, 10, 4, 2}, {20, 20, 3, 3}, {1, 398, 398, 1}} {
		wanted := make([]int, tt.of)
		for c := range tt.clients {
			h, err := Interest{TypeURL: content.Endpoint, Count: tt.count, Of: tt.of}.newHolding(c, tt.clients)
			if err != nil {
				t.Fatal(err)
			}
			places := 0
			for i := range tt.of {
				if p := h.place(i); p >= 0 {
					places++
					wanted[i]++
					if h.index(p) != i {
						t.Errorf("%+v client %d: index(place(%d)) = %d", tt, c, i, h.index(p))
					}
				}
			}
			if places != tt.count {
				t.Errorf("%+v client %d: has %d places, want %d", tt, c, places, tt.count)
			}
		}
		for i, n := range wanted {
			if n != tt.each {
				t.Errorf("%+v: resource %d has %d subscribers, want %d", tt, i, n, tt.each)
			}
		}
	}
}

func TestReceive(t *testing.T) {
	h, err := Interest{TypeURL: content.Cluster, Wildcard: true, Of: 3}.newHolding(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		stamp content.Stamp
		want  outcome
	}{
		{content.Stamp{Index: 1}, first},
		{content.Stamp{Index: 1}, again},
		{content.Stamp{Index: 1, Change: 2}, newer},
		{content.Stamp{Index: 1, Change: 1}, again},
		{content.Stamp{Index: 3}, unwanted},
		{content.Stamp{Index: 2, Change: 4}, first},
	} {
		if got := h.receive(step.stamp); got != step.want {
			t.Errorf("receive(%+v) = %d, want %d", step.stamp, got, step.want)
		}
	}
	latest := []content.Stamp{{Index: 0}, {Index: 1, Change: 2}, {Index: 2, Change: 5}}
	if n := h.differences(latest); n != 2 || h.have != 2 {
		t.Errorf("differences = %d, have %d, want 2 and 2", n, h.have)
	}
}

// FuzzScan verifies that the size of the pieces makes no difference to the scanner's output.
func FuzzScan(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0}, 1)
	f.Add([]byte{0, 0, 0, 0, 9, 0x22, 1, 't', 0x18, 1, 0x2a, 2, 'n', 'o'}, 3)
	body := content.Finish(kind.AppendDelta(nil, content.Stamp{Index: 1, Change: 2, Made: 3}), content.Cluster, "v", "n")
	f.Add(twice(body), 100)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		if size < 1 {
			t.Skip("no pieces")
		}
		trace := func(size int) (seen []string) {
			to := sink{
				resource: func(r resource) error {
					seen = append(seen, fmt.Sprintf("resource %q %q %v", r.typeURL, r.version, r.stamp))
					return nil
				},
				end: func(r response) error {
					seen = append(seen, fmt.Sprintf("end %q %q %q %d %d", r.typeURL, r.nonce, r.version, r.removed, r.bytes))
					return nil
				},
			}
			if err := scan(b, size, false, to); err != nil {
				seen = append(seen, "error")
			}
			return seen
		}
		whole, pieces := trace(len(b)+1), trace(size)
		if !slices.Equal(whole, pieces) {
			t.Errorf("scanned in one piece: %q, in pieces of %d: %q, want the same", whole, size, pieces)
		}
	})
}
