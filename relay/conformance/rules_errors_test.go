package conformance_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// errorTypes are types with and without complete SotW sets.
var errorTypes = []string{"cds", "lds", "eds", "rds", "acme"}

// completeFor reports whether responses hold the complete set for a subscription to names: for clusters and listeners
// in SotW always, for unknown types if it is a wildcard (B.17).
func completeFor(v relaytest.Variant, short, names string) bool {
	wildcard := names == "" || strings.HasPrefix(names, "*")
	return v == relaytest.SotW && (short == "cds" || short == "lds" || short == "acme" && wildcard)
}

// errorCases runs a test for each variant and each type.
func errorCases(t *testing.T, f func(w *world, v relaytest.Variant, short string)) {
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		for _, short := range errorTypes {
			t.Run(short, func(t *testing.T) {
				worldBubble(t, nil, func(w *world) { f(w, v, short) })
			})
		}
	})
}

// tp3 returns the options of a gRPC client, which supports resource_errors.
func tp3(v relaytest.Variant) relaytest.ClientOptions {
	return relaytest.ClientOptions{Variant: v, Node: relaytest.GRPCNode("grpc")}
}

// After random changes, each client ends with the origin's errors, and gets no response without a change. Clients
// check that a name is in only one list of a response.
func TestD4_RandomErrorsConverge(t *testing.T) {
	t.Parallel()
	for seed := range uint64(check.Rounds(6)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			worldBubble(t, nil, func(w *world) { errorsConverge(w, rand.New(rand.NewPCG(seed, 39))) })
		})
	}
}

// errorsConverge runs one random sequence.
func errorsConverge(w *world, rng *rand.Rand) {
	short := errorTypes[rng.IntN(len(errorTypes))]
	names := []string{"a", "b", "c", "d"}
	failing := []string{"NotFound", "PermissionDenied", "Unavailable", "Internal"}
	last := make(map[string]string)
	var clients []*worldClient
	var variants []relaytest.Variant
	var completeSet []bool // whether responses hold the complete set
	join := func() {
		v := []relaytest.Variant{relaytest.Delta, relaytest.SotW}[rng.IntN(2)]
		want := strings.Join(names, " ")
		if rng.IntN(2) == 0 {
			want = "*"
		}
		clients, variants = append(clients, w.autoClient(v).subscribe(short, want)), append(variants, v)
		completeSet = append(completeSet, completeFor(v, short, want))
	}
	join()
	for range 40 {
		name := names[rng.IntN(len(names))]
		switch rng.IntN(6) {
		case 0:
			if len(clients) < 8 {
				join()
			}
		case 1, 2:
			last[name] = fmt.Sprintf("%s@%d", name, rng.IntN(3))
			w.change(short + " " + last[name])
		case 3:
			last[name] = ""
			w.change(short + " -" + name)
		default:
			last[name] = "!" + name + ":" + failing[rng.IntN(len(failing))]
			w.change(short + " " + last[name])
		}
		if rng.IntN(3) == 0 {
			w.sleep(time.Duration(rng.IntN(8)) * time.Second)
		}
	}
	w.sleep(time.Hour) // until held removals pass
	before := make([]int, len(clients))
	for i, c := range clients {
		before[i] = len(c.Responses())
	}
	w.sleep(time.Hour)
	for i, c := range clients {
		if n := len(c.Responses()) - before[i]; n != 0 {
			w.t.Errorf("%s: %v got %d responses without a change", short, c.Client, n)
		}
		has := errorsOf(c)
		for _, name := range names {
			want, failed := strings.CutPrefix(last[name], "!")
			_, have := c.State()[typeURLs[short]][name]
			_, code, _ := strings.Cut(want, ":")
			got, reported := has[name]
			reported = reported && (failed || got != codes.NotFound) // NOT_FOUND is equivalent to a removal
			switch {
			// SotW does not report the removal of a failed resource
			case !failed && reported && (last[name] != "" || variants[i] == relaytest.Delta):
				w.t.Errorf("%s: %v has the error %v of %q, want none", short, c.Client, got, name)
			case failed && !reported && (!completeSet[i] || !have):
				w.t.Errorf("%s: %v did not get the error of %q, want %s", short, c.Client, name, code)
			case failed && reported && got.String() != code:
				w.t.Errorf("%s: %v has the error %v of %q, want %s", short, c.Client, got, name, code)
			case !failed && have != (last[name] != "") && variants[i] == relaytest.Delta:
				w.t.Errorf("%s: %v has %q: %t, want %t", short, c.Client, name, have, last[name] != "")
			}
		}
	}
}

// errorsOf returns the errors that a client got and that no later response has ended.
func errorsOf(c *worldClient) map[string]codes.Code {
	errs := make(map[string]codes.Code)
	for _, r := range c.Responses() {
		for _, name := range append(r.Names(), r.Removed...) {
			delete(errs, name)
		}
		for _, e := range r.Errors {
			errs[e.Name] = e.Code
		}
	}
	return errs
}

// Names that a client got only errors for count towards TENDER_MAX_NAMES.
func TestB35_InvalidNamesAreCounted(t *testing.T) {
	t.Parallel()
	worldBubble(t, []string{"TENDER_MAX_NAMES=10"}, func(w *world) {
		c := w.dial(tp3(relaytest.Delta))
		for i := range 11 {
			c.expect()
			c.subscribe("rds", fmt.Sprintf("xdstp://authority/envoy.config.route.v3.RouteConfiguration/a?x=%d&x=", i))
			if n := len(c.received()); n != min(10-i, 1) {
				w.t.Errorf("got %d responses for name %d, want 1 for each of the first ten", n, i)
			}
			c.ackBatch()
		}
		expectQuiet(w.t, c.Client, time.Minute)
	})
}
