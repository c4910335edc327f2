// Command bench measures Tender against minimal servers and against other xDS
// servers, each in a separate process, and prints a Markdown table.
//
//	bench [-scenario S1,S2] [-attacks pings] [-rounds 3] [-scale 1] [-gogc 50] [-tender ../bin/tender] [-results results]
//	bench -scenario OBSERVER [-streams 40000] [-for 1m] [-rate 10000]
//
// README.md describes the method. The command starts further instances of itself in
// other roles: bench load, bench serve KIND, bench attack.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/xdstender/tender/bench/attack"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/process"
	"github.com/xdstender/tender/bench/serve"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run parses the flags of the driver and runs the scenarios, or runs the role that args names.
func run(args []string) error {
	if done, err := play(args); done {
		return err
	}
	o := options{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.scenarios, "scenario", "", "scenarios to run, as in S1,S3 (default all)")
	f.StringVar(&o.attacks, "attacks", "", "attacks of HOSTILE to run, as in \"large Nodes,pings\" (default all)")
	f.IntVar(&o.rounds, "rounds", 0, "how often each is run (default each scenario's own)")
	f.Float64Var(&o.scale, "scale", 1, "part of the clients and changes that are run, for a quick look")
	f.IntVar(&o.streams, "streams", 0, "streams of OBSERVER (default 40,000, times -scale)")
	f.DurationVar(&o.lasts, "for", 0, "how long OBSERVER measures the rate that it found (default 1m, times -scale)")
	f.IntVar(&o.rate, "rate", 10_000, "highest rate of OBSERVER, in changes per second")
	f.StringVar(&o.tender, "tender", "../bin/tender", "the binary to measure")
	f.StringVar(&o.results, "results", "results", "directory for the table; empty for none")
	f.StringVar(&o.gogc, "gogc", "", "GOGC of Tender (default Go's own, 100)")
	f.StringVar(&o.commit, "commit", "unknown", "the commit that is measured")
	if err := f.Parse(args); err != nil {
		return err
	}
	f.Visit(func(set *flag.Flag) {
		if slices.Contains([]string{"attacks", "scale", "streams", "for", "rate", "gogc"}, set.Name) {
			o.differs = append(o.differs, set.Name, strings.NewReplacer(" ", "-", ",", "-", "/", "-").Replace(set.Value.String()))
		}
	})
	for _, kind := range o.wantedAttacks() {
		if !slices.Contains(attack.Kinds(), kind) {
			return fmt.Errorf("-attacks: there is no attack %q, but %s", kind, strings.Join(attack.Kinds(), ", "))
		}
	}
	if o.streams < 0 || o.lasts < 0 || o.rate < 0 {
		return fmt.Errorf("-streams %d -for %v -rate %d: use none below 0", o.streams, o.lasts, o.rate)
	}
	return drive(o, os.Stdout, os.Stderr)
}

// play runs the role that the arguments name. done is false if they name none, in which case the process is the driver.
func play(args []string) (done bool, err error) {
	switch {
	case len(args) == 1 && args[0] == "load":
		l, err := load.New()
		if err != nil {
			return true, err
		}
		return true, process.Serve(l)
	case len(args) == 1 && args[0] == "attack":
		return true, process.Serve(&attack.Attack{})
	case len(args) == 2 && args[0] == "serve":
		return true, process.Serve(serve.New(args[1]))
	default:
		return false, nil
	}
}
