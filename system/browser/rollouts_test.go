package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/page"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// A stage serves the status page of a relay with rollouts whose status the test sets.
type stage struct {
	site string // URL without a slash at the end

	mu   sync.Mutex
	show []*rollout.Status // guarded by mu
}

// nobody is a fleet without clients.
type nobody struct{ admin.Fleet }

func (nobody) Clients(admin.ClientQuery) (admin.Clients, error) { return admin.Clients{}, nil }

// newStage serves the page until the test ends.
func newStage(t *testing.T, show ...*rollout.Status) *stage {
	t.Helper()
	s := &stage{show: show}
	status := func() admin.Status { return admin.Status{Relay: admin.Relay{Ready: true}} }
	pages := page.New(page.Config{Status: status, Fleet: nobody{}, History: new(page.History), Rollouts: func() []*rollout.Status {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.show
	}})
	server := admin.New(admin.Config{Status: status, Fleet: nobody{}, GRPC: grpc.NewServer(), Metrics: http.NotFoundHandler(), Pages: pages})
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		pages.Close()
		if err := server.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	s.site = "http://" + l.Addr().String()
	return s
}

// now sets the status of the rollouts.
func (s *stage) now(show ...*rollout.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.show = show
}

// rolling returns the status of a rollout in a stage. Stages count from 1; 0 is before the first one.
func rolling(at int) *rollout.Status {
	s := &rollout.Status{
		Origin: "default", Phase: rollout.Rolling, Edition: "3fa2b1c9", Resources: 12, Changed: time.Now().Add(-14 * time.Minute),
		Stage: at, Since: time.Now().Add(-4 * time.Minute), Until: time.Now().Add(6 * time.Minute), Waiting: 12, Oldest: time.Now().Add(-14 * time.Minute),
		Check: "go", Checked: time.Now().Add(-3 * time.Second), Undoable: true, Outcomes: rollout.Outcomes{Promoted: 3},
		Cohorts: []rollout.Cohort{
			{Name: "metadata.canary=true 10m0s", Clients: 3}, {Name: "5% 10m0s", Clients: 38}, {Name: "25% approve", Clients: 190}, {Name: "the rest", Clients: 769},
		},
	}
	for i := range at {
		c := &s.Cohorts[i]
		c.Served, c.Subscribed, c.Accepted = s.Edition, c.Clients*9/10, c.Clients*8/10
	}
	return s
}

// halted returns the status of a rollout that halted because a client rejected it. words is the error detail of the
// NACK.
func halted(words string) *rollout.Status {
	s := rolling(1)
	s.Phase, s.Stage, s.Until, s.Outcomes.Halted = rollout.Halted, 0, time.Time{}, 1
	s.Cohorts[0].Served, s.Cohorts[0].Subscribed, s.Cohorts[0].Rejected = "", 3, 1
	s.Halted = &rollout.Halt{Reason: "1 client rejected the edition (limit 0): sidecar~7 rejected " + wire.ListenerType + ": " + words, At: time.Now().Add(-12 * time.Minute)}
	s.Rejections = []rollout.Rejection{{Client: rollout.Client{Node: "sidecar~7"}, TypeURL: wire.ListenerType, Detail: words}}
	return s
}

// parted returns the status of a rollout with a halted part and one in the first stage. words is the error detail of the
// NACK.
func parted(words string) *rollout.Status {
	s, beside := halted(words), rolling(1)
	s.Part = "lds/ingress"
	beside.Part, beside.Edition, beside.Resources = "cds/"+strings.Repeat("a-long-name-", 8), "77d0c2aa", 3
	beside.Waiting = 3
	of := *s
	s.Parts = []*rollout.Status{&of, beside}
	return s
}

// partsTable selects the table of the parts of a rollout.
const partsTable = "#rollouts [aria-label='Parts of the rollout of origin default'] table"

// awaitParts waits until the page has a row for each part: its class and its cells, without that of the edition. Without rows,
// it waits until there is no such table.
func (b *tab) awaitParts(want ...string) {
	b.t.Helper()
	rows := fmt.Sprintf(`[...document.querySelectorAll("%s tbody tr")].map((row) => [row.className,
		...[...row.children].filter((cell) => cell.dataset.label !== "Edition").map((cell) => cell.innerText.trim())].join(" | "))`, partsTable)
	same := fmt.Sprintf("JSON.stringify(%s) === JSON.stringify(%s)", rows, asJSON(b.t, want))
	if err := b.run(chromedp.Poll(same, nil, chromedp.WithPollingTimeout(relaytest.Patience))); err != nil {
		b.t.Fatalf("%v: parts on the page %q, want %q", err, evaluate[[]string](b, rows), want)
	}
}

