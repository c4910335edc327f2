package upstream

import (
	"fmt"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// TestH02_AnInterruptedLookBeginsAnew: on a stream that says what is held, silence does not confirm that it is gone.
func TestH02_AnInterruptedLookBeginsAnew(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, told := range []bool{false, true} {
		r := &removals{held: map[string]removal{"a": {stated: true}}, until: now}
		if look, _ := r.due(now); !look {
			t.Fatal("no second look")
		}
		r.begin(true, told)
		if look, _ := r.due(now); look != told {
			t.Errorf("told what is held: %t: another look: %t", told, look)
		}
	}
}

// TestH03_AdditionsThatAreGoneAgain: new listeners count against removals, since they may be the old ones under other names, but not if
// they were removed too.
func TestH03_AdditionsThatAreGoneAgain(t *testing.T) {
	for _, tt := range []struct {
		name string
		gone []string // of the new ones
		held int
	}{
		{"renamed", nil, 0},
		{"renamed, and removed", []string{"d", "e", "f"}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old := map[string]*wire.Resource{"a": {}, "b": {}, "c": {}}
			s := screening{
				has:    func(name string) *wire.Resource { return old[name] },
				needed: func(string) bool { return false }, mayBeNeeded: func(string) bool { return false },
			}
			r := new(removals)
			r.begin(true, false)
			u := wire.Update{TypeURL: wire.ListenerType, Resources: []*wire.Resource{{Name: "d"}, {Name: "e"}, {Name: "f"}}}
			r.grow(r.screen(u, s), s, func() cache.Change {
				for _, res := range u.Resources {
					old[res.Name] = res
				}
				return cache.Change{New: 3}
			})
			r.screen(wire.Update{TypeURL: wire.ListenerType, Removed: tt.gone}, s)
			for _, name := range tt.gone {
				delete(old, name)
			}
			r.infer(map[string]struct{}{"a": {}, "b": {}, "c": {}}, false)
			s.confirmed = true
			if v := r.judge(wire.ListenerType, len(old), s); v.held != tt.held {
				t.Errorf("%d removals are held, want %d", v.held, tt.held)
			}
		})
	}
}

// TestB15_RequestsKeepTheirNames: when names are given up that were asked for, the request that asks for them may not be sent
// yet. It goes on to have its names.
func TestB15_RequestsKeepTheirNames(t *testing.T) {
	view, _ := cache.New(cache.Config{})
	watch := view.Watch()
	defer watch.Close()
	watch.Subscribe(wire.ClusterType, []string{"b"})
	s := &subscription{names: map[*cache.Name]struct{}{view.Find(wire.ClusterType, []string{"b"})[0]: {}}}
	request := &discoverypb.DeltaDiscoveryRequest{}
	asked := append(make([]string, 0, 10), "a", "b", "c")
	request.ResourceNamesSubscribe, _ = cut(asked)
	given := append(s.unwanted(asked), "glob")
	if got, want := fmt.Sprint(given, request.ResourceNamesSubscribe, asked[:4]), "[a c glob] [a b c] [a b c ]"; got != want {
		t.Errorf("given up, in the request, and after what was asked: %s, want %s", got, want)
	}
}

// TestH02_WhatIsConfirmedStaysConfirmed: all of a set was said once no new name has come for a while. One that comes later is a
// change, and makes no removal on the same stream wait.
func TestH02_WhatIsConfirmedStaysConfirmed(t *testing.T) {
	const quiet = 10 * time.Second
	began := time.Unix(1000, 0)
	var l learning
	for _, tt := range []struct {
		at, confirmed time.Duration
	}{{0, quiet}, {5 * time.Second, 15 * time.Second}, {20 * time.Second, 15 * time.Second}} {
		l.heard(began.Add(tt.at), true, quiet)
		if got := l.confirmed(began, quiet).Sub(began); got != tt.confirmed {
			t.Errorf("a new name after %v: the set is confirmed after %v, want %v", tt.at, got, tt.confirmed)
		}
	}
}
