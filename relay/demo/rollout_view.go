package demo

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"
)

// rowGap is the maximum time between two rows.
const rowGap = 2500 * time.Millisecond

const (
	rolloutHead = "   time    sent to  endpoints    median      99%%  what happens\n"
	rolloutRow  = "%7s  %9s  %9d  %8s %8s  %s\n"
)

// openingRollout prints the stages and the number of clients in each.
func (d *demo) openingRollout() {
	d.print("The relay has TENDER_ROLLOUT='%s', so a change reaches\n\n", d.cohorts.stages)
	const row = "  %-11v  %4d clients  %s\n"
	later := fmt.Sprintf("%v later, if no client before them has rejected it", d.Stage)
	for i, stage := range d.cohorts.stages {
		when := later
		if i == 0 {
			when = "first"
		}
		d.print(row, stage.Selector, d.cohorts.sizes[i], when)
	}
	d.print(row, "the rest", d.cohorts.sizes[len(d.cohorts.stages)], later)
	d.print("\nEndpoints reach all of them at once. In another terminal, see the state of the rollout:\n\n")
	d.print("  %s rollout status --admin %s\n\n", d.Command, d.relay.AdminAddrs()[0])
}

// introduction explains the rows.
func (s *rolloutDemo) introduction() {
	s.print("\nEach row says how many clients were sent the change so far, how many times endpoints changed since the row before, and\n" +
		"how long it took until clients had these endpoints.\n")
}

// row prints a row with the measurements since the previous row.
func (s *rolloutDemo) row(now time.Time, what string) {
	r := s.count()
	s.print(rolloutRow, seconds(now.Sub(s.began)), fmt.Sprintf("%d/%d", s.sent(), s.Clients), r.changes, r.delays.show(50), r.delays.show(99), what)
}

// count returns the measurements since the previous call. They cover endpoints only, because staged changes have no
// stamps.
func (s *rolloutDemo) count() reading {
	now := s.meter.now()
	r := now.since(s.counted)
	s.printed, s.counted = time.Now(), now
	return r
}

// note prints text below a row, indented and wrapped.
func (s *rolloutDemo) note(text string) {
	const indent, width = "            ", 100
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			s.print("%s%s\n", indent, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	s.print("%s%s\n", indent, line)
}

// pause waits and prints rows about endpoints meanwhile. It returns the cause of ctx if ctx ends first.
func (s *rolloutDemo) pause(ctx context.Context, wait time.Duration) error {
	over := time.After(wait)
	for {
		next := time.NewTimer(time.Until(s.printed.Add(rowGap)))
		select {
		case now := <-next.C:
			s.endpointRow(now)
		case <-over:
			next.Stop()
			return nil
		case <-ctx.Done():
			next.Stop()
			return context.Cause(ctx)
		}
	}
}

// endpointRow prints a row with the latest change of endpoints. It prints nothing before the first act.
func (s *rolloutDemo) endpointRow(now time.Time) {
	if s.edition == nil {
		s.printed = now
		return
	}
	s.mu.Lock()
	latest := s.latest
	s.mu.Unlock()
	s.row(now, "  endpoints: "+cmp.Or(latest, "no change yet"))
}

// checkContained prints how many clients were sent the bad listener. It returns an error if one of them is not a
// canary.
func (s *rolloutDemo) checkContained() error {
	canaries, others := s.sentTo(s.bad)
	s.print("\nThe bad listener was sent to %d of %d canaries, which had the last good one again after %s, and to %d of the %d other clients.\n",
		canaries, s.canaries(), milliseconds(s.rollback), others, s.others())
	if others > 0 {
		return fmt.Errorf("%d clients that are no canaries were sent the bad listener", others)
	}
	return nil
}
