package cache

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
)

// fail has the origin say that a resource fails.
func (o *origin) fail(k Kind, name string, code codes.Code, message string) Change {
	o.Helper()
	return o.Apply(k, wire.Update{TypeURL: o.typeURL, Errors: []*wire.ResourceError{wire.NewResourceError(name, code, message)}})
}

// failure returns what is wrong with a resource, "" if nothing is.
func (o *origin) failure(k Kind, name string) string {
	o.Helper()
	if !o.knows(name) {
		return ""
	}
	if e := o.typ().Errors(k).Get(o.name(name)); e != nil {
		return e.Err.Code.String() + " " + e.Err.Message
	}
	return ""
}

// TestR124_Errors: an error is recorded for one set, once, and is over with the
// resource, which is news again, or with its removal.
func TestR124_Errors(t *testing.T) {
	for _, kind := range []Kind{Wildcard, ByName} {
		o, watch := watched(t)
		if kind == ByName {
			o.want(watch, "a")
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
		wants := func(when, failure, content string, woken bool) {
			t.Helper()
			if got := o.failure(kind, "a"); got != failure {
				t.Errorf("%d, %s: got failure %q, want %q", kind, when, got, failure)
			}
			if got := o.failure(1-kind, "a"); got != "" {
				t.Errorf("%d, %s: the other set got failure %q", kind, when, got)
			}
			if got := contentOf(set().Get(o.name("a"))); got != content {
				t.Errorf("%d, %s: got content %q, want %q", kind, when, got, content)
			}
			if got := awake(watch); got != woken {
				t.Errorf("%d, %s: woken %t, want %t", kind, when, got, woken)
			}
		}
		o.put(kind, "a", "1", "x")
		awake(watch)
		before := set().Last()
		o.fail(kind, "a", codes.Internal, "first")
		wants("failed", "Internal first", "x", true)
		o.fail(kind, "a", codes.Internal, "first")
		wants("failed in the same way", "Internal first", "x", false)
		o.fail(kind, "a", codes.Internal, "second")
		wants("failed otherwise", "Internal second", "x", true)
		if got := set().Last(); got != before {
			t.Errorf("%d: an error moved the log of the resources from %d to %d", kind, before, got)
		}
		o.put(kind, "a", "1", "x")
		wants("the same resource", "", "x", true)
		wantTold(t, set().Since(before), "a")
		o.fail(kind, "a", codes.NotFound, "gone")
		wants("not found", "NotFound gone", "-", true)
		o.fail(kind, "a", codes.Internal, "third")
		awake(watch)
		before = o.view.Generation().Seq
		o.remove(kind, "a")
		wants("removed what failed", "", "-", true)
		wantTold(t, set().Since(before), "-a") // to those who were told that it fails
		before = o.view.Generation().Seq
		o.remove(kind, "a")
		wantTold(t, set().Since(before))
	}
}

// TestR124_ReasonOfARemoval: a removal and an error of the same resource in one
// response are both recorded, however often they come.
func TestR124_ReasonOfARemoval(t *testing.T) {
	o, _ := watched(t, "a")
	u := wire.Update{TypeURL: acme, Removed: []string{"a"}, Errors: []*wire.ResourceError{wire.NewResourceError("a", codes.NotFound, "why")}}
	o.Apply(ByName, u)
	before := o.typ().Failed()
	o.Apply(ByName, u)
	if got := o.failure(ByName, "a"); got != "NotFound why" || o.typ().Failed() != before {
		t.Errorf("got failure %q, and again news: %t", got, o.typ().Failed() != before)
	}
}

// TestR137_PermittedAgain: what was denied, and now only fails, is news to those from
// whom it was kept.
func TestR137_PermittedAgain(t *testing.T) {
	o := newOrigin(t, Config{})
	n := o.want(o.view.Watch(), "a")[0]
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

// TestR123_ErrorWithoutSubscription: an error of a name that nobody asked for leaves nothing.
func TestR123_ErrorWithoutSubscription(t *testing.T) {
	o := newOrigin(t, Config{})
	if c := o.fail(ByName, "a", codes.Internal, ""); c.Ignored != 1 || o.knows("a") {
		t.Errorf("got %+v, and the name is known: %t", c, o.knows("a"))
	}
}

// TestR092_ErrorsReachAliases: what is wrong with a resource, those know who asked for
// it by an alias.
func TestR092_ErrorsReachAliases(t *testing.T) {
	o, watch := watched(t, "alias")
	o.put(ByName, "real", "1", "x", "alias")
	awake(watch)
	o.fail(ByName, "real", codes.Internal, "")
	if got := o.failure(ByName, "alias"); got != "Internal " || !awake(watch) {
		t.Errorf("got failure %q", got)
	}
	o.put(ByName, "real", "1", "x", "alias")
	if got := o.failure(ByName, "alias"); got != "" {
		t.Errorf("back: got failure %q", got)
	}
	o.fail(ByName, "real", codes.Internal, "")
	o.remove(ByName, "real")
	if got := o.failure(ByName, "alias"); got != "" {
		t.Errorf("removed: got failure %q", got)
	}
}

// TestR123_ErrorOfTheWildcard: it is over when members come.
func TestR123_ErrorOfTheWildcard(t *testing.T) {
	for _, key := range []string{acme, Collection(acme, "xdstp://a/acme.Thing/*")} {
		o := newOrigin(t, Config{})
		o.typeURL = key
		o.view.Watch().SubscribeAll(key)
		o.fail(Wildcard, wholeName(key), codes.Internal, "")
		if !o.typ().hasWholeError() {
			t.Errorf("%q: got no error", key)
		}
		o.Apply(Wildcard, wire.Update{TypeURL: key, Resources: []*wire.Resource{newResource(t, acme, "a", "1", "x")}})
		if o.typ().hasWholeError() || o.knows(wholeName(key)) {
			t.Errorf("%q: there is an error still, or its name is known: %t", key, o.knows(wholeName(key)))
		}
	}
}

// TestR124_ErrorsAreForgotten: nothing is left of errors that nobody can be told of.
func TestR124_ErrorsAreForgotten(t *testing.T) {
	o, watch := watched(t)
	names := o.want(watch, "a")
	wildcard := watch.SubscribeAll(acme)
	o.fail(ByName, "a", codes.Internal, "")
	o.fail(Wildcard, "b", codes.Internal, "")
	o.fail(Wildcard, "c", codes.Internal, "")
	o.remove(Wildcard, "c")
	watch.Unsubscribe(acme, names)
	o.TakeDemand()
	o.Forget(acme, names)
	if o.knows("a") {
		t.Error("a name that failed was not forgotten")
	}
	watch.UnsubscribeAll(wildcard)
	o.ForgetWildcard(acme)
	for _, name := range []string{"b", "c"} {
		if o.knows(name) {
			t.Errorf("member %s that failed was not forgotten", name)
		}
	}
	for _, kind := range [...]Kind{Wildcard, ByName} {
		if n := o.typ().Errors(kind).live; n != 0 {
			t.Errorf("%d errors are left", n)
		}
	}
}

// TestR124_ErrorsAreCopied: a view that takes part in another has its errors, and not
// those that are over.
func TestR124_ErrorsAreCopied(t *testing.T) {
	from, to := newOrigin(t, Config{}), newOrigin(t, Config{})
	n := from.want(from.view.Watch(), "a")
	to.want(to.view.Watch(), "a")
	copied := func() string {
		to.Copy(ByName, from.view.Generation(), acme, n)
		return to.failure(ByName, "a")
	}
	from.put(ByName, "a", "1", "x")
	from.fail(ByName, "a", codes.Internal, "")
	if got := copied(); got != "Internal " {
		t.Errorf("failed: got %q", got)
	}
	before := to.view.Generation().Seq
	if got := copied(); got != "Internal " || to.view.Generation().Seq != before {
		t.Errorf("once more: got %q, and news: %t", got, to.view.Generation().Seq != before)
	}
	from.put(ByName, "a", "1", "x")
	if got := copied(); got != "" {
		t.Errorf("back: got %q", got)
	}
	from.fail(ByName, "a", codes.Internal, "")
	copied()
	from.remove(ByName, "a")
	if got := copied(); got != "" {
		t.Errorf("removed: got %q", got)
	}
}
