package relay

import (
	"go/ast"
	"go/parser"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/snapshot"
)

// wallTimes has the files that use wall times, with the purpose. None of them measures a duration.
var wallTimes = map[string]string{
	"cache/snapshot_format.go":    "stores times",
	"cache/snapshot_past.go":      "stores times",
	"cmd/tender/dump.go":          "names a file",
	"cmd/tender/history.go":       "prints times",
	"cmd/tender/rollback.go":      "prints times",
	"relay/admin/rollback.go":     "prints times",
	"relay/generations/line.go":   "prints times",
	"relay/halts.go":              "tells halts apart by the times that relays above have told",
	"relay/rollback.go":           "stores times",
	"deploy/release/main.go":      "stamps files with the time of the commit",
	"deploy/release/package.go":   "stamps files with the time of the commit",
	"relay/admin/dump.go":         "names a file",
	"relay/decisions.go":          "stores times",
	"relay/operate.go":            "stores times",
	"relay/page/page.go":          "prints times",
	"relay/rollouts.go":           "stores times",
	"relay/snapshot/decisions.go": "names a file",
	"relay/snapshot/dir.go":       "sorts and prints stored times",
	"relay/telemetry/rollouts.go": "exports when a rollout was halted",
	"relay/telemetry/table.go":    "exports when certificates expire",
	"relay/tlsfiles/pem.go":       "prints when certificates expire",
}

// TestH14_WallTimesDecideNothing checks that only code that stores or prints times, or compares them with those of
// certificates, uses wall times or times without a monotonic clock reading.
func TestH14_WallTimesDecideNothing(t *testing.T) {
	unused := maps.Clone(wallTimes)
	for name, file := range parseModule(t) {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "bench/") ||
			strings.HasPrefix(name, "relay/relaytest/") {
			continue
		}
		for n := range ast.Preorder(file) {
			call, _ := n.(*ast.CallExpr)
			if !makesWallTime(call) {
				continue
			}
			delete(unused, name)
			if wallTimes[name] == "" {
				t.Errorf("%s uses %s, whose result changes when the clock is set; keep the time.Time, or use time.Time.Sub",
					name, call.Fun.(*ast.SelectorExpr).Sel.Name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unused)) {
		t.Errorf("%s no longer uses wall times; remove it from the list", name)
	}
}

// makesWallTime reports whether a call looks like a function or method whose result has no monotonic clock reading.
func makesWallTime(call *ast.CallExpr) bool {
	if call == nil {
		return false
	}
	of, _ := call.Fun.(*ast.SelectorExpr)
	if of == nil {
		return false
	}
	switch of.Sel.Name {
	case "Unix", "UnixNano", "UnixMicro", "UnixMilli":
		return true
	case "UTC", "Local":
		return len(call.Args) == 0
	case "Round":
		zero, _ := call.Args[0].(*ast.BasicLit)
		return zero != nil && zero.Value == "0"
	}
	return false
}

// TestH14_MakesWallTime checks the expressions that the scan finds.
func TestH14_MakesWallTime(t *testing.T) {
	for expr, want := range map[string]bool{
		"now.UnixNano()": true, "time.Unix(0, n)": true, "now.Unix()": true, "t.UTC()": true, "t.Round(0)": true,
		"now.Sub(then)": false, "d.Round(time.Second)": false, "math.Round(x)": false, "f()": false, "time.Since(t)": false,
	} {
		parsed, err := parser.ParseExpr(expr)
		if err != nil {
			t.Fatal(err)
		}
		if got := makesWallTime(parsed.(*ast.CallExpr)); got != want {
			t.Errorf("makesWallTime(%s) = %v, want %v", expr, got, want)
		}
	}
}

// TestH14_EndOfAFreeze checks that the displayed and stored end of a freeze follows the monotonic clock, which ends the
// freeze. While the clock is not set, the end does not change, so that decisions.json is not written again.
func TestH14_EndOfAFreeze(t *testing.T) {
	now := time.Now()
	end := now.Add(time.Hour)
	for _, by := range []time.Duration{-24 * time.Hour, 24 * time.Hour, 100 * time.Millisecond, 0} {
		f := &activeFreeze{Freeze: snapshot.Freeze{Until: end.Add(by).Round(0), Length: 2 * time.Hour}, until: end}
		f.followClock(now)
		off := f.Until.Sub(end.Round(0))
		if want := by % time.Hour; off != want {
			t.Errorf("clock set by %v: off by %v, want %v", -by, off, want)
		}
		until := f.Until
		if f.followClock(now.Add(time.Minute)); f.Until != until {
			t.Errorf("the end changed to %v from %v, although the clock was not set", f.Until, until)
		}
		if remaining := f.Remaining(now); (remaining - time.Hour).Abs() > time.Second {
			t.Errorf("remaining time after a restart: %v, want 1h", remaining)
		}
	}
	f := new(activeFreeze)
	if f.followClock(now); !f.Until.IsZero() {
		t.Errorf("a freeze without an end has the end %v", f.Until)
	}
}
