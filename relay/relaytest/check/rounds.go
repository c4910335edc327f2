package check

import (
	"flag"
	"fmt"
	"strconv"
	"testing"
)

var rounds = flag.Int("rounds", 1, "multiply the number of random inputs of tests")

// Rounds returns how many random inputs a test takes: n, or with -rounds a multiple of it. With n, a test takes less than
// two seconds with the race detector; make system takes many times more. The name of such a test contains Random.
func Rounds(n int) int { return n * *rounds }

// RoundsOfRapid makes rapid.Check take Rounds(n) random inputs until restore is called. The flag -rapid.checks takes
// precedence. The number applies to all tests of a package. It panics if the package does not import rapid.
func RoundsOfRapid(n int) (restore func()) {
	checks := flag.Lookup("rapid.checks")
	if checks == nil {
		panic("the flag -rapid.checks is not defined: import pgregory.net/rapid")
	}
	before := checks.Value.String()
	set := func(text string) {
		if err := checks.Value.Set(text); err != nil {
			panic(fmt.Sprintf("-rapid.checks=%s: %v", text, err))
		}
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f == checks })
	if !given {
		set(strconv.Itoa(Rounds(n)))
	}
	return func() { set(before) }
}

// MainOfRapid is the body of a TestMain that makes rapid.Check take Rounds(n) random inputs, see RoundsOfRapid.
func MainOfRapid(m *testing.M, n int) {
	flag.Parse()
	RoundsOfRapid(n)
	m.Run()
}