// asJSON returns texts as JSON.
func asJSON(t *testing.T, of []string) string {
	t.Helper()
	text, err := json.Marshal(append([]string{}, of...)) // null would be none
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rejected is the error detail of the NACKs in these tests.
const rejected = "Error adding/updating listener(s) ingress: Didn't find a registered implementation for 'envoy.filters.http.gone' with type URL: ''"

// TestRolloutOnThePage follows two changes of an origin through the page: one that a canary rejects, and its fix.
func TestRolloutOnThePage(t *testing.T) {
	w := newWorld(t, "TENDER_ROLLOUT=id=canary* 1h, id=early* approve", "TENDER_DELTA_VERSIONS=content", "TENDER_COLD_WAIT=100ms", "TENDER_SNAPSHOT_DIR="+filepath.Join(t.TempDir(), "snapshots"))
	w.origin.Put(relaytest.Cluster("checkout"), relaytest.Listener("ingress", "routes"))
	bad := relaytest.DigestOf(relaytest.Listener("public", "gone"))
	var clients []*relaytest.Client
	for _, node := range []string{"canary~0", "canary~1", "canary~2", "early~0", "early~1", "early~2", "early~3", "sidecar~0", "sidecar~1", "sidecar~2", "sidecar~3", "sidecar~4", "sidecar~5"} {
		c := w.connect(relaytest.ClientOptions{Variant: relaytest.Delta, Node: relaytest.EnvoyNode(node), Reject: func(r *relaytest.Response) error {
			if node == "canary~2" && slices.ContainsFunc(r.Resources, func(l relaytest.Resource) bool { return l.Digest == bad }) {
				return errors.New(rejected)
			}
			return nil
		}})
		c.Subscribe(relaytest.ClusterType, "*")
		c.Subscribe(relaytest.ListenerType, "*")
		clients = append(clients, c)
	}
	for _, c := range clients {
		c.WaitState(t.Context(), func(s relaytest.State) bool {
			return s.Has(relaytest.ClusterType, "checkout") && s.Has(relaytest.ListenerType, "ingress")
		})
	}
	b := open(t)
	b.do(chromedp.Navigate(w.site + "/"))
	for _, row := range []string{"1", "2"} {
		// Changes of an unconfirmed set are not staged.
		b.await("#views [aria-label=Views] tbody tr:nth-child("+row+") td:nth-child(3)", "confirmed")
	}
	b.await("#summary", "0 clients lagging") // a NACK counts only if the client has accepted the last good configuration
	b.await("#rollouts", "Origin default: up to date", "started without a snapshot of the last good", "served the last good 13")

	w.origin.Put(relaytest.Cluster("search"), relaytest.Listener("public", "gone"))
	b.await("#rollouts", "Origin default: halted", "canary~2 rejected", rejected, "2 resources", "tender rollout resume --part lds/public --origin default", "cds/search")
	b.await("#rollouts td .words", rejected)
	const reason = "1 client rejected the edition (limit 0): canary~2 rejected " + wire.ListenerType + ": " + rejected
	b.awaitParts("rejected | lds/public | halted\n"+reason+" | 1", " | cds/search | stage 1 of 2 | 1")
	b.await("#summary", "The rollout of origin default is halted")
	b.pictureOf("rollout", "#rollouts")
	w.origin.Put(relaytest.Listener("public", "routes"))
	b.await("#rollouts", "Origin default: stage 1 of 2", "accepted the edition 3", "served the last good 10", "Time left59m", "1 halted")
	b.await(partsTable, "lds/public", "cds/search", "stage 1 of 2")
	if bad := b.text(partsTable + " tr.rejected"); bad != "" {
		t.Errorf("after the correction, a part is shown as rejected: %s", bad)
	}
	b.pictureOf("rollout-stage", "#rollouts")
	for i, c := range clients {
		if got := c.State().Has(relaytest.ClusterType, "checkout", "search"); got != (i < 3) {
			t.Errorf("client %d has the new cluster: %v; according to the page, only the three canaries have it", i, got)
		}
	}
}

// TestRolloutPanelIsLive follows an edition through its stages until it is halted, without a reload of the page.
func TestRolloutPanelIsLive(t *testing.T) {
	s := newStage(t, rolling(1))
	b := open(t)
	b.do(chromedp.Navigate(s.site + "/"))
	b.await("h1", "No problems")
	b.await("#rollouts h3", "Origin default", "stage 1 of 3")
	b.await("#rollouts", "12 resources", "Time left", "tender rollout abort --origin default", "accepted the edition 2")
	b.do(chromedp.Evaluate("window.loaded = 'once'", nil))
	s.now(rolling(2))
	b.await("#rollouts h3", "stage 2 of 3")
	b.await("#rollouts", "first 2 stages receive edition 3fa2b1c9")
	s.now(halted(rejected))
	b.await("h1", "1 problem")
	b.await("#summary", "The rollout of origin default is halted, for 12m")
	b.await("#rollouts", "halted", rejected, "sidecar~7", "tender rollout resume --origin default")
	if got := evaluate[string](b, "window.loaded"); got != "once" {
		t.Errorf("the page was reloaded: window.loaded is %q", got)
	}
	b.click(".alerts a")
	if got := evaluate[string](b, "location.hash"); got != "#rollouts" {
		t.Errorf("the link of the problem leads to %q, want the panel", got)
	}
	b.await("h1", "1 problem")
	revert := rolling(0)
	revert.Phase = rollout.Current
	s.now(revert)
	b.await("h1", "No problems")
	b.await("#rollouts h3", "up to date")
}

// TestPartsOfARolloutOnThePage checks that the panel has a row for each open part of a rollout, and follows them without a
// reload of the page.
func TestPartsOfARolloutOnThePage(t *testing.T) {
	s := newStage(t, halted(rejected))
	b := open(t)
	b.do(chromedp.Navigate(s.site + "/"))
	b.await("#rollouts h3", "halted")
	b.awaitParts() // a single part is the panel
	b.do(chromedp.Evaluate("window.loaded = 'once'", nil))

	two := parted(rejected)
	long := two.Parts[1].Part
	s.now(two)
	b.awaitParts("rejected | lds/ingress | halted\n"+two.Halted.Reason+" | 12", " | "+long+" | stage 1 of 3 | 3")
	b.await(partsTable, "Part", "State", "Edition", "Resources", two.Edition, two.Parts[1].Edition)
	b.await("#rollouts .commands", "tender rollout resume --part lds/ingress --origin default")

	next := *two.Parts[1]
	next.Stage = 2
	two = parted("another error")
	two.Parts[1] = &next
	s.now(two)
	b.awaitParts("rejected | lds/ingress | halted\n"+two.Halted.Reason+" | 12", " | "+long+" | stage 2 of 3 | 3")
	s.now(rolling(1))
	b.awaitParts()
	if got := evaluate[string](b, "window.loaded"); got != "once" {
		t.Errorf("the page was reloaded: window.loaded is %q", got)
	}
}

// TestRolloutPanelWithoutScript checks that the panel shows its content without JavaScript.
func TestRolloutPanelWithoutScript(t *testing.T) {
	s := newStage(t, halted(rejected))
	b := open(t)
	b.do(emulation.SetScriptExecutionDisabled(true), chromedp.Navigate(s.site+"/"))
	var text string
	b.do(chromedp.Text("#rollouts", &text, chromedp.ByQuery, chromedp.NodeVisible))
	for _, want := range []string{"halted", rejected, "tender rollout resume --origin default", "metadata.canary=true 10m0s"} {
		if !strings.Contains(text, want) {
			t.Errorf("without JavaScript the panel does not contain %q:\n%s", want, text)
		}
	}
}

// bars is JavaScript that returns the faults of bars: invisible parts, parts outside the frame, overlapping labels,
// and a missing label for screen readers.
const bars = `(() => {
  const bad = [];
  for (const svg of document.querySelectorAll("svg.bar")) {
    const frame = svg.getBoundingClientRect();
    const parts = [...svg.querySelectorAll("rect, text")].map((e) => [e, e.getBoundingClientRect()]);
    for (const [e, box] of parts) {
      if (box.width < 1 || box.height < 1) { bad.push(e.textContent + " is not to be seen"); }
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top || box.bottom > frame.bottom) { bad.push(e.textContent + " is outside"); }
    }
    const labels = parts.filter(([e]) => e.tagName === "text");
    labels.forEach(([e, box], i) => { if (i && box.left < labels[i - 1][1].right) { bad.push(e.textContent + " overlaps " + labels[i - 1][0].textContent); } });
    if (!svg.getAttribute("aria-label")) { bad.push("a bar says nothing to who cannot see it"); }
  }
  return bad;
})()`

// TestRolloutPanelForEverybody checks that the panel is readable in each state, in light and dark, and on a phone.
func TestRolloutPanelForEverybody(t *testing.T) {
	held, frozen, current, failing := rolling(0), rolling(1), rolling(0), rolling(0)
	held.Origin, held.Phase, held.Large, held.WaitsFor = "held", rollout.Held, true, "the end of the hold: a large part of a type is removed"
	frozen.Origin, frozen.Frozen, frozen.Unobserved = "frozen", true, true
	current.Origin, current.Phase, current.Cold = "current", rollout.Current, true
	current.Cohorts[0].Clients, current.Cohorts[1].Clients, current.Cohorts[2].Clients, current.Cohorts[3].Clients = 1000, 0, 0, 0
	failing.Origin, failing.Phase, failing.WaitsFor, failing.Check, failing.Failing = "failing", rollout.Held, "the check", "connection refused", time.Now().Add(-time.Hour)
	many := rolling(3)
	many.Origin, many.Cohorts = "four-stages", append([]rollout.Cohort{{Name: "id=a-very-long-name-of-a-node-that-an-operator-has-chosen-*", Clients: 1, Served: "3fa2b1c9"}}, many.Cohorts...)
	many.Cohorts[2].Rejected = 1
	several := parted(strings.Repeat("W", 300))
	several.Origin = "several"
	s := newStage(t, halted(strings.Repeat("W", 300)), held, frozen, current, failing, several, many)
	b := open(t)
	for _, width := range []int64{1400, 360} {
		b.do(chromedp.EmulateViewport(width, 900))
		for _, scheme := range []string{"light", "dark"} {
			b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}), chromedp.Navigate(s.site+"/"))
			b.await("#rollouts", "Origin four-stages")
			if bad := evaluate[[]string](b, contrast); len(bad) > 0 {
				t.Errorf("%s: too little contrast: %q", scheme, bad)
			}
			if bad := evaluate[[]string](b, bars); len(bad) > 0 {
				t.Errorf("%d wide, %s: %q", width, scheme, bad)
			}
			if bad := evaluate[[]string](b, layout); len(bad) > 0 {
				t.Errorf("%d wide, %s: %q", width, scheme, bad)
			}
		}
		if wide := evaluate[int64](b, "document.scrollingElement.scrollWidth"); wide > width {
			t.Errorf("the page is %d pixels wide on a screen of %d", wide, width)
		}
	}
}

