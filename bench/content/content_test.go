package content

import (
	"bytes"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

func TestResourcesHaveTheirSizeAndEndWithTheirStamp(t *testing.T) {
	for _, typeURL := range []string{Cluster, Endpoint, Listener, Route} {
		for _, size := range []int{128, 256, 1024} {
			k := Kind{TypeURL: typeURL, Count: 1, Bytes: size}
			want := Stamp{Index: 99, Change: 7, Made: 1700000000123456789}
			b := k.Encode(want)
			if len(b) > size || len(b) < size-8 {
				t.Errorf("%s: encoded in %d bytes, want %d or at most 8 fewer", typeURL, len(b), size)
			}
			if got, ok := ReadStamp(b); !ok || got != want {
				t.Errorf("%s: read stamp %+v, %v, want %+v", typeURL, got, ok, want)
			}
			if !bytes.Equal(b, k.Encode(want)) {
				t.Errorf("%s: two encodings of the same stamp differ", typeURL)
			}
		}
	}
}

func TestNoStamp(t *testing.T) {
	for _, b := range []string{"", "short", "stamp:0000000g0000000000000000000000000", "tamp:s" + string(Stamp{}.Append(nil)[len(mark):])} {
		if s, ok := ReadStamp([]byte(b)); ok {
			t.Errorf("ReadStamp(%q) = %+v, want none", b, s)
		}
	}
}

func TestNamesHaveTheirIndex(t *testing.T) {
	for _, typeURL := range []string{Cluster, Endpoint, Listener, Route} {
		if i, err := Index(typeURL, Name(typeURL, 1234)); err != nil || i != 1234 {
			t.Errorf("Index(%s) = %d, %v, want 1234", Name(typeURL, 1234), i, err)
		}
	}
	if i, err := Index(Cluster, "listener-00000001"); err == nil {
		t.Errorf("Index of another type's name = %d, want an error", i)
	}
}

func TestDeltaBodiesAreResponses(t *testing.T) {
	set := NewSet([]Kind{{TypeURL: Cluster, Count: 10, Bytes: 512}})
	set.Change(Cluster, 3)
	k, _ := set.Kind(Cluster)
	count := 0
	for _, body := range k.Delta(set.Latest(Cluster), 2048) {
		var resp discoverypb.DeltaDiscoveryResponse
		if err := proto.Unmarshal(Finish(body, Cluster, "v", "n"), &resp); err != nil {
			t.Fatal(err)
		}
		if resp.GetTypeUrl() != Cluster || resp.GetNonce() != "n" || resp.GetSystemVersionInfo() != "v" || len(body) > 2048+512 {
			t.Errorf("response of %d bytes: type %q, nonce %q, version %q", len(body), resp.GetTypeUrl(), resp.GetNonce(), resp.GetSystemVersionInfo())
		}
		for _, r := range resp.GetResources() {
			s, ok := ReadStamp(r.GetResource().GetValue())
			if !ok || r.GetName() != Name(Cluster, count) || s.Index != count || (s.Change == 1) != (count == 3) || r.GetVersion() != Version(s) {
				t.Errorf("resource %d: %q version %q, stamp %+v", count, r.GetName(), r.GetVersion(), s)
			}
			count++
		}
	}
	if count != 10 {
		t.Errorf("%d resources, want 10", count)
	}
}

func TestSotWBodyIsAResponse(t *testing.T) {
	k := Kind{TypeURL: Listener, Count: 3, Bytes: 256}
	var resp discoverypb.DiscoveryResponse
	if err := proto.Unmarshal(Finish(NewSet([]Kind{k}).SotW(k), Listener, "v", "n"), &resp); err != nil {
		t.Fatal(err)
	}
	if len(resp.GetResources()) != 3 || resp.GetTypeUrl() != Listener || resp.GetNonce() != "n" || resp.GetVersionInfo() != "v" {
		t.Errorf("response %v", &resp)
	}
}
