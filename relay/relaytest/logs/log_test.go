package logs

import (
	"fmt"
	"testing"
	"testing/synctest"
)

// TestLog checks that Await finds texts after the mark only.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Log
		fmt.Fprint(&l, "one ready ")
		mark, found := l.Len(), false
		go func() { // awaited by synctest
			l.Await(t, mark, "ready")
			found = true
		}()
		for i, text := range []string{"", "two rea", "dy"} {
			fmt.Fprint(&l, text)
			synctest.Wait()
			if want := i == 2; found != want {
				t.Errorf("after %q: found is %v, want %v", l.String(), found, want)
			}
		}
		if n := l.Count("ready"); n != 2 {
			t.Errorf("Count is %d, want 2", n)
		}
	})
}
