package pending

import (
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// state has the origin send a response.
func (o *origin) stated(kind cache.Kind, u wire.Update) cache.Change {
	u.TypeURL = o.typeURL
	return o.Apply(kind, u)
}

// denied returns an error that clients may not have a resource.
func denied(name, message string) []*wire.ResourceError {
	return []*wire.ResourceError{wire.NewResourceError(name, codes.PermissionDenied, message)}
}

// TestH13_ContentWithTheSameError: content that comes with the error that clients have already keeps that error at the thaw.
func TestH13_ContentWithTheSameError(t *testing.T) {
	o := newFrozenOrigin(t)
	o.Thaw()
	o.fail(cache.ByName, "n", codes.PermissionDenied, "no")
	o.Freeze()
	o.stated(cache.ByName, wire.Update{Resources: []*wire.Resource{o.resource("n", "2", "n2")}, Errors: denied("n", "no")})
	o.Thaw()
	if got := o.errorText(cache.ByName, "n"); got != "PermissionDenied no" {
		t.Errorf("error %q, want PermissionDenied no", got)
	}
}

// TestH13_HeartbeatOfAMemberThatWaits: heartbeats renew a member that waits, and make the relay request nothing.
func TestH13_HeartbeatOfAMemberThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFrozenOrigin(t)
		o.putTTL(cache.Wildcard, "new", "1", "new1", time.Minute)
		for range 10 {
			time.Sleep(30 * time.Second)
			o.heartbeat(cache.Wildcard, "new", "1", time.Minute)
			o.expire(time.Now())
		}
		if demand := o.Writer().TakeDemand(); len(demand) > 0 {
			t.Errorf("a heartbeat makes the relay request %v", demand)
		}
		o.Thaw()
		o.wantVisible("thawed", map[string]string{"new": "new1"})
	})
}

// TestH13_ErrorOfTheWholeSetAfterAChange: an error of the whole set that follows a change is there after the thaw.
func TestH13_ErrorOfTheWholeSetAfterAChange(t *testing.T) {
	o := newFrozenOrigin(t)
	o.put(cache.Wildcard, "a", "2", "a2")
	o.fail(cache.Wildcard, wire.Wildcard, codes.Internal, "no")
	o.Thaw()
	if got := o.errorText(cache.Wildcard, wire.Wildcard); got != "Internal no" {
		t.Errorf("error %q of the set, want Internal no", got)
	}
}

// TestH13_ErrorOfAFormerAlias: an error of a resource does not concern a name that names another one by now.
func TestH13_ErrorOfAFormerAlias(t *testing.T) {
	o := newFrozenOrigin(t)
	o.Thaw()
	o.subscribe(o.watch, "al", "real", "next")
	o.put(cache.ByName, "real", "1", "real1", "al")
	o.Freeze()
	o.put(cache.ByName, "next", "1", "next1", "al")
	o.fail(cache.ByName, "real", codes.PermissionDenied, "no")
	o.Thaw()
	o.wantVisible("thawed", map[string]string{"al": "next1"})
	if got := o.errorText(cache.ByName, "al"); got != "" {
		t.Errorf("al has the error %q of a resource that it does not name", got)
	}
}

// variantOf returns a variant for clients with the parameter env, or without it.
func variantOf(o *origin, name, content, env string) *wire.Resource {
	c := &discoverypb.DynamicParameterConstraints{Type: &discoverypb.DynamicParameterConstraints_Constraint{
		Constraint: &discoverypb.DynamicParameterConstraints_SingleConstraint{
			Key: "env", ConstraintType: &discoverypb.DynamicParameterConstraints_SingleConstraint_Exists_{},
		},
	}}
	if env == "" {
		c = &discoverypb.DynamicParameterConstraints{Type: &discoverypb.DynamicParameterConstraints_NotConstraints{NotConstraints: c}}
	}
	v := *o.resource(name, content, content)
	v.Constraints, _ = proto.MarshalOptions{Deterministic: true}.Marshal(c)
	return &v
}

// TestH13_RemovedVariantOfAMemberThatWaits: the removal of a variant takes back a new member that waits.
func TestH13_RemovedVariantOfAMemberThatWaits(t *testing.T) {
	o := newFrozenOrigin(t)
	v := variantOf(o.origin, "new", "1", "")
	o.stated(cache.Wildcard, wire.Update{Resources: []*wire.Resource{v}})
	o.stated(cache.Wildcard, wire.Update{RemovedVariants: []wire.Variant{v.Variant()}})
	if n := o.view.Withheld(0); n != 0 {
		t.Errorf("%d names are withheld", n)
	}
	o.Thaw()
	o.wantVisible("thawed", map[string]string{"new": ""})
}

