package immutable

import (
	"flag"
	"os"
	"strconv"
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestMain multiplies the number of random inputs of rapid.Check by -rounds.
func TestMain(m *testing.M) {
	flag.Parse()
	checks := flag.Lookup("rapid.checks").Value
	n, err := strconv.Atoi(checks.String())
	if err == nil {
		err = checks.Set(strconv.Itoa(check.Rounds(n)))
	}
	if err != nil {
		panic(err) // the flag exists and is a number
	}
	os.Exit(m.Run())
}
