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
	"strconv"
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

	// Query makes URL the address of a Prometheus server. An empty result permits the edition; samples reject it. An
	// error, a result that is not a vector, and an empty result with a warning leave the check undecided. {changed} is
	// replaced by CheckRequest.Changed in Unix seconds.
	Query string

	// Client makes the requests; nil is http.DefaultClient.
	Client *http.Client
}

// A CheckRequest is the body of a request to the check.
type CheckRequest struct {
	Origin    string    `json:"origin"`
	Edition   string    `json:"edition"`
	Stage     int       `json:"stage"`  // number of stages that are served the edition
	Stages    int       `json:"stages"` // number of configured stages
	Changed   time.Time `json:"changed"`
	Resources int       `json:"resources"` // number of resources that the edition changes
	Clients   int       `json:"clients"`   // connected clients that are served the edition
	Accepted  int       `json:"accepted"`
	Refused   int       `json:"refused"`
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
	req, err := c.newHTTPRequest(ctx, r)
	if err != nil {
		return v, withoutURL(err)
	}
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
	if c.Query != "" {
		err = v.readSamples(resp.StatusCode, body)
	} else {
		err = v.readStatus(resp.StatusCode, body)
	}
	return v, err
}

// newHTTPRequest returns the request to the webhook, or to the Prometheus server if Query is set.
func (c *Check) newHTTPRequest(ctx context.Context, r CheckRequest) (*http.Request, error) {
	if c.Query == "" {
		body, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		return post(ctx, c.URL, "application/json", body)
	}
	query := strings.ReplaceAll(c.Query, "{changed}", strconv.FormatInt(r.Changed.Unix(), 10))
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, err
	}
	form := url.Values{"query": {query}}.Encode()
	return post(ctx, u.JoinPath("api/v1/query").String(), "application/x-www-form-urlencoded", []byte(form))
}

// withoutURL returns the cause of a request error without the URL, which may hold credentials.
func withoutURL(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// post returns a POST request.
func post(ctx context.Context, address, contentType string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", contentType)
	return req, nil
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

// readSamples decodes the response of a Prometheus server.
func (v *Verdict) readSamples(code int, body []byte) error {
	var response struct {
		Status, Error string
		Warnings      []string
		Data          struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &response); err != nil {
		return fmt.Errorf("status %d: the response is not from a Prometheus API: %w", code, err)
	}
	switch {
	case code != http.StatusOK || response.Status != "success":
		return fmt.Errorf("status %d: %s", code, shorten(response.Error))
	case response.Data.ResultType != "vector":
		return errors.New("the query must return a vector, not a " + shorten(response.Data.ResultType))
	}
	var result []struct {
		Metric map[string]string
		Value  [2]any
	}
	if err := json.Unmarshal(response.Data.Result, &result); err != nil {
		return fmt.Errorf("decode the result of the query: %w", err)
	}
	if len(result) == 0 && len(response.Warnings) > 0 { // Thanos returns this if a store is down
		return fmt.Errorf("the result is empty and may be incomplete: %s", shorten(response.Warnings[0]))
	}
	if v.Allowed = len(result) == 0; !v.Allowed {
		metric, _ := json.Marshal(result[0].Metric)
		v.RejectReason = shorten(fmt.Sprintf("the query returned %s, the first is %s: %v",
			plural(len(result), "sample"), metric, result[0].Value[1]))
	}
	return nil
}

// shorten cuts a text after maxReason bytes.
func shorten(text string) string {
	if len(text) > maxReason {
		return strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}