// TestH13_TheFirstOfTwoVariants: of two variants of a new member in one response, the first is used.
func TestH13_TheFirstOfTwoVariants(t *testing.T) {
	o := newFrozenOrigin(t)
	c := o.stated(cache.Wildcard, wire.Update{Resources: []*wire.Resource{variantOf(o.origin, "new", "1", ""), o.resource("new", "2", "2")}})
	if len(c.Ambiguous) != 1 {
		t.Errorf("ambiguous: %v", c.Ambiguous)
	}
	o.Thaw()
	o.wantVisible("thawed", map[string]string{"new": "1"})
}

// TestH13_RemovalOfANameWithParameters: a removal takes back what waits for a name with parameters.
func TestH13_RemovalOfANameWithParameters(t *testing.T) {
	o := newFrozenOrigin(t)
	o.Thaw()
	name := wire.WithParameters("p", map[string]string{"env": "x"})
	o.subscribe(o.watch, name)
	o.remove(cache.ByName, "p")
	o.Freeze()
	o.put(cache.ByName, "p", "1", "p1")
	o.remove(cache.ByName, "p")
	o.Thaw()
	o.wantVisible("thawed", map[string]string{name: "-"})
}

// TestH13_AnErrorEndsWithContentThatExpires: content ends an error, also if it expires before the thaw.
func TestH13_AnErrorEndsWithContentThatExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFrozenOrigin(t)
		o.Thaw()
		o.fail(cache.ByName, "n", codes.PermissionDenied, "no")
		o.Freeze()
		o.putTTL(cache.ByName, "n", "2", "n2", time.Minute)
		time.Sleep(time.Hour)
		o.expire(time.Now())
		o.Thaw()
		if got := o.errorText(cache.ByName, "n"); got != "" {
			t.Errorf("error %q, want none", got)
		}
	})
}

// TestH13_CountsOfWhatIsTakenBack: a statement that takes back what waits counts as it does without a freeze.
func TestH13_CountsOfWhatIsTakenBack(t *testing.T) {
	o := newFrozenOrigin(t)
	o.put(cache.Wildcard, "a", "2", "a2")
	if c := o.put(cache.Wildcard, "a", "1", "a1"); c.Changed != 1 || c.Same != 0 {
		t.Errorf("a is taken back: %+v, want 1 changed, 0 same", c)
	}
	o.put(cache.Wildcard, "new", "1", "new1")
	if c := o.remove(cache.Wildcard, "new"); c.Removed != 1 {
		t.Errorf("new is taken back: %+v, want 1 removed", c)
	}
	o.remove(cache.Wildcard, "b")
	if c := o.put(cache.Wildcard, "b", "1", "b1"); c.New != 1 || c.Changed != 1 || c.Same != 0 {
		t.Errorf("b is stated again: %+v, want 1 new, 0 same", c)
	}
	o.typeURL = acme
	v := variantOf(o.origin, "a", "x", "")
	v.OriginVersion = "1"
	if c := o.stated(cache.Wildcard, wire.Update{Resources: []*wire.Resource{v}}); len(c.Reused) != 0 {
		t.Errorf("another variant: %+v, want no reused version", c)
	}
}

// TestH13_ARowWithAnErrorOnly: while endpoints are rolled back, another error of a missing resource is there after the thaw.
func TestH13_ARowWithAnErrorOnly(t *testing.T) {
	o, _ := newRollbackOrigin(t)
	o.confirm(wire.EndpointType, "e")
	o.fail(cache.Wildcard, "gone", codes.PermissionDenied, "no")
	o.RollBack(nil, time.Now())
	o.fail(cache.Wildcard, "gone", codes.NotFound, "gone")
	o.Thaw()
	if got := o.errorText(cache.Wildcard, "gone"); got != "NotFound gone" {
		t.Errorf("error %q, want NotFound", got)
	}
	if n := len(o.sets); n != 0 {
		t.Errorf("rows remain after the thaw: %v", o.sets)
	}
	o.Waiting() // it panics
}

// TestH13_ARemovalWithAnError: a removal of endpoints with an error keeps the error at the thaw.
func TestH13_ARemovalWithAnError(t *testing.T) {
	o, _ := newRollbackOrigin(t)
	o.confirm(wire.EndpointType, "e")
	o.RollBack(nil, time.Now())
	o.stated(cache.Wildcard, wire.Update{Removed: []string{"e"}, Errors: denied("e", "no")})
	o.Thaw()
	if got := o.errorText(cache.Wildcard, "e"); got != "PermissionDenied no" {
		t.Errorf("error %q, want PermissionDenied no", got)
	}
}