// hostile are texts of clients that try to inject markup or to overlay other content.
var hostile = []string{
	`<img src=x onerror="document.title='owned'">`, `"><script>document.title="owned"</script>`, `</section><section id="summary"><h1>No problems</h1>`,
	`<style>*{display:none}</style>`, `<a href="javascript:document.title='owned'">fix</a>`, `' onmouseover='document.title="owned"'`, "a\u202eb\u2067c", strings.Repeat("H"+strings.Repeat("\u0301", 9), 20),
}

// TestRolloutPanelOfHostileClients checks that the browser shows texts of clients as plain text, both after a load
// and after a live update. The texts must not cover other content.
func TestRolloutPanelOfHostileClients(t *testing.T) {
	elements := "[...new Set([...document.querySelectorAll('#rollouts *')].map((e) => e.tagName.toLowerCase()))].sort().join(' ')"
	harmless := halted("no")
	s := newStage(t, harmless)
	b := open(t)
	b.do(chromedp.Navigate(s.site + "/"))
	b.await("#rollouts", "halted")
	usual := evaluate[string](b, elements)
	bad := halted(strings.Join(hostile, " "))
	bad.Rejections = nil
	for _, words := range hostile {
		bad.Rejections = append(bad.Rejections, rollout.Rejection{Client: rollout.Client{Node: words}, TypeURL: wire.ListenerType, Detail: words})
	}
	s.now(bad)
	b.await("#rollouts", hostile[len(hostile)-1])
	for _, when := range []string{"followed", "loaded"} {
		if when == "loaded" {
			b.do(chromedp.Navigate(s.site + "/"))
		}
		if got := evaluate[[]string](b, "[...document.querySelectorAll('#rollouts td .words')].map((e) => e.textContent)"); !slices.Equal(got, hostile) {
			t.Errorf("%s, the page shows the NACKs %q, want %q", when, got, hostile)
		}
		if got := evaluate[string](b, elements); got != usual {
			t.Errorf("%s, the panel has the elements %s, want %s", when, got, usual)
		}
		if got := evaluate[string](b, "document.title"); !strings.HasPrefix(got, "The rollout of origin default is halted") {
			t.Errorf("%s, the title is %q", when, got)
		}
		const styles = "[...document.querySelectorAll('#rollouts .words')].map((e) => getComputedStyle(e)).map((s) => s.overflowY + ' ' + s.unicodeBidi)"
		if got := evaluate[[]string](b, styles); slices.ContainsFunc(got, func(style string) bool { return style != "hidden isolate" }) {
			t.Errorf("%s, texts of clients can cover other content: %q", when, got)
		}
	}
}
