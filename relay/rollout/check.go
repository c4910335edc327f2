package rollout

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// The interval between requests of the check while an edition is in progress, and the timeout of one request.
const (
	CheckEvery   = 15 * time.Second
	checkTimeout = 10 * time.Second
)

// Limits of a response of the check, in bytes.
const (
	maxResponse = 1 << 20 // the rest of the body is not read
	maxReason   = 512     // the rest of a reason is not shown to operators
)

// A Check asks an external system whether an edition may proceed.
type Check struct {
	// URL receives a POST with a CheckRequest as JSON. 200 and 204 permit the edition. 403 and 409 reject it; the first
	// line of the body is the reason. Any other response leaves the check undecided.
	URL string

	// Client makes the requests; nil is http.DefaultClient.
	Client *http.Client
}

// A CheckRequest is the body of a request to the check.
type CheckRequest struct {
	Origin    string    `json:"origin"`
	Part      string    `json:"part"` // the resource that the part is named after, such as "rds/checkout"
	Edition   string    `json:"edition"`
	Stage     int       `json:"stage"`  // number of stages that are served the edition
	Stages    int       `json:"stages"` // number of configured stages
	Changed   time.Time `json:"changed"`
	Resources int       `json:"resources"` // number of resources that the edition changes
	Clients   int       `json:"clients"`   // connected clients that are served the edition
	Accepted  int       `json:"accepted"`
	Rejected  int       `json:"rejected"`
	Canaries  []string  `json:"canaries"` // node ids of these clients, at most MaxCanaries
}

// MaxCanaries is the maximum number of node ids in a CheckRequest.
const MaxCanaries = 1000

// Send sends one request and returns the verdict. An error means that the check is undecided. Errors do not contain the
// URL, which may hold credentials.
func (c *Check) Send(ctx context.Context, r CheckRequest) (Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	v := Verdict{RequestedAt: time.Now()}
	question, err := json.Marshal(r)
	if err != nil {
		return v, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(question))
	if err != nil {
		return v, withoutURL(err)
	}
	req.Header.Set("Content-Type", "application/json")
	client := *cmp.Or(c.Client, http.DefaultClient)
	client.CheckRedirect = func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a redirect to a login page is not a verdict
	}
	resp, err := client.Do(req)
	if err != nil {
		return v, withoutURL(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return v, err
	}
	return v, v.readStatus(resp.StatusCode, body)
}

// withoutURL returns the cause of a request error without the URL, which may hold credentials.
func withoutURL(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// readStatus decodes the response to a CheckRequest.
func (v *Verdict) readStatus(code int, body []byte) error {
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	line = shorten(line)
	switch code {
	case http.StatusOK, http.StatusNoContent:
		v.Allowed = true
		return nil
	case http.StatusForbidden, http.StatusConflict:
		v.RejectReason = line
		if line == "" {
			v.RejectReason = fmt.Sprintf("status %d without a reason", code)
		}
		return nil
	default:
		return fmt.Errorf("unexpected status %d; want 200, 204, 403 or 409: %q", code, line)
	}
}

// shorten cuts a text after maxReason bytes.
func shorten(text string) string {
	if len(text) > maxReason {
		return strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}
