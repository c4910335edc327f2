package reconcile

import (
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
)

// require makes a group require one resource, of any type.
func (f *fakeSet) require(required string) {
	f.group.cfg.Required = func(_, name string) bool { return name == required }
}

// TestB50_RequiredRemovalsWaitForAnOperator, however the origin states them. Other removals do not wait, not even by the
// number of those that do.
func TestB50_RequiredRemovalsWaitForAnOperator(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "auth", "b", "c", "d")
	f.require("auth")
	f.confirmed = true
	f.respond(epoch, "-auth", "-b")
	f.group.Decide(epoch)
	f.wantHolds(t, "removed", epoch, "required auth")
	f.wantNames(t, "removed", "auth c d")
	notFound := wire.NewResourceError("auth", codes.NotFound, "gone")
	f.Take(wire.Update{TypeURL: f.TypeURL, Errors: []*wire.ResourceError{notFound}}, epoch)
	f.respond(epoch.Add(time.Hour), "-auth")
	f.group.Decide(epoch.Add(24 * time.Hour))
	f.wantHolds(t, "stated again", epoch, "required auth")
	f.respond(epoch, "auth@2")
	f.wantHolds(t, "the origin has it again", epoch)

	f.respond(epoch, "-auth")
	f.group.Operate(Command{Do: Drop, By: "ops"}, epoch)
	f.wantHolds(t, "dropped", epoch, "dropped auth")
	f.respond(epoch, "-auth")
	f.wantHolds(t, "stated again after a drop", epoch, "required auth")
	f.group.Operate(Command{Do: Pass, Reason: Required}, epoch)
	f.wantHolds(t, "passed", epoch)
	f.wantNames(t, "passed", "c d")
}

// TestB50_InferredRemovalsOfRequiredResources wait for an operator once they are decided.
func TestB50_InferredRemovalsOfRequiredResources(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "auth", "b", "c", "d", "e", "f")
	f.require("auth")
	f.beginStream(epoch, "auth", "b", "c", "d", "e", "f")
	f.Infer(seq("auth", "b"), false, epoch)
	f.wantHolds(t, "inferred", epoch, "suspected auth b")
	f.confirmed = true
	f.group.Decide(epoch.Add(time.Minute))
	f.wantHolds(t, "confirmed", epoch, "required auth")
	f.wantNames(t, "confirmed", "auth c d e f")
}

// TestB50_RequiredRemovalsAreDecidedOnce: that a further query finds a required resource missing does not begin a hold.
func TestB50_RequiredRemovalsAreDecidedOnce(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "auth")
	f.require("auth")
	f.confirmed = true
	f.respond(epoch, "-auth")
	f.wantHolds(t, "removed", epoch, "required auth")
	for _, now := range []time.Time{epoch.Add(time.Minute), epoch.Add(time.Hour)} {
		f.Infer(seq("auth"), false, now)
		f.group.Decide(now)
		f.wantHolds(t, "missing", now, "required auth")
	}
	f.respond(epoch, "auth@2")
	f.wantHolds(t, "the origin has it again", epoch)
}

// TestB50_WhatReplacesARequiredResourceWaits for the operator, too: clients cannot have both.
func TestB50_WhatReplacesARequiredResourceWaits(t *testing.T) {
	for _, confirmed := range []bool{true, false} {
		f, now := newListeners("in:80", "other:81")
		f.require("in")
		f.confirmed = true
		f.beginStream(now, "in", "other")
		f.confirmed = confirmed
		f.take(now, []*wire.Resource{listenerResource("new", 80, 1)}, "in")
		f.confirmed = true
		f.run(now, time.Hour)
		f.wantNames(t, "renamed", "in other")
		f.wantHolds(t, "renamed", now, "waiting new", "required in")
		f.group.Operate(Command{Do: Pass}, now)
		f.wantNames(t, "passed", "new other")
		f.wantHolds(t, "passed", now)
	}
}

// TestB50_WhatARequiredResourceNamesWaitsWithIt, and what one names whose removal was dropped (P4): until an operator decides, and
// not until a time that is over.
func TestB50_WhatARequiredResourceNamesWaitsWithIt(t *testing.T) {
	for name, keep := range map[string]func(listeners *fakeSet, now time.Time){
		"required": func(listeners *fakeSet, now time.Time) {
			listeners.require("l")
			listeners.respond(now, "-l")
		},
		"dropped": func(listeners *fakeSet, now time.Time) {
			listeners.RestoreDropped("l", &Hold{Since: now, By: "ops"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			listeners, routes := newReferencing(t, true)
			listeners.complete, routes.complete = epoch, epoch
			now := epoch.Add(time.Minute)
			keep(listeners, now)
			routes.respond(now, "-r", "-s")
			routes.group.Decide(now)
			routes.wantNames(t, "removed", "r t u v")
			h := routes.group.Operate(Command{TypeURL: wire.RouteType}, now)
			if len(h) != 1 || h[0].Reason != Suspect || !h[0].ByOperator || !h[0].Until.IsZero() || len(h[0].Details) != 1 {
				t.Errorf("holds %+v, want one that ends by an operator", h)
			}
			routes.group.Operate(Command{Do: Pass, TypeURL: listeners.TypeURL, Reason: Reason(name)}, now)
			routes.wantNames(t, "passed", "t u v")
			routes.wantHolds(t, "passed", now)
		})
	}
}

// TestB50_NoDecisionIsShownInThePast (P4): what a resource names that grows waits as long as that. What one names whose change
// would break clients waits for the origin, at no known time.
func TestB50_NoDecisionIsShownInThePast(t *testing.T) {
	now := epoch.Add(time.Minute)
	for of, until := range map[state]time.Time{grown: now.Add(time.Hour), breaking: {}} {
		listeners, routes := newReferencing(t, true)
		listeners.complete, routes.complete = epoch, epoch
		listeners.record("l", removal{state: of, detail: "why", replacement: listeners.resources["l"], since: now})
		routes.respond(now, "-r")
		h := routes.group.Operate(Command{TypeURL: wire.RouteType}, now)
		if len(h) != 1 || h[0].ByOperator || !h[0].Until.Equal(until) {
			t.Errorf("state %v: holds %+v, want one until %v", of, h, until)
		}
	}
}

// TestB50_WhatARequiredResourceNamesIsHeldWithIt (P4): also if it is many, or all of its type.
func TestB50_WhatARequiredResourceNamesIsHeldWithIt(t *testing.T) {
	listeners, routes := newReferencing(t, true)
	listeners.complete, routes.complete = epoch, epoch
	now := epoch.Add(time.Minute)
	listeners.require("l")
	listeners.respond(now, "-l")
	routes.record("r", removal{state: held, since: now})
	routes.startHold(now, time.Minute)
	h := routes.group.Operate(Command{TypeURL: wire.RouteType}, now)
	if len(h) != 1 || !h[0].ByOperator || !h[0].Until.IsZero() || len(h[0].Details) != 1 {
		t.Errorf("holds %+v, want one that ends by an operator", h)
	}
}
