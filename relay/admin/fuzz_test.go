package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// FuzzCommand verifies that a command is executed once if its body is one JSON object of known arguments, and refused
// with an error otherwise.
func FuzzCommand(f *testing.F) {
	const media = "application/json"
	for _, body := range []string{
		``, `{}`, ` {"origin":"west","count":3}`, `null`, `[]`, `{"origin":1}`, `{"orign":"west"}`, `{} {}`,
		`{"origin":"\ud800"}`, `{"Origin":"a","origin":"b"}`, "{\"origin\":\"\xff\"}", `{"count":1e400}`,
		strings.Repeat(`{"scope":`, 20_000), `{"origin":"a"}` + strings.Repeat(" ", maxCommandBytes),
	} {
		f.Add(media, body)
	}
	f.Add("text/plain", "{}")
	f.Add("application/json; charset=\"", "{}")
	f.Add("Application/JSON; charset=utf-8", "{}")

	type arguments struct {
		Origin string     `json:"origin"`
		Count  int        `json:"count"`
		Scope  *arguments `json:"scope"`
	}
	var calls int
	s := &Server{actions: &actions{logger: slog.New(slog.DiscardHandler)}}
	serve := s.command(NewCommand("echo", func(_ context.Context, a arguments) (arguments, error) {
		calls++
		return a, nil
	}))
	f.Fuzz(func(t *testing.T, media, body string) {
		r := httptest.NewRequest(http.MethodPost, "/api/v1/echo", strings.NewReader(body))
		r.Header.Set("Content-Type", media)
		resp := httptest.NewRecorder()
		calls = 0
		serve(resp, r)

		var response struct {
			arguments
			Error string `json:"error"`
		}
		if err := json.Unmarshal(resp.Body.Bytes(), &response); err != nil {
			t.Fatalf("%q: response %d %q: %v", body, resp.Code, resp.Body, err)
		}
		switch resp.Code {
		case http.StatusOK:
			var want arguments
			err := json.Unmarshal([]byte(body), &want)
			if body != "" && err != nil || calls != 1 || len(body) > maxCommandBytes {
				t.Fatalf("%q was executed %d times: %v", body, calls, err)
			}
			if got := response.arguments; text(t, got) != text(t, want) {
				t.Errorf("%q was decoded as %s, want %s", body, text(t, got), text(t, want))
			}
			if !strings.Contains(strings.ToLower(media), "application/json") {
				t.Errorf("%q with the Content-Type %q was executed", body, media)
			}
		case http.StatusBadRequest, http.StatusUnsupportedMediaType, http.StatusRequestEntityTooLarge:
			if calls != 0 || response.Error == "" {
				t.Errorf("%q: response %d %q after %d calls", body, resp.Code, response.Error, calls)
			}
		default:
			t.Errorf("%q: response %d %q", body, resp.Code, resp.Body)
		}
	})
}

// FuzzRolloutQuery verifies that a request is served if it has only known parameters with one valid value each, and a
// type with each name. Otherwise it is refused with an error.
func FuzzRolloutQuery(f *testing.F) {
	for _, query := range []string{
		"", "origin=west", "origin=west&origin=east", "type=cds&name=web&group=g&limit=7&after=YQ", "name=web",
		"type=clusters", "type=a/b.C", "limit=-1", "limit=1001", "%zz", "origin=%00", "nam=e", ";",
	} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		var origin *string
		var choice *RolloutChoice
		q := queries{&Config{
			Rollouts: func(name string) (Rollouts, error) { origin = &name; return Rollouts{}, nil },
			RolloutDiff: func(_ context.Context, c RolloutChoice) (RolloutDiff, error) {
				choice = &c
				return RolloutDiff{}, nil
			},
		}}
		values, malformed := url.ParseQuery(query)
		ask := func(serve func(*http.Request) (any, error), known ...string) (allowed bool) {
			resp := httptest.NewRecorder()
			serveJSON(serve)(resp, &http.Request{Method: http.MethodGet, URL: &url.URL{RawQuery: query}})
			var refused struct{ Error string }
			err := json.Unmarshal(resp.Body.Bytes(), &refused)
			isError := resp.Code == http.StatusBadRequest
			if err != nil || resp.Code != http.StatusOK && !isError || (refused.Error != "") != isError {
				t.Fatalf("%q: response %d %q: %v", query, resp.Code, resp.Body, err)
			}
			for name, given := range values {
				if allowed := slices.Contains(known, name) && len(given) == 1; !allowed && resp.Code == http.StatusOK {
					t.Errorf("%q: response 200, but %s is unknown or occurs %d times", query, name, len(given))
				}
			}
			return resp.Code == http.StatusOK
		}
		allowed := ask(q.rollouts, "origin")
		if allowed != (origin != nil) || allowed && (malformed != nil || *origin != values.Get("origin")) {
			t.Errorf("rollouts?%s: origin %v, allowed %v", query, origin, allowed)
		}
		allowed = ask(q.rolloutDiff, "origin", "type", "name", "group", "limit", "after")
		if allowed != (choice != nil) || allowed && (malformed != nil || choice.Name != values.Get("name") ||
			choice.Name != "" && choice.Type == "" || choice.Limit < 0 || choice.Limit > maxLimit) {
			t.Errorf("rollout/diff?%s: choice %+v, allowed %v", query, choice, allowed)
		}
	})
}

// text returns a value as JSON.
func text(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
