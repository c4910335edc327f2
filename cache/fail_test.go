package cache

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
)

// fail has the origin send an error for a resource.
func (o *origin) fail(k Kind, name string, code codes.Code, message string) Change {
	o.Helper()
	return o.Apply(k,
		wire.Update{TypeURL: o.typeURL, Errors: []*wire.ResourceError{wire.NewResourceError(name, code, message)}})
}

// errorText returns the message of the error of a resource, "" if there is none.
func (o *origin) errorText(k Kind, name string) string {
	o.Helper()
	if !o.hasName(name) {
		return ""
	}
	if e := o.typ().Errors(k).Get(o.name(name)); e != nil {
		return e.Err.Code.String() + " " + e.Err.Message
	}
	return ""
}

// TestR124_Errors: an error is recorded once, for one set. It is cleared when the resource is sent again, which counts
// as a change, and by a removal.
func TestR124_Errors(t *testing.T) {
	for _, kind := range []Kind{Wildcard, ByName} {
		o, watch := newSubscribed(t)
		if kind == ByName {
			o.subscribe(watch, "a")
		} else {
			watch.SubscribeAll(acme)
		}
		set := func() *Set {
			if typ := o.typ(); kind == ByName {
				return &typ.ByName
			} else {
				return &typ.Wildcard
			}
		}
		wants := func(when, failure, content string, wake bool) {
			t.Helper()
			if got := o.errorText(kind, "a"); got != failure {
				t.Errorf("%d, %s: got failure %q, want %q", kind, when, got, failure)
			}
			if got := o.errorText(1-kind, "a"); got != "" {
				t.Errorf("%d, %s: the other set got failure %q", kind, when, got)
			}
			if got := contentOf(set().Get(o.name("a"))); got != content {
				t.Errorf("%d, %s: got content %q, want %q", kind, when, got, content)
			}
			if got := woken(watch); got != wake {
				t.Errorf("%d, %s: woken %t, want %t", kind, when, got, wake)
			}
		}
		o.put(kind, "a", "1", "x")
		woken(watch)
		before := set().Last()
		o.fail(kind, "a", codes.Internal, "first")
		wants("failed", "Internal first", "x", true)
		o.fail(kind, "a", codes.Internal, "first")
		wants("same error", "Internal first", "x", false)
		o.fail(kind, "a", codes.Internal, "second")
		wants("another error", "Internal second", "x", true)
		if got := set().Last(); got != before {
			t.Errorf("%d: error changed the position of the log from %d to %d", kind, before, got)
		}
		o.put(kind, "a", "1", "x")
		wants("the same resource", "", "x", true)
		wantLog(t, set().Since(before), "a")
		o.fail(kind, "a", codes.NotFound, "gone")
		wants("not found", "NotFound gone", "-", true)
		o.fail(kind, "a", codes.Internal, "third")
		woken(watch)
		before = o.view.Generation().Seq
		o.remove(kind, "a")
		wants("removed after an error", "", "-", true)
		wantLog(t, set().Since(before), "-a") // for clients that were sent the error
		before = o.view.Generation().Seq
		o.remove(kind, "a")
		wantLog(t, set().Since(before))
	}
}

// TestR124_ReasonOfARemoval: a removal and an error of the same resource in one response are both recorded. Repeating
// them changes nothing.
func TestR124_ReasonOfARemoval(t *testing.T) {
	o, _ := newSubscribed(t, "a")
	u := wire.Update{TypeURL: acme, Removed: []string{"a"},
		Errors: []*wire.ResourceError{wire.NewResourceError("a", codes.NotFound, "why")}}
	o.Apply(ByName, u)
	before := o.typ().Failed()
	o.Apply(ByName, u)
	if got := o.errorText(ByName, "a"); got != "NotFound why" || o.typ().Failed() != before {
		t.Errorf("got failure %q, repeated response counts as a change: %t", got, o.typ().Failed() != before)
	}
}

// TestR137_PermittedAgain: if PERMISSION_DENIED is replaced by another error, the resource is sent again to clients
// that removed it.
func TestR137_PermittedAgain(t *testing.T) {
	o := newOrigin(t, Config{})
	n := o.subscribe(o.view.Watch(), "a")[0]
	o.put(ByName, "a", "1", "x")
	denied := o.view.Generation().Seq
	o.fail(ByName, "a", codes.PermissionDenied, "no")
	o.fail(ByName, "a", codes.PermissionDenied, "still no")
	if e := o.typ().Errors(ByName).Get(n); e.Created() != denied+1 {
		t.Errorf("denied since %d, want %d", e.Created(), denied+1)
	}
	before := o.view.Generation().Seq
	o.fail(ByName, "a", codes.Unavailable, "")
	if _, seq := o.typ().Lookup(n); seq <= before {
		t.Errorf("got position %d, want one after %d", seq, before)
	}
}

