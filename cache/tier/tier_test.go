package tier

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// example returns a report with clients in all states.
func example() *Report {
	r := &Report{Nonce: "17"}
	for i, client := range []Client{
		{Node: "envoy-1", Sync: InSync}, {Node: "envoy-2", Sync: Behind, Lag: time.Second},
		{Node: "envoy-3", Sync: Rejecting, Lag: time.Minute, Detail: "no such thing"}, {Node: "envoy-4", Sync: Unknown},
	} {
		client.TypeURL = []string{wire.ClusterType, wire.ListenerType}[i%2]
		r.Type(client.TypeURL).Add(client)
		r.All.Add(client)
	}
	r.All.Pending = 3
	return r
}

// withoutPlaces returns a report whose clients have no place in another report.
func withoutPlaces(r Report) Report {
	r = r.Clone()
	for _, c := range append(r.Types, r.All) {
		for i := range c.Worst {
			c.Worst[i].place = 0
		}
	}
	return r
}

func TestB49_ReportsAreDecodedAsEncoded(t *testing.T) {
	below, r := example(), example()
	r.All.Merge(&below.All, "cell")
	r.Type(wire.ClusterType).Merge(&below.Types[0], "cell")
	got, err := Decode(r.Encode())
	check.OK(t, err)
	if want := withoutPlaces(*r); !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	check.Equal(t, "clients", got.All.Clients(), 8)
	check.Equal(t, "state", got.All.Sync(), Rejecting)
}

// The counts of the report, and the relay between, arrive with clients of a lower tier.
func TestB49_ReportsIncludeLowerTiers(t *testing.T) {
	var cell, zone, top Counts
	cell.Add(Client{Node: "envoy", Sync: Rejecting})
	cell.Add(Client{Sync: Unknown}) // the relay itself
	zone.Merge(&cell, "cell")
	top.Merge(&zone, "zone")
	var names []string
	for _, c := range top.Worst {
		names = append(names, fmt.Sprint(append(c.Via, c.Node)))
	}
	check.Equal(t, "clients by name", strings.Join(names, " "), "[zone cell envoy] [zone cell]")
	check.Equal(t, "clients", top.Clients(), 2)
}

// The clients of one relay cannot displace those of others from the list.
func TestB49_OneRelayCannotFillTheList(t *testing.T) {
	var all, forged, honest Counts
	for i := range MaxWorst {
		forged.Add(Client{Node: fmt.Sprint("forged-", i), Sync: Rejecting, Lag: 1000 * time.Hour})
		honest.Add(Client{Node: fmt.Sprint("honest-", i), Sync: Rejecting})
	}
	all.Merge(&forged, "a")
	all.Merge(&honest, "b")
	all.Add(Client{Node: "direct", Sync: Rejecting})
	for _, name := range []string{"forged-0", "honest-0", "direct"} {
		if !slices.ContainsFunc(all.Worst, func(c Client) bool { return c.Node == name }) {
			t.Errorf("%s is not among the worst: %+v", name, all.Worst)
		}
	}
	check.Equal(t, "clients by name", len(all.Worst), MaxWorst)
}

// A report is bounded, whatever names and errors clients have: it omits errors, then names, never numbers.
func TestB49_ReportsAreBounded(t *testing.T) {
	r := new(Report)
	long := strings.Repeat("é", 1<<16)
	for _, typeURL := range append(wire.Referenced[:], wire.ClusterType, wire.ListenerType, wire.RouteType) {
		for i := range 2 * MaxWorst {
			client := Client{Node: fmt.Sprint(i, long), TypeURL: typeURL, Sync: Rejecting, Detail: long}
			var below Counts
			below.Add(client)
			for range 2 * maxVia {
				var above Counts
				above.Merge(&below, long)
				below = above
			}
			r.Type(typeURL).Merge(&below, long)
			r.All.Merge(&below, long)
		}
	}
	r.All.Rejecting = 1 << 40
	encoded := r.Encode()
	if len(encoded) > MaxBytes {
		t.Errorf("%d bytes, want at most %d", len(encoded), MaxBytes)
	}
	got, err := Decode(encoded)
	check.OK(t, err)
	check.Equal(t, "clients", got.All.Rejecting, maxCount)
	check.Equal(t, "types", len(got.Types), len(r.Types))
	if r.Type("type.googleapis.com/acme.Thing") != nil {
		t.Error("a type that the protocol does not define has counts, want none: clients can invent types")
	}
}

