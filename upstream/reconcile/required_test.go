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
