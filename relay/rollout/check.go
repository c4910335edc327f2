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

// Limits of a response of the check in bytes: maxAnswer is read, maxReason is shown.
const (
	maxAnswer = 1 << 20
	maxReason = 512
)

// A Check asks an external system whether an edition may proceed.
type Check struct {
	// URL receives a POST with a Question as JSON. 200 and 204 permit the edition. 403 and 409 reject it; the first
	// line of the body is the reason. Any other response leaves the check undecided.
	URL string

	// Query makes URL the address of a Prometheus server. An empty result permits the edition; samples reject it. An
	// error, a result that is not a vector, and an empty result with a warning leave the check undecided. {changed} is
	// replaced by Question.Changed in Unix seconds.
	Query string

	// Client makes the requests; nil is http.DefaultClient.
	Client *http.Client
}

// A Question is the body of a request to the check.
type Question struct {
	Origin    string    `json:"origin"`
	Edition   string    `json:"edition"`
	Stage     int       `json:"stage"`  // 0 before the first
	Stages    int       `json:"stages"` // without the rest
	Changed   time.Time `json:"changed"`
	Resources int       `json:"resources"` // that the edition changes
	Clients   int       `json:"clients"`   // connected ones that are served the edition
	Accepted  int       `json:"accepted"`
	Refused   int       `json:"refused"`
	Canaries  []string  `json:"canaries"` // ids of these clients, at most MaxCanaries
}

// MaxCanaries is the maximum number of client ids in a Question.
const MaxCanaries = 1000

// Ask sends one request and returns the verdict. An error means that the check is undecided. Errors do not contain the
// URL, which may hold credentials.
func (c *Check) Ask(ctx context.Context, q Question) (Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	v := Verdict{Asked: time.Now()}
	req, err := c.request(ctx, q)
	if err != nil {
		return v, withoutURL(err)
	}
	via := *cmp.Or(c.Client, http.DefaultClient)
	via.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // a login page is not a verdict
	resp, err := via.Do(req)
	if err != nil {
		return v, withoutURL(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
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

func (c *Check) request(ctx context.Context, q Question) (*http.Request, error) {
	if c.Query == "" {
		body, err := json.Marshal(q)
		if err != nil {
			return nil, err
		}
		return post(ctx, c.URL, "application/json", body)
	}
	query := strings.ReplaceAll(c.Query, "{changed}", strconv.FormatInt(q.Changed.Unix(), 10))
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, err
	}
	return post(ctx, u.JoinPath("api/v1/query").String(), "application/x-www-form-urlencoded", []byte(url.Values{"query": {query}}.Encode()))
}

// withoutURL returns the cause of a request error, without the URL.
func withoutURL(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

func post(ctx context.Context, to, contentType string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", contentType)
	return req, nil
}

// readStatus decodes the response to a Question.
func (v *Verdict) readStatus(code int, body []byte) error {
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	line = shorten(line)
	switch code {
	case http.StatusOK, http.StatusNoContent:
		v.Go = true
		return nil
	case http.StatusForbidden, http.StatusConflict:
		v.Refuse = line
		if line == "" {
			v.Refuse = fmt.Sprintf("status %d without a reason", code)
		}
		return nil
	default:
		return fmt.Errorf("status %d is no answer, which would be 200, 204, 403 or 409: %q", code, line)
	}
}

// readSamples decodes the response of a Prometheus server.
func (v *Verdict) readSamples(code int, body []byte) error {
	var answer struct {
		Status, Error string
		Warnings      []string
		Data          struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("status %d, and the body is not that of a Prometheus: %w", code, err)
	}
	switch {
	case code != http.StatusOK || answer.Status != "success":
		return fmt.Errorf("status %d: %s", code, shorten(answer.Error))
	case answer.Data.ResultType != "vector":
		return errors.New("the query has to have a vector as its result, not a " + shorten(answer.Data.ResultType))
	}
	var result []struct {
		Metric map[string]string
		Value  [2]any
	}
	if err := json.Unmarshal(answer.Data.Result, &result); err != nil {
		return fmt.Errorf("read the result of the query: %w", err)
	}
	if len(result) == 0 && len(answer.Warnings) > 0 { // Thanos returns this if a store is down
		return fmt.Errorf("no result, and it may be incomplete: %s", shorten(answer.Warnings[0]))
	}
	if v.Go = len(result) == 0; !v.Go {
		metric, _ := json.Marshal(result[0].Metric)
		v.Refuse = shorten(fmt.Sprintf("the query has %s, the first is %s: %v", plural(len(result), "sample"), metric, result[0].Value[1]))
	}
	return nil
}

func shorten(text string) string {
	if len(text) > maxReason {
		return strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}