// TestR123_ErrorWithoutSubscription: an error for a name without a subscription leaves no state.
func TestR123_ErrorWithoutSubscription(t *testing.T) {
	o := newOrigin(t, Config{})
	if c := o.fail(ByName, "a", codes.Internal, ""); c.Ignored != 1 || o.hasName("a") {
		t.Errorf("got %+v, name in the index: %t", c, o.hasName("a"))
	}
}

// TestR092_ErrorsReachAliases: the error of a resource is recorded for its aliases, too.
func TestR092_ErrorsReachAliases(t *testing.T) {
	o, watch := newSubscribed(t, "alias")
	o.put(ByName, "real", "1", "x", "alias")
	woken(watch)
	o.fail(ByName, "real", codes.Internal, "")
	if got := o.errorText(ByName, "alias"); got != "Internal " || !woken(watch) {
		t.Errorf("got failure %q", got)
	}
	o.put(ByName, "real", "1", "x", "alias")
	if got := o.errorText(ByName, "alias"); got != "" {
		t.Errorf("recovered: got failure %q", got)
	}
	o.fail(ByName, "real", codes.Internal, "")
	o.remove(ByName, "real")
	if got := o.errorText(ByName, "alias"); got != "" {
		t.Errorf("removed: got failure %q", got)
	}
}

// TestR123_ErrorOfTheWildcard: it is cleared when resources are sent.
func TestR123_ErrorOfTheWildcard(t *testing.T) {
	for _, key := range []string{acme, Collection(acme, "xdstp://a/acme.Thing/*")} {
		o := newOrigin(t, Config{})
		o.typeURL = key
		o.view.Watch().SubscribeAll(key)
		o.fail(Wildcard, WholeName(key), codes.Internal, "")
		if !o.typ().hasWholeError() {
			t.Errorf("%q: got no error", key)
		}
		o.Apply(Wildcard, updateOf(key, newResource(t, acme, "a", "1", "x")))
		if o.typ().hasWholeError() || o.hasName(WholeName(key)) {
			t.Errorf("%q: error was not cleared, name in the index: %t", key, o.hasName(WholeName(key)))
		}
	}
}

// TestR124_ErrorsAreForgotten: errors without subscribers leave no state.
func TestR124_ErrorsAreForgotten(t *testing.T) {
	o, watch := newSubscribed(t)
	names := o.subscribe(watch, "a")
	wildcard := watch.SubscribeAll(acme)
	o.fail(ByName, "a", codes.Internal, "")
	o.fail(Wildcard, "b", codes.Internal, "")
	o.fail(Wildcard, "c", codes.Internal, "")
	o.remove(Wildcard, "c")
	watch.Unsubscribe(acme, names)
	o.TakeDemand()
	o.Forget(acme, names)
	if o.hasName("a") {
		t.Error("failed name was not released")
	}
	watch.UnsubscribeAll(wildcard)
	o.ForgetWildcard(acme)
	for _, name := range []string{"b", "c"} {
		if o.hasName(name) {
			t.Errorf("failed member %s was not released", name)
		}
	}
	for _, kind := range [...]Kind{Wildcard, ByName} {
		if n := o.typ().Errors(kind).live; n != 0 {
			t.Errorf("%d errors remain", n)
		}
	}
}

// TestR124_ErrorsAreCopied: a view that copies from another copies its errors, and the end of errors.
func TestR124_ErrorsAreCopied(t *testing.T) {
	from, to := newOrigin(t, Config{}), newOrigin(t, Config{})
	n := from.subscribe(from.view.Watch(), "a")
	to.subscribe(to.view.Watch(), "a")
	copied := func() string {
		to.Copy(ByName, from.view.Generation(), acme, n)
		return to.errorText(ByName, "a")
	}
	from.put(ByName, "a", "1", "x")
	from.fail(ByName, "a", codes.Internal, "")
	if got := copied(); got != "Internal " {
		t.Errorf("failed: got %q", got)
	}
	before := to.view.Generation().Seq
	if got := copied(); got != "Internal " || to.view.Generation().Seq != before {
		t.Errorf("repeated: got %q, counts as a change: %t", got, to.view.Generation().Seq != before)
	}
	from.put(ByName, "a", "1", "x")
	if got := copied(); got != "" {
		t.Errorf("recovered: got %q", got)
	}
	from.fail(ByName, "a", codes.Internal, "")
	copied()
	from.remove(ByName, "a")
	if got := copied(); got != "" {
		t.Errorf("removed: got %q", got)
	}
}
