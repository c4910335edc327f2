package admin_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/xdstender/tender/relay/admin"
)

// decisions are what rollouts have decided.
type decisions struct {
	mu    sync.Mutex
	mark  string
	next  chan struct{}
	asked chan struct{} // receives when a request looks
}

func (d *decisions) decided() (*admin.PeerRollouts, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked <- struct{}{}
	return &admin.PeerRollouts{Instance: "i", Mark: d.mark}, d.next
}

// set changes what was decided.
func (d *decisions) set(mark string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mark = mark
	close(d.next)
	d.next = make(chan struct{})
}

// TestB54_PeersWaitForDecisions: a peer that knows all that was decided waits for more, but not for the end of a relay that
// shuts down.
func TestB54_PeersWaitForDecisions(t *testing.T) {
	d := &decisions{mark: "1", next: make(chan struct{}), asked: make(chan struct{}, 10)}
	r := newRig(t, "tcp", func(cfg *admin.Config) { cfg.Decided = d.decided })
	ask := func(after string) <-chan string {
		answered := make(chan string, 1)
		go func() { // the test receives the answer
			resp, text := r.ask(r.admin, http.MethodGet, admin.RolloutsPath+"?after="+after, "")
			if resp.StatusCode != http.StatusOK {
				text = resp.Status
			}
			answered <- text
		}()
		return answered
	}
	want := func(what string, answered <-chan string, mark string) {
		t.Helper()
		if text := <-answered; !strings.Contains(text, `"mark": "`+mark+`"`) && !strings.Contains(text, `"mark":"`+mark+`"`) {
			t.Errorf("%s: answer %s, want the mark %s", what, text, mark)
		}
	}
	want("a new peer", ask(""), "1")
	<-d.asked
	waits := ask("1")
	<-d.asked
	d.set("2")
	want("the next decision", waits, "2")
	<-d.asked
	waits = ask("2")
	<-d.asked
	go func() { _ = r.Shutdown(t.Context()) }() // ends with the request
	want("the end of the relay", waits, "2")
}

// TestB54_NothingIsDecidedWithoutRollouts: a relay without rollouts refuses the question.
func TestB54_NothingIsDecidedWithoutRollouts(t *testing.T) {
	r := newRig(t, "tcp")
	if resp, text := r.ask(r.admin, http.MethodGet, admin.RolloutsPath, ""); resp.StatusCode != http.StatusNotFound || !strings.Contains(text, "TENDER_ROLLOUT") {
		t.Errorf("%s %s, want 404 that names TENDER_ROLLOUT", resp.Status, text)
	}
}
