package peers

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/xdstender/tender/relay/admin"
)

// Limits of requests to peers.
const (
	maxPeers         = 100             // number of addresses
	maxAtOnce        = 16              // number of concurrent requests
	maxAnswerBytes   = 4 << 20         // size of the response of one peer
	resolveTimeout   = 3 * time.Second // for all names together
	summaryTimeout   = 3 * time.Second // for the summary of one peer
	maxRefusalLength = 300             // bytes of an error from a peer
)

// Config configures the peers. All fields but Dial are required.
type Config struct {
	// Targets are host:port, or dns:///host:port for all addresses of a name.
	Targets []string

	// TLS returns the configuration of a handshake with a peer. host is the host of its target.
	TLS func(host string) *tls.Config

	// Dial connects to the address of a peer, for TLS. Nil connects by TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// A Tier sends requests to the peers of a relay. It implements admin.Tier, and may be used from any goroutine.
type Tier struct{ cfg Config }

// New returns a tier.
func New(cfg Config) *Tier { return &Tier{cfg} }

// A peer is an address of a relay.
type peer struct {
	address string // host:port; host is an IP address if the target was resolved
	host    string // host of the target, for the verification of the certificate
	err     error  // the target is invalid or was not resolved, so no request is sent
}

// Status implements admin.Tier.
func (t *Tier) Status(ctx context.Context, own *admin.TierSummary) admin.TierStatus {
	status := admin.TierStatus{Relays: []admin.TierRelay{{Address: admin.Self, TierSummary: own}}, Disagreements: []admin.Disagreement{}}
	for _, found := range t.summaries(ctx, summaryTimeout) {
		if found.summary != nil && found.summary.Instance == own.Instance {
			status.Relays[0].Address = found.address
			continue
		}
		shown := admin.TierRelay{Address: found.address, TierSummary: found.summary}
		if found.err != nil {
			shown.Error = found.err.Error()
		}
		status.Relays = append(status.Relays, shown)
	}
	status.Disagreements = append(status.Disagreements, disagreements(status.Relays)...)
	return status
}

// Forward implements admin.Tier. A relay with several addresses receives the command once. The relay that calls Forward
// does not receive it.
func (t *Tier) Forward(ctx context.Context, own *admin.TierSummary, name, operator string, args []byte, long time.Duration) []admin.TierAnswer {
	others := slices.DeleteFunc(t.summaries(ctx, summaryTimeout), func(a asked) bool { return a.summary != nil && a.summary.Instance == own.Instance })
	answers := make([]admin.TierAnswer, len(others))
	forEach(len(others), func(i int) {
		other := &others[i]
		answers[i].Address = other.address
		err := other.err
		if err == nil {
			answers[i].NodeID = other.summary.NodeID
			err = t.ask(ctx, other.peer, long, http.MethodPost, "/api/v1/"+name, operator, args, &answers[i].Answer)
		}
		if err != nil {
			answers[i].Error = err.Error()
		}
	})
	return answers
}

// Query implements admin.Tier.
func (t *Tier) Query(ctx context.Context, address, path, operator string, long time.Duration) (answer json.RawMessage, err error) {
	all := t.peers(ctx)
	at := slices.IndexFunc(all, func(p peer) bool { return p.address == address })
	if at < 0 {
		return nil, admin.Refuse(http.StatusNotFound, fmt.Errorf("TENDER_PEERS has no relay %.256q", address))
	}
	if err = all[at].err; err == nil {
		err = t.ask(ctx, all[at], long, http.MethodGet, path, operator, nil, &answer)
	}
	if err != nil {
		return nil, admin.Refuse(http.StatusBadGateway, fmt.Errorf("the relay at %s: %w", address, err))
	}
	return answer, nil
}

// An asked is a peer with its response. If summary is nil, err is not.
type asked struct {
	peer
	summary *admin.TierSummary
}

// summaries requests the summaries of all peers, with a timeout for each. It returns only the first of several addresses
// of one relay.
func (t *Tier) summaries(ctx context.Context, timeout time.Duration) []asked {
	found := t.peers(ctx)
	all := make([]asked, len(found))
	forEach(len(found), func(i int) {
		all[i].peer = found[i]
		if found[i].err != nil {
			return
		}
		summary := new(admin.TierSummary)
		if all[i].err = t.ask(ctx, found[i], timeout, http.MethodGet, "/api/v1/tier/self", "", nil, summary); all[i].err != nil {
			return
		}
		if summary.Instance == "" {
			all[i].err = errors.New("the answer is not that of a relay: it has no instance")
			return
		}
		all[i].summary = summary
	})
	known := make(map[string]bool)
	return slices.DeleteFunc(all, func(a asked) bool {
		if a.summary == nil {
			return false
		}
		again := known[a.summary.Instance]
		known[a.summary.Instance] = true
		return again
	})
}

// forEach calls do for each number below n, with at most maxAtOnce calls at the same time, and waits for all calls.
func forEach(n int, do func(i int)) {
	var all sync.WaitGroup
	free := make(chan struct{}, maxAtOnce)
	for i := range n {
		free <- struct{}{}
		all.Go(func() { // ends before forEach returns
			defer func() { <-free }()
			do(i)
		})
	}
	all.Wait()
}

// peers resolves the targets into at most maxPeers addresses. A target that cannot be resolved has an error.
func (t *Tier) peers(ctx context.Context) (all []peer) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	for _, target := range t.cfg.Targets {
		name, resolve := strings.CutPrefix(target, "dns:///")
		host, port, err := net.SplitHostPort(name)
		addresses := []string{host}
		if resolve && err == nil {
			addresses, err = net.DefaultResolver.LookupHost(ctx, host)
		}
		if err != nil {
			all = append(all, peer{address: target, err: err})
			continue
		}
		for _, address := range addresses {
			if p := (peer{address: net.JoinHostPort(address, port), host: host}); !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	if more := len(all) - maxPeers; more > 0 {
		all = append(all[:maxPeers], peer{address: "others", err: fmt.Errorf("%d more addresses were not asked; at most %d are", more, maxPeers)})
	}
	return all
}

// ask sends one request on a new connection and decodes the JSON response into the value to which into points. long is
// the timeout. A request without an operator is of this relay.
func (t *Tier) ask(ctx context.Context, p peer, long time.Duration, method, path, operator string, body []byte, into any) error {
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	resp, err := t.send(ctx, p, method, path, operator, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the answer: %w", err)
	case len(text) > maxAnswerBytes:
		return fmt.Errorf("the answer has more than %d bytes", maxAnswerBytes)
	case resp.StatusCode != http.StatusOK:
		return refusal(resp, text)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("the answer is not that of a relay: %w", err)
	}
	return nil
}

// send sends one request on a new connection. The caller must close the body of the response.
func (t *Tier) send(ctx context.Context, p peer, method, path, operator string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "https://"+p.address+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	if operator != "" {
		r.Header.Set(admin.OperatorHeader, operator)
	}
	config := t.cfg.TLS(p.host)
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}
	if t.cfg.Dial != nil {
		transport.DialContext = func(ctx context.Context, _, address string) (net.Conn, error) { return t.cfg.Dial(ctx, address) }
	}
	if config.ServerName != "" {
		r.Host = config.ServerName // the peer's certificate must be valid for this name or address
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("unreachable: %w", errors.Unwrap(err))
	}
	return resp, nil
}

// refusal returns an error for a response with another status than 200: the error in the JSON body, or the status.
func refusal(resp *http.Response, text []byte) error {
	var refused struct{ Error string }
	if json.Unmarshal(text, &refused) != nil || refused.Error == "" {
		refused.Error = resp.Status
	}
	return errors.New(refused.Error[:min(len(refused.Error), maxRefusalLength)])
}
