package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// Timeouts for clients to agree with the origin.
const (
	startWait  = 30 * time.Second // at the start
	settleWait = 10 * time.Second // after the last change; twice the time that the relay waits for an ACK
)

// show describes the parts of the demo, changes the mesh, and prints the results. It returns an error if clients do not
// agree with the origin, or if a part fails.
func (d *demo) show(ctx context.Context) error {
	d.opening()
	began := time.Now()
	if err := d.agreement(ctx, startWait, d.mesh.contents()); err != nil {
		return fmt.Errorf("start the clients: %w", err)
	}
	if ctx.Err() != nil {
		d.print("\nEnded before all clients were in sync with the origin.\n")
		return failed(ctx)
	}
	d.print("All %d clients are in sync with the origin after %s. ", d.Clients, seconds(time.Since(began)))
	if err := d.awaitEnvoy(ctx); err != nil {
		return err
	}
	live := d.live
	if d.Rollout {
		d.print("Now its endpoints change.\n")
		live = d.showRollout
	} else {
		d.print("Now the origin changes.\n\n")
	}
	began = time.Now()
	if err := live(ctx, began); err != nil {
		return err
	}
	if err := failed(ctx); err != nil {
		return err
	}
	if d.Rollout && ctx.Err() != nil {
		return nil // a rollout may be under way, so clients of different stages may differ
	}
	elapsed := time.Since(began)
	err := d.agreement(context.WithoutCancel(ctx), settleWait, d.mesh.contents())
	d.summary(elapsed, err == nil)
	return err
}

// awaitEnvoy waits until the Envoy has answered a request, and prints its address. Without an Envoy, it returns nil.
func (d *demo) awaitEnvoy(ctx context.Context) error {
	if d.envoy == nil {
		return nil
	}
	late := time.NewTimer(startWait)
	defer late.Stop()
	select {
	case <-d.envoy.ready:
		d.print("Envoy serves the shop:\n\n  curl %s   # and /cart, /products, /search\n\n", d.envoy.url)
		return nil
	case <-late.C:
		return fmt.Errorf("no answer from Envoy at %s after %v", d.envoy.url, startWait)
	case <-ctx.Done():
		return failed(ctx)
	}
}

