package intern

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/xdstender/tender/cache/wire"
)

const (
	acme  = "type.googleapis.com/acme.Thing"
	other = "type.googleapis.com/acme.Other"
)

func newResource(t testing.TB, typeURL, name, version, content string, aliases ...string) *wire.Resource {
	t.Helper()
	r, err := wire.NewResource(typeURL, name, version, []byte(content), aliases...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// expiring returns a resource with a TTL.
func expiring(t testing.TB, name, version, content string) *wire.Resource {
	t.Helper()
	r := newResource(t, acme, name, version, content)
	r.TTL = time.Minute
	return r
}

func TestInternSharesEqualResources(t *testing.T) {
	var in Pool
	first := newResource(t, acme, "a", "1", "x")
	if got := in.Intern(first); got != first {
		t.Error("the first of its kind was replaced")
	}
	tests := []struct {
		what string
		r    *wire.Resource
		same bool
	}{
		{"equal", newResource(t, acme, "a", "1", "x"), true},
		{"other name", newResource(t, acme, "b", "1", "x"), false},
		{"other version", newResource(t, acme, "a", "2", "x"), false},
		{"no version", newResource(t, acme, "a", "", "x"), false},
		{"other content", newResource(t, acme, "a", "1", "y"), false},
		{"other type", newResource(t, other, "a", "1", "x"), false},
		{"alias", newResource(t, acme, "a", "1", "x", "b"), false},
		{"TTL", expiring(t, "a", "1", "x"), false},
	}
	for _, test := range tests {
		if got := in.Intern(test.r); (got == first) != test.same || got != first && got != test.r {
			t.Errorf("%s: got the first one %t, want %t", test.what, got == first, test.same)
		}
		once := in.Intern(test.r)
		if again := in.Intern(test.r); again != once {
			t.Errorf("%s: interned twice, it is two", test.what)
		}
	}
	if got := in.Len(); got != len(tests) {
		t.Errorf("got %d different resources, want %d", got, len(tests))
	}
	runtime.KeepAlive(first)
	runtime.KeepAlive(tests)
}

// collect runs garbage collections, and the cleanups after them, until done; it
// gives up after a number that is far more than enough.
func collect(t *testing.T, done func() bool) {
	t.Helper()
	for range 50 {
		if done() {
			return
		}
		signal := make(chan struct{})
		runtime.AddCleanup(new([64]byte), func(c chan struct{}) { close(c) }, signal)
		runtime.GC()
		select {
		case <-signal:
		case <-time.After(10 * time.Second):
			t.Fatal("no cleanup ran after a garbage collection")
		}
	}
	t.Error("what nobody uses was not freed")
}

func TestInternedResourcesAreFreed(t *testing.T) {
	var in Pool
	kept := in.Intern(newResource(t, acme, "kept", "1", "x"))
	for i := range 100 {
		in.Intern(newResource(t, acme, "a", "", fmt.Sprint(i)))
	}
	collect(t, func() bool { return in.Len() == 1 })
	if got := in.Intern(newResource(t, acme, "kept", "1", "x")); got != kept {
		t.Error("a resource that is in use was forgotten")
	}
	if got := in.Intern(newResource(t, acme, "a", "", "99")); string(got.Value()) != "99" {
		t.Error("a resource came back as another one")
	}
	runtime.KeepAlive(kept)
}

// TestInternCollision gives two resources one hash.
func TestInternCollision(t *testing.T) {
	var in Pool
	holder, r := newResource(t, acme, "holder", "1", "x"), newResource(t, acme, "r", "1", "y")
	in.Intern(holder)
	key := keyOf(r)
	in.refs[key] = weak.Make(holder)
	for range 2 {
		if got := in.Intern(r); got != r {
			t.Fatalf("got resource %q, want r itself", got.Name)
		}
	}
	if got := in.refs[key].Value(); got != holder {
		t.Error("a collision took the place of the resource that had it")
	}
	in.forget(key) // as after a cleanup that comes late: the place is in use
	if got := in.refs[key].Value(); got != holder {
		t.Error("a late cleanup freed a place in use")
	}
	runtime.KeepAlive(holder)
}

func TestInternConcurrently(t *testing.T) {
	var in Pool
	var wg sync.WaitGroup
	got := make([][]*wire.Resource, 8)
	for i := range got { // the Wait below joins them
		wg.Go(func() {
			for j := range 200 {
				r, err := wire.NewResource(acme, fmt.Sprint(j%20), "1", []byte("x"))
				if err != nil {
					t.Error(err)
					return
				}
				if r = in.Intern(r); j < 20 {
					got[i] = append(got[i], r)
				} else if r != got[i][j%20] {
					t.Errorf("resource %d became another one while in use", j)
				}
			}
		})
	}
	wg.Wait()
	for i := range got {
		for j, r := range got[i] {
			if r != got[0][j] {
				t.Errorf("goroutines 0 and %d have two of resource %d", i, j)
			}
		}
	}
	runtime.KeepAlive(got)
}