// TestB36_ReportsOmitErrorsAboutSecrets: neither what a relay sends nor what it receives has an error about a Secret.
func TestB36_ReportsOmitErrorsAboutSecrets(t *testing.T) {
	r := new(Report)
	r.Type(wire.SecretType).Add(Client{Node: "envoy", Sync: Rejecting, Detail: "hunter2"})
	r.All.Add(Client{Node: "envoy", TypeURL: wire.SecretType, Sync: Rejecting, Detail: "hunter2"})
	if strings.Contains(string(r.Encode()), "hunter2") {
		t.Error("a report has an error about a Secret")
	}
	r.All.Worst[0].Detail, r.Types[0].Worst[0].Detail = "hunter2", "hunter2"
	got, err := Decode(r.Encode())
	check.OK(t, err)
	for _, c := range append(got.Types, got.All) {
		check.Equal(t, "error", c.Worst[0].Detail, "")
	}
}

// If a relay lacks a response, its clients that were in sync are behind, and others keep their state.
func TestB49_HeldBackClientsAreBehind(t *testing.T) {
	c := example().All
	c.HoldBack()
	check.Equal(t, "counts", fmt.Sprint(c.InSync, c.Behind, c.Rejecting, c.Unknown), "0 3 1 0")
	check.OK(t, c.check())
}

func TestB49_InvalidReports(t *testing.T) {
	message := func(num protowire.Number, b []byte) []byte { return appendMessage(nil, num, b) }
	for name, b := range map[string][]byte{
		"too large":             make([]byte, MaxBytes+1),
		"malformed":             {0xff, 0xff},
		"malformed field":       {2<<3 | 2, 5, 1},
		"malformed group":       {99<<3&0x7f | 3},
		"long nonce":            appendText(nil, reportNonce, strings.Repeat("1", maxNonce+1)),
		"two counts of all":     append(message(reportCounts, nil), message(reportCounts, nil)...),
		"unknown type":          message(reportCounts, appendText(nil, countsType, "acme")),
		"two counts of a type":  append(message(reportCounts, appendText(nil, countsType, wire.ClusterType)), message(reportCounts, appendText(nil, countsType, wire.ClusterType))...),
		"type as a number":      message(reportCounts, appendNumber(nil, countsType, 1)),
		"too many clients":      message(reportCounts, appendNumber(nil, countsBehind, maxCount+1)),
		"number as text":        message(reportCounts, appendText(nil, countsBehind, "1")),
		"uncounted name":        message(reportCounts, message(countsClient, appendText(nil, clientNode, "envoy"))),
		"name that is in sync":  message(reportCounts, append(appendNumber(nil, countsInSync, 1), message(countsClient, appendNumber(nil, clientSync, 3))...)),
		"unknown state":         message(reportCounts, append(appendNumber(nil, countsBehind, 1), message(countsClient, appendNumber(nil, clientSync, 4))...)),
		"text that is no UTF-8": message(reportCounts, append(appendNumber(nil, countsRejecting, 1), message(countsClient, appendText(nil, clientNode, "\xff"))...)),
		"long lag":              message(reportCounts, append(appendNumber(nil, countsRejecting, 1), message(countsClient, appendNumber(nil, clientLag, int(maxLag)))...)),
		"too many relays": message(reportCounts, append(appendNumber(nil, countsRejecting, 1),
			message(countsClient, []byte(strings.Repeat(string(appendText(nil, clientVia, "r")), maxVia+1)))...)),
	} {
		if r, err := Decode(b); !errors.Is(err, ErrReport) || r != nil {
			t.Errorf("%s: got %+v, %v, want ErrReport", name, r, err)
		}
	}
	r, err := Decode(append(example().Encode(), appendText(nil, 100, "of a later release")...))
	if err != nil || r.All.Clients() != 4 {
		t.Errorf("with an unknown field: got %+v, %v, want the rest", r, err)
	}
}

// FuzzDecodeReport: any report is rejected, or is within all bounds and encoded again as one that is equal.
func FuzzDecodeReport(f *testing.F) {
	f.Add(example().Encode())
	f.Add([]byte{})
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil {
			return
		}
		if len(r.Types) > len(b) || len(r.Nonce) > maxNonce {
			t.Errorf("%d types, nonce %q", len(r.Types), r.Nonce)
		}
		all := new(Report)
		for _, c := range append(slices.Clone(r.Types), r.All) {
			if len(c.Worst) > MaxWorst || c.Clients() < 0 || c.Clients() > 4*maxCount || len(c.Worst) > c.Clients() {
				t.Errorf("counts %+v", c)
			}
			all.All.Merge(&c, "relay")
		}
		all.All.HoldBack()
		if _, err := Decode(all.Encode()); err != nil {
			t.Errorf("the report about this one is invalid: %v", err)
		}
		again, err := Decode(r.Encode())
		if err != nil {
			t.Fatalf("encoded again: %v", err)
		}
		if len(b) <= MaxBytes/2 && !again.Equal(r) {
			t.Errorf("encoded again: got %+v, want %+v", again, r)
		}
	})
}