// TestH13_EndpointsUnderAnAliasReturn: endpoints that were removed and stated again during a rollback exist under all names.
func TestH13_EndpointsUnderAnAliasReturn(t *testing.T) {
	o, _ := newRollbackOrigin(t)
	o.typeURL = wire.EndpointType
	o.subscribe(o.watch, "al", "real")
	o.put(cache.ByName, "real", "1", "1", "al")
	o.RollBack(nil, time.Now())
	o.remove(cache.ByName, "real")
	o.put(cache.ByName, "real", "2", "2", "al")
	o.Thaw()
	o.wantVisible("thawed", map[string]string{"al": "2", "real": "2"})
}

// TestH13_AReusedVersionThatWaits: a version that is reused while it waits counts as reused (B.2).
func TestH13_AReusedVersionThatWaits(t *testing.T) {
	o := newFrozenOrigin(t)
	o.put(cache.Wildcard, "a", "2", "x")
	if c := o.put(cache.Wildcard, "a", "2", "y"); len(c.Reused) != 1 {
		t.Errorf("%+v", c)
	}
	o.Thaw()
	if !o.view.Generation().First().Reused {
		t.Error("the source does not have Reused")
	}
}

// TestH13_ErrorOfARemovedVariant: the removal of a variant leaves its error, as it does without a freeze.
func TestH13_ErrorOfARemovedVariant(t *testing.T) {
	o := newFrozenOrigin(t)
	o.Thaw()
	v := variantOf(o.origin, "v", "1", "")
	o.stated(cache.Wildcard, wire.Update{Resources: []*wire.Resource{v}, Errors: denied("v", "no")})
	o.Freeze()
	o.stated(cache.Wildcard, wire.Update{RemovedVariants: []wire.Variant{v.Variant()}})
	o.Thaw()
	if got := o.errorText(cache.Wildcard, "v"); got != "PermissionDenied no" {
		t.Errorf("error %q, want that of the origin", got)
	}
}

// TestH13_AnErrorAfterARemoval: an error of endpoints that follows their removal is there after the thaw.
func TestH13_AnErrorAfterARemoval(t *testing.T) {
	o, _ := newRollbackOrigin(t)
	o.confirm(wire.EndpointType, "e", "x")
	o.fail(cache.Wildcard, "x", codes.Internal, "x")
	o.RollBack(nil, time.Now())
	o.remove(cache.Wildcard, "e")
	o.fail(cache.Wildcard, "e", codes.PermissionDenied, "no")
	o.Thaw()
	if got := o.errorText(cache.Wildcard, "e"); got != "PermissionDenied no" {
		t.Errorf("error %q, want PermissionDenied no", got)
	}
}

// TestH13_VersionAfterAForgottenRow: the displayed version is the newest after the thaw, also if the name that waited was forgotten.
func TestH13_VersionAfterAForgottenRow(t *testing.T) {
	o := newFrozenOrigin(t)
	o.Thaw()
	names := o.subscribe(o.watch, "late")
	o.stated(cache.ByName, wire.Update{SystemVersion: "s1", Resources: []*wire.Resource{o.resource("late", "1", "1")}})
	o.Freeze()
	o.stated(cache.ByName, wire.Update{SystemVersion: "s2", Resources: []*wire.Resource{o.resource("late", "2", "2")}})
	o.watch.Unsubscribe(acme, names)
	o.Writer().TakeDemand()
	o.Forget(acme, names)
	o.Thaw()
	if got := o.typ().ByName.System(); got != "s2" {
		t.Errorf("version %q, want s2", got)
	}
}

// TestH13_AnAliasAndAResourceOfItsName: of an alias and a resource of that name in one response, the last one counts.
func TestH13_AnAliasAndAResourceOfItsName(t *testing.T) {
	o := newFrozenOrigin(t)
	o.Thaw()
	o.put(cache.Wildcard, "b", "1", "b1")
	o.subscribe(o.watch, "b")
	o.Freeze()
	o.stated(cache.ByName, wire.Update{Resources: []*wire.Resource{o.resource("c", "1", "c1", "b"), o.resource("b", "1", "b1")}})
	o.Thaw()
	o.wantVisible("thawed", map[string]string{"b": "b1"})
}

