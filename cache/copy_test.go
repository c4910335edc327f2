package cache

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
)

// A copier is a view that copies the state of names from another view.
type copier struct {
	*origin
	from *origin
}

func newCopier(t *testing.T) *copier {
	return &copier{origin: newOrigin(t, Config{}), from: newOrigin(t, Config{})}
}

// copy copies the present state of names.
func (c *copier) copy(texts ...string) {
	c.Helper()
	g := c.from.view.Generation()
	c.SetSource(*g.First())
	var names []*Name
	for _, text := range texts {
		names = append(names, c.from.name(text))
	}
	c.Copy(ByName, g, acme, names)
}

// TestB7_CopiesKeepUncertainty: if the other view does not know whether a resource exists, the copy does not know it
// either, even if it missed the connection in between.
func TestB7_CopiesKeepUncertainty(t *testing.T) {
	c := newCopier(t)
	own, other := c.view.Watch(), c.from.view.Watch()
	n := c.subscribe(own, "a")[0]
	c.from.subscribe(other, "a")
	absent := func() bool { e, _ := c.typ().Lookup(n); return c.view.Generation().Absent(e) }
	c.from.remove(ByName, "a")
	c.copy("a")
	if !absent() {
		t.Fatal("not absent, although the other view has it as absent")
	}
	woken(own)
	c.from.SetConnected(false)
	c.from.SetConnected(true) // before the next copy
	c.copy("a")
	if absent() {
		t.Error("still absent, although the origin has not reported it on the new connection")
	}
	if !woken(own) {
		t.Error("new connection caused no wake-up")
	}
	c.from.remove(ByName, "a")
	c.copy("a")
	if !absent() || !woken(own) {
		t.Error("absent again: want the absence copied, and a wake-up")
	}
	c.copy("a")
	if woken(own) {
		t.Error("unchanged state caused a wake-up")
	}
	c.from.put(ByName, "a", "1", "content")
	c.copy("a")
	if e, _ := c.typ().Lookup(n); contentOf(e) != "content" || !woken(own) {
		t.Errorf("got %q, want the content and a wake-up", contentOf(e))
	}
}

// TestR069_CopiesIgnoreUnwantedNames: a name without a subscription in the copy is not copied.
func TestR069_CopiesIgnoreUnwantedNames(t *testing.T) {
	c := newCopier(t)
	c.subscribe(c.view.Watch(), "a")
	c.from.subscribe(c.from.view.Watch(), "a", "b")
	u := updateOf(acme, c.resource("a", "1", "x"), c.resource("b", "1", "y"))
	u.Errors = []*wire.ResourceError{wire.NewResourceError("b", codes.PermissionDenied, "")}
	c.from.Apply(ByName, u)
	c.copy("a", "b")
	if c.hasName("b") || c.typ().ByName.Count() != 1 {
		t.Errorf("copy has %q", changedNames(c.typ().ByName.Since(0)))
	}
}
