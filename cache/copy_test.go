package cache

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
)

// A copier is a view that keeps what another one says of names.
type copier struct {
	*origin
	from *origin
}

func newCopier(t *testing.T) *copier {
	return &copier{origin: newOrigin(t, Config{}), from: newOrigin(t, Config{})}
}

// take copies what is known of names now.
func (c *copier) take(texts ...string) {
	c.Helper()
	g := c.from.view.Generation()
	c.SetSource(*g.First())
	var names []*Name
	for _, text := range texts {
		names = append(names, c.from.name(text))
	}
	c.Copy(ByName, g, acme, names)
}

// TestB7_ACopyIsAsSureAsTheOther: what the other view does not know for certain any
// more, the copy does not, even if it saw nothing of the connection between.
func TestB7_ACopyIsAsSureAsTheOther(t *testing.T) {
	c := newCopier(t)
	own, other := c.view.Watch(), c.from.view.Watch()
	n := c.want(own, "a")[0]
	c.from.want(other, "a")
	absent := func() bool { e, _ := c.typ().Lookup(n); return c.view.Generation().Absent(e) }
	c.from.remove(ByName, "a")
	c.take("a")
	if !absent() {
		t.Fatal("not absent, as the other view says")
	}
	awake(own)
	c.from.SetConnected(false)
	c.from.SetConnected(true) // before the copy has looked
	c.take("a")
	if absent() {
		t.Error("absent still, though the origin has to say so again")
	}
	if !awake(own) {
		t.Error("nobody was woken by the new connection")
	}
	c.from.remove(ByName, "a")
	c.take("a")
	if !absent() || !awake(own) {
		t.Error("absent again: want it said, and the stream woken")
	}
	c.take("a")
	if awake(own) {
		t.Error("the stream was woken by what it knew")
	}
	c.from.put(ByName, "a", "1", "content")
	c.take("a")
	if e, _ := c.typ().Lookup(n); contentOf(e) != "content" || !awake(own) {
		t.Errorf("got %q, want the content, and the stream woken", contentOf(e))
	}
}

// TestR069_CopiesIgnoreUnwantedNames: a name that nobody wants of the copy is none of it.
func TestR069_CopiesIgnoreUnwantedNames(t *testing.T) {
	c := newCopier(t)
	c.want(c.view.Watch(), "a")
	c.from.want(c.from.view.Watch(), "a", "b")
	c.from.Apply(ByName, wire.Update{TypeURL: acme, Resources: []*wire.Resource{c.resource("a", "1", "x"), c.resource("b", "1", "y")},
		Errors: []*wire.ResourceError{wire.NewResourceError("b", codes.PermissionDenied, "")}})
	c.take("a", "b")
	if c.knows("b") || c.typ().ByName.Count() != 1 {
		t.Errorf("the copy holds %q", told(c.typ().ByName.Since(0)))
	}
}