// TestH13_AnErrorOfAVariant: a row with only an error does not remain after the thaw of a rollback.
func TestH13_AnErrorOfAVariant(t *testing.T) {
	o, _ := newRollbackOrigin(t)
	o.typeURL = wire.EndpointType
	o.subscribe(o.watch, "e")
	o.fail(cache.ByName, "e", codes.PermissionDenied, "no")
	o.RollBack(nil, time.Now())
	gone := wire.NewResourceError("e", codes.NotFound, "gone")
	gone.Variant = variantOf(o.origin, "e", "1", "").Variant()
	o.stated(cache.ByName, wire.Update{Errors: []*wire.ResourceError{gone}})
	o.Thaw()
	if got := o.errorText(cache.ByName, "e"); got != "NotFound gone" {
		t.Errorf("error %q, want NotFound", got)
	}
	if n := len(o.sets); n != 0 {
		t.Errorf("rows remain after the thaw: %v", o.sets)
	}
	o.Waiting() // it panics
}

// TestH13_AThawAndAnInterval: a thaw removes a cluster only after the route change that ends its use, which waits for an interval (B.11).
func TestH13_AThawAndAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, w := cache.New(cache.Config{Waits: func(u string) bool { return u == wire.ClusterType }})
		l := New(w, clockOf(map[string]time.Duration{wire.RouteType: time.Minute}))
		l.SetConnected(true)
		r := &rig{l, t, v}
		r.confirm(wire.ClusterType, "kept=1", "old=1")
		r.confirm(wire.RouteType, "r=old", "s=1")
		time.Sleep(time.Hour)
		l.RollBack(nil, time.Now())
		r.state(wire.RouteType, "s=2")
		r.state(wire.RouteType, "r=kept")
		r.expectServed(wire.RouteType, "r=old s=2")
		l.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Removed: []string{"old"}})
		l.Thaw()
		r.expectServed(wire.RouteType, "r=kept s=2")
		r.expectServed(wire.ClusterType, "kept=1")
	})
}

// TestH13_RollBackGivesFormersOfWhatWaits: rows that wait for an interval become rolled back, and then frozen.
func TestH13_RollBackGivesFormersOfWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, w := cache.New(cache.Config{Waits: func(u string) bool { return u == wire.ClusterType }})
		l := New(w, clockOf(map[string]time.Duration{wire.ClusterType: time.Minute, wire.EndpointType: time.Minute}))
		l.SetConnected(true)
		r := &rig{l, t, v}
		r.confirm(wire.ClusterType, "a=1", "b=1")
		r.confirm(wire.EndpointType, "a=1", "b=1")
		time.Sleep(time.Hour)
		state := v.NewState(0)
		r.state(wire.ClusterType, "a=2", "new=1")
		_, step := state.Next(v.Generation())
		r.state(wire.ClusterType, "a=3", "new=2") // waits for the interval
		l.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Removed: []string{"b"}})
		r.state(wire.EndpointType, "a=2")
		l.Apply(cache.Wildcard, wire.Update{TypeURL: wire.EndpointType, Removed: []string{"b"}})
		l.RollBack(step.Formers, time.Now())
		r.expectServed(wire.ClusterType, "a=1 b=1")
		r.state(wire.EndpointType, "a=3")
		r.expectServed(wire.EndpointType, "a=2 b=1")
		time.Sleep(2 * time.Minute)
		l.Step(time.Now())
		r.expectServed(wire.EndpointType, "a=3 b=1")
		r.expectServed(wire.ClusterType, "a=1 b=1")
		l.Freeze()
		r.state(wire.EndpointType, "a=4")
		r.expectServed(wire.EndpointType, "a=3 b=1")
		l.Thaw()
		r.expectServed(wire.EndpointType, "a=4")
		r.expectServed(wire.ClusterType, "a=3 new=2")
		if len(l.clock.waits) != 0 {
			t.Error(l.clock.waits)
		}
	})
}

// TestH13_AliasesAreForgotten: an alias that moves leaves nothing behind.
func TestH13_AliasesAreForgotten(t *testing.T) {
	o := newFrozenOrigin(t)
	o.Thaw()
	o.subscribe(o.watch, "al")
	o.put(cache.ByName, "real", "1", "real1", "al")
	o.Freeze()
	for i := range 100 {
		o.put(cache.ByName, "real"+time.Duration(i).String(), "1", "x", "al")
	}
	if n := len(o.aliases[setKey{acme, cache.ByName}]); n > 1 {
		t.Errorf("%d resources have aliases, want 1", n)
	}
}

// TestH13_ExpiredRowIsNotAdded: what has expired while it waits is no newest state.
func TestH13_ExpiredRowIsNotAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFrozenOrigin(t)
		o.putTTL(cache.Wildcard, "new", "1", "new1", time.Minute)
		time.Sleep(time.Hour)
		o.expire(time.Now())
		for name := range o.Added(acme) {
			t.Errorf("%s is reported to the origin, but has expired", name)
		}
	})
}
