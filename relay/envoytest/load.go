package envoytest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// A Backend is a web server that answers every request with its name.
type Backend struct{ Name, Addr string }

// NewBackend starts a backend that is stopped when tb ends.
func NewBackend(tb relaytest.TB, name string) *Backend {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("start backend: %v", err)
	}
	server := &http.Server{ReadHeaderTimeout: relaytest.Patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, name) // fails only if the client has disconnected
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // awaited below
	tb.Cleanup(func() {
		_ = server.Close() // an error of a listener or connection does not matter here
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			tb.Errorf("backend %s ended: %v", name, err)
		}
	})
	return &Backend{Name: name, Addr: l.Addr().String()}
}

// waiting is the maximum number of requests of a Load that wait for a response at a time.
const waiting = 8

// A Load sends HTTP requests at a constant rate, or a lower one if its requests are answered more slowly. It does not wait
// for the response of one request before the next, unless too many wait.
type Load struct {
	tb       relaytest.TB
	url      string
	client   *http.Client
	stop     context.CancelFunc
	slots    chan struct{} // holds a value for each request that waits
	requests sync.WaitGroup

	mu      sync.Mutex
	report  Report        // guarded by mu
	changed chan struct{} // guarded by mu; closed at the next response or failure
}

// A Report holds the results of the requests of a Load.
type Report struct {
	Answers  map[string]int // number of responses with status 200, by body
	Failures []string       // time and error of each other request
}

// Total returns the number of completed requests.
func (r Report) Total() int {
	n := len(r.Failures)
	for _, answers := range r.Answers {
		n += answers
	}
	return n
}

func (r Report) String() string {
	shown := r.Failures[:min(len(r.Failures), 10)]
	return fmt.Sprintf("%d answers, by body %v; %d failed:\n%s", r.Total(), r.Answers, len(r.Failures), strings.Join(shown, "\n"))
}

// StartLoad sends a GET of http://address/ every interval until Stop is called or tb ends.
func StartLoad(tb relaytest.TB, address string, interval time.Duration) *Load {
	tb.Helper()
	return startLoad(tb, "http://"+address+"/", interval, &http.Transport{MaxIdleConnsPerHost: waiting})
}

// StartTLSLoad sends a GET of https://address/ every interval, each on a new connection with a handshake.
func StartTLSLoad(tb relaytest.TB, address string, interval time.Duration, client *tls.Config) *Load {
	tb.Helper()
	return startLoad(tb, "https://"+address+"/", interval, &http.Transport{DisableKeepAlives: true, TLSClientConfig: client})
}

func startLoad(tb relaytest.TB, url string, interval time.Duration, transport *http.Transport) *Load {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{
		tb: tb, url: url, stop: cancel, slots: make(chan struct{}, waiting), changed: make(chan struct{}),
		client: &http.Client{Timeout: relaytest.Patience, Transport: transport},
		report: Report{Answers: make(map[string]int)},
	}
	l.requests.Go(func() { l.send(ctx, interval) })
	tb.Cleanup(func() { l.Stop() })
	return l
}

// send starts a request every interval until ctx ends.
func (l *Load) send(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		select {
		case l.slots <- struct{}{}:
			l.requests.Go(l.request)
		case <-ctx.Done():
			return
		}
	}
}

// request sends one request, records the result, and frees its slot.
func (l *Load) request() {
	defer func() { <-l.slots }()
	began := time.Now()
	body, err := l.get()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.report.Failures = append(l.report.Failures, fmt.Sprintf("%s, after %v: %v", began.Format("15:04:05.000"), time.Since(began), err))
	} else {
		l.report.Answers[body]++
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// get sends one request and returns the body. A status other than 200 is an error.
func (l *Load) get() (string, error) {
	resp, err := l.client.Get(l.url)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }() // the body was read to its end
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), err
}

// Report returns a copy of the results so far.
func (l *Load) Report() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.copy()
}

// copy returns a copy of the report. The caller must hold mu.
func (l *Load) copy() Report {
	r := Report{Answers: make(map[string]int), Failures: append([]string(nil), l.report.Failures...)}
	for body, n := range l.report.Answers {
		r.Answers[body] = n
	}
	return r
}

// Await waits until met returns true for the results so far. It fails the test after [relaytest.Patience]. met is
// called with a lock held and must not call methods of the Load.
func (l *Load) Await(what string, met func(Report) bool) {
	l.tb.Helper()
	if !l.Within(relaytest.Patience, met) {
		l.tb.Fatalf("load: no %s after %v: %v", what, relaytest.Patience, l.Report())
	}
}

// Within waits until met returns true for the results so far, for at most limit, and reports whether it did.
func (l *Load) Within(limit time.Duration, met func(Report) bool) bool {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		l.mu.Lock()
		ok, changed := met(l.report), l.changed
		l.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-late.C:
			return false
		}
	}
}

// Continue waits for a number of further completed requests, successful or not.
func (l *Load) Continue(answers int) {
	l.tb.Helper()
	until := l.Report().Total() + answers
	l.Await(fmt.Sprint(answers, " more answers"), func(r Report) bool { return r.Total() >= until })
}

// Stop ends the load, waits for the open requests, and returns the report. It may be called more than once.
func (l *Load) Stop() Report {
	l.stop()
	l.requests.Wait()
	l.client.CloseIdleConnections()
	return l.Report()
}
