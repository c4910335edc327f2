// Package check has assertions for tests. It imports no other package of the module, so that the tests of each can use
// it.
//
// The package is not a stable API: programs that embed Tender use package relay.
package check

// A T is a test: a [testing.TB], or one that stands in for it.
type T interface {
	Helper()
	Fatal(args ...any)
	Errorf(format string, args ...any)
}

// OK fails the test now if any of the errors is not nil.
func OK(t T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Must returns a value that comes with an error, and panics unless that is nil.
func Must[V any](value V, err error) V {
	if err != nil {
		panic(err)
	}
	return value
}

// Equal fails the test unless got is want. What says what both are, such as "clusters after the hold".
func Equal[V comparable](t T, what string, got, want V) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