// live changes the mesh and prints a line per second, until Options.For has passed or ctx ends.
func (d *demo) live(ctx context.Context, began time.Time) error {
	change := time.NewTicker(d.interval())
	defer change.Stop()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	var over <-chan time.Time // nil without a duration
	if d.For > 0 {
		timer := time.NewTimer(d.For)
		defer timer.Stop()
		over = timer.C
	}
	t := table{demo: d, began: began, printed: began, latest: "none yet"}
	for {
		select {
		case <-change.C:
			c, err := d.mesh.step()
			if err != nil {
				return err
			}
			t.latest = c.what
			d.origin.submit(c) // even if ctx has ended, because clients are compared with the changed mesh
		case now := <-second.C:
			t.line(now)
		case now := <-over:
			if now.Sub(t.printed) > time.Second/2 {
				t.line(now) // the last second ended together with the demo
			}
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// agreement waits until all clients hold the contents of want. After the timeout it returns an error with the
// differences. It returns nil if ctx ends first. The origin must not change the contents meanwhile.
func (d *demo) agreement(ctx context.Context, wait time.Duration, want map[string]map[string]content) error {
	over := time.NewTimer(wait)
	defer over.Stop()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	behind := d.clients
	for {
		// A client that agrees cannot differ later, because the origin does not change.
		for len(behind) > 0 && behind[0].difference(want) == nil {
			behind = behind[1:]
		}
		if len(behind) == 0 {
			return nil
		}
		select {
		case <-again.C:
		case <-over.C:
			return disagreement(behind, want)
		case <-ctx.Done():
			return nil
		}
	}
}

// disagreement returns an error that names the clients that differ from the origin, or nil if none does.
func disagreement(clients []*client, want map[string]map[string]content) error {
	const named = 5 // the error counts further clients instead of naming them
	var errs []error
	for _, c := range clients {
		if err := c.difference(want); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	if more := len(errs) - named; more > 0 {
		errs = append(errs[:named], fmt.Errorf("and %d more clients", more))
	}
	return fmt.Errorf("clients disagree with the origin:\n%w", errors.Join(errs...))
}

// contents returns the contents of all resources of the mesh, by type URL and name.
func (m *mesh) contents() map[string]map[string]content {
	all := make(map[string]map[string]content)
	for typeURL, resources := range m.resources {
		all[typeURL] = make(map[string]content)
		for name, r := range resources {
			all[typeURL][name] = contentOf(typeURL, name, r.Value())
		}
	}
	return all
}

// print writes to Out. It ignores errors, because the demo can continue without output.
func (d *demo) print(format string, args ...any) { _, _ = fmt.Fprintf(d.Out, format, args...) }

// opening prints the addresses of the parts and commands to try.
func (d *demo) opening() {
	address := d.relay.Addrs()[0]
	delta := d.Clients / 2
	m := d.mesh.resources
	d.print("Status page: http://%s/\n", d.relay.AdminAddrs()[0])
	if d.Rollout {
		d.print("It shows how a change reaches clients in stages, as the lines below do.\n\n")
	} else {
		d.print("It shows two clients with problems: %s rejects a listener (red), and %s lags by %v (violet).\n\n", rejecting, slow, slowAnswer)
	}
	if d.taken {
		d.print("%s is taken, so the relay listens on %s.\n\n", d.Listen, address)
	}
	d.print("A shop of %d services (%d clusters, %d listeners), the relay, and clients below it, in one process:\n\n",
		len(d.mesh.services), len(m[wire.ClusterType]), len(m[wire.ListenerType]))
	what, beside := "the shop", ", and the two with problems"
	if d.Rollout {
		what, beside = "endpoints", ""
	}
	d.print("  origin   %-16s a control plane that changes %s %g times a second\n", d.origin.listener.Addr(), what, d.Rate)
	d.print("  relay    %-16s one connection up, %d streams down\n", address, d.Clients+len(d.odd))
	d.print("  clients  %-16d %d SotW and %d Delta, on %d connections%s\n\n", d.Clients, d.Clients-delta, delta, len(d.conns), beside)
	if d.Rollout {
		d.openingRollout()
		return
	}
	d.print("In another terminal, see what the relay serves, as it changes:\n\n  %s get -w -o wide -a %s eds\n  %[1]s get -a %[2]s cds\n\n", d.Command, address)
	if d.envoy == nil {
		d.print("Point an Envoy at %s: deploy/envoy has bootstraps.\n", address)
	} else {
		d.print("An Envoy starts below the relay: %s\n", d.Envoy)
	}
	if d.For == 0 {
		d.print("Ctrl-C ends the demo.\n")
	}
	d.print("\n")
}

// headerEvery is the number of lines between two headers of the table.
const headerEvery = 20

// A table prints a line of measurements per second.
type table struct {
	demo  *demo
	began time.Time
	lines int

	// State at the previous line.
	printed time.Time
	counted reading

	latest string // description of the latest change
}

// The header and the rows of the table. Counts are per second.
const (
	head = "  time  streams  changes/s  deliveries/s  delay: median       99%%   latest change\n"
	row  = "%6s  %7d  %9d  %12d  %13s  %8s   %s\n"
)

// line prints the measurements since the previous line, and the header if it is due.
func (t *table) line(now time.Time) {
	if t.lines%headerEvery == 0 {
		if t.lines > 0 {
			t.demo.print("\n")
		}
		t.demo.print(head)
	}
	t.lines++
	counted := t.demo.meter.now()
	second := counted.since(t.counted)
	t.demo.print(row, fmt.Sprintf("%ds", int(now.Sub(t.began).Round(time.Second).Seconds())), t.demo.relay.Streams(),
		second.changes, second.deliveries, second.delays.show(50), second.delays.show(99), t.latest)
	t.printed, t.counted = now, counted
}

// summary prints the measurements of the whole demo. agree is whether the clients agree with the origin.
func (d *demo) summary(elapsed time.Duration, agree bool) {
	all := d.meter.now()
	verdict := "yes"
	if !agree {
		verdict = "NO"
	}
	what := "at the origin"
	if d.Rollout {
		what = "of endpoints"
	}
	d.print("\nIn %s: %d changes %s, %d deliveries of changed resources to clients.\n",
		seconds(elapsed), all.changes, what, all.deliveries)
	if all.delays.total > 0 {
		d.print("Delay from a change to a client that has it: median %s, 90%% %s, 99%% %s, longest %s.\n",
			all.delays.show(50), all.delays.show(90), all.delays.show(99), milliseconds(time.Duration(d.meter.delays.most.Load())))
	}
	if d.envoy != nil {
		d.print("Requests through Envoy since its first answer: %d answered, %d failed.\n", d.envoy.answered.Load(), d.envoy.failed.Load())
	}
	d.print("All %d clients agree with the origin: %s\n", d.Clients, verdict)
}

// show formats a percentile, or returns "-" if d is empty.
func (d distribution) show(p float64) string {
	delay, ok := d.percentile(p)
	if !ok {
		return "-"
	}
	return milliseconds(delay)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2fms", float64(d)/float64(time.Millisecond))
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
