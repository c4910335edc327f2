package conformance_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/relay/relaytest"
)

// errorTypes are types of each kind of SotW response: complete sets and not.
var errorTypes = []string{"cds", "lds", "eds", "rds", "acme"}

// complete reports whether a SotW response of a type holds the client's whole set.
func complete(v relaytest.Variant, short string) bool {
	return v == relaytest.SotW && (short == "cds" || short == "lds")
}

// completeFor is complete for a client that asked for names, as subscribe has them: of an unknown type, the set is
// complete if it asked for all (B.17).
func completeFor(v relaytest.Variant, short, names string) bool {
	all := names == "" || strings.HasPrefix(names, "*")
	return complete(v, short) || v == relaytest.SotW && short == "acme" && all
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

// tp3 returns the options of a client that is known to understand resource_errors.
func tp3(v relaytest.Variant) relaytest.ClientOptions {
	return relaytest.ClientOptions{Variant: v, Node: relaytest.GRPCNode("grpc")}
}

// ackAll accepts what was heard last.
func (c *worldClient) ackAll() {
	for _, r := range c.batch {
		c.Ack(r)
	}
	synctest.Wait()
}

// Whatever happens in whatever order, clients end with the errors that the origin has
// said, a name is never in two lists of a response (the clients check that), and
// nothing is said over and over.
func TestD4_ErrorsConverge(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			worldBubble(t, nil, func(w *world) { errorsConverge(w, rand.New(rand.NewPCG(seed, 39))) })
		})
	}
}

func errorsConverge(w *world, rng *rand.Rand) {
	short := errorTypes[rng.IntN(len(errorTypes))]
	names := []string{"a", "b", "c", "d"}
	failing := []string{"NotFound", "PermissionDenied", "Unavailable", "Internal"}
	last := make(map[string]string)
	var clients []*worldClient
	var variants []relaytest.Variant
	var whole []bool // whether responses hold the complete set
	join := func() {
		v := []relaytest.Variant{relaytest.Delta, relaytest.SotW}[rng.IntN(2)]
		want := strings.Join(names, " ")
		if rng.IntN(2) == 0 {
			want = "*"
		}
		clients, variants = append(clients, w.autoClient(v).subscribe(short, want)), append(variants, v)
		whole = append(whole, completeFor(v, short, want))
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
	w.sleep(time.Hour) // removals that are held back come to an end
	before := make([]int, len(clients))
	for i, c := range clients {
		before[i] = len(c.Responses())
	}
	w.sleep(time.Hour)
	for i, c := range clients {
		if n := len(c.Responses()) - before[i]; n != 0 {
			w.t.Errorf("%s: %v was sent %d responses without a change", short, c.Client, n)
		}
		has := errorsOf(c)
		for _, name := range names {
			want, failed := strings.CutPrefix(last[name], "!")
			_, have := c.State()[typeURLs[short]][name]
			_, code, _ := strings.Cut(want, ":")
			got, told := has[name]
			told = told && (failed || got != codes.NotFound) // which is as good as to be told that it is gone
			switch {
			case !failed && told && (last[name] != "" || variants[i] == relaytest.Delta): // SotW cannot say that a failing one is gone
				w.t.Errorf("%s: %v was left with error %v of %q, want none", short, c.Client, got, name)
			case failed && !told && (!whole[i] || !have):
				w.t.Errorf("%s: %v was not told that %q fails with %s", short, c.Client, name, code)
			case failed && told && got.String() != code:
				w.t.Errorf("%s: %v was left with error %v of %q, want %s", short, c.Client, got, name, code)
			case !failed && have != (last[name] != "") && variants[i] == relaytest.Delta:
				w.t.Errorf("%s: %v has %q: %t, want %t", short, c.Client, name, have, last[name] != "")
			}
		}
	}
}

// errorsOf returns the errors that a client was told and that nothing has ended.
func errorsOf(c *worldClient) map[string]codes.Code {
	left := make(map[string]codes.Code)
	for _, r := range c.Responses() {
		for _, name := range append(r.Names(), r.Removed...) {
			delete(left, name)
		}
		for _, e := range r.Errors {
			left[e.Name] = e.Code
		}
	}
	return left
}

// What a client was told of counts as its names do: it cannot make up as many as it likes.
func TestB35_NamesThatCannotBeAreCounted(t *testing.T) {
	t.Parallel()
	worldBubble(t, []string{"TENDER_MAX_NAMES=10"}, func(w *world) {
		c := w.dial(tp3(relaytest.Delta))
		for i := range 11 {
			c.expect()
			c.subscribe("rds", fmt.Sprintf("xdstp://authority/envoy.config.route.v3.RouteConfiguration/a?x=%d&x=", i))
			if heard := len(c.received()); heard != min(10-i, 1) {
				w.t.Errorf("%d responses tell of name %d, want 1 for each of the first ten", heard, i)
			}
			c.ackAll()
		}
		expectQuiet(w.t, c.Client, time.Minute)
	})
}
