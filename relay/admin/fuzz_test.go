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

// FuzzCommand: whatever is sent as a command, it is carried out if it is one JSON object
// of known arguments, as JSON, and otherwise refused with a reason.
func FuzzCommand(f *testing.F) {
	const media = "application/json"
	for _, body := range []string{
		``, `{}`, ` {"origin":"west","count":3}`, `null`, `[]`, `{"origin":1}`, `{"orign":"west"}`, `{} {}`, `{"origin":"\ud800"}`, `{"Origin":"a","origin":"b"}`,
		"{\"origin\":\"\xff\"}", `{"count":1e400}`, strings.Repeat(`{"scope":`, 20_000), `{"origin":"a"}` + strings.Repeat(" ", maxCommandBytes),
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
	var ran int
	s := &Server{cfg: Config{Logger: slog.New(slog.DiscardHandler)}}
	serve := s.command(NewCommand("echo", func(_ context.Context, a arguments) (arguments, error) {
		ran++
		return a, nil
	}))
	f.Fuzz(func(t *testing.T, media, body string) {
		r := httptest.NewRequest(http.MethodPost, "/api/v1/echo", strings.NewReader(body))
		r.Header.Set("Content-Type", media)
		reply := httptest.NewRecorder()
		ran = 0
		serve(reply, r)

		var answer struct {
			arguments
			Error string `json:"error"`
		}
		if err := json.Unmarshal(reply.Body.Bytes(), &answer); err != nil {
			t.Fatalf("%q is answered %d %q: %v", body, reply.Code, reply.Body, err)
		}
		switch reply.Code {
		case http.StatusOK:
			var want arguments
			if err := json.Unmarshal([]byte(body), &want); body != "" && err != nil || ran != 1 || len(body) > maxCommandBytes {
				t.Fatalf("%q was carried out %d times: %v", body, ran, err)
			}
			if got := answer.arguments; text(t, got) != text(t, want) {
				t.Errorf("%q is taken for %s, want %s", body, text(t, got), text(t, want))
			}
			if !strings.Contains(strings.ToLower(media), "application/json") {
				t.Errorf("%q was carried out of %q", body, media)
			}
		case http.StatusBadRequest, http.StatusUnsupportedMediaType, http.StatusRequestEntityTooLarge:
			if ran != 0 || answer.Error == "" {
				t.Errorf("%q is answered %d %q, and was carried out %d times", body, reply.Code, answer.Error, ran)
			}
		default:
			t.Errorf("%q is answered %d %q", body, reply.Code, reply.Body)
		}
	})
}

// FuzzRolloutQuery: whatever is asked about rollouts, the answer is what a query of known parameters with one value each says, or
// a refusal with a reason; a name never comes without a type.
func FuzzRolloutQuery(f *testing.F) {
	for _, query := range []string{
		"", "origin=west", "origin=west&origin=east", "type=cds&name=web&group=g&limit=7&after=YQ", "name=web", "type=clusters", "type=a/b.C", "limit=-1", "limit=1001", "%zz", "origin=%00", "nam=e", ";",
	} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		var origin *string
		var choice *RolloutChoice
		s := &Server{cfg: Config{
			Rollouts:    func(name string) (Rollouts, error) { origin = &name; return Rollouts{}, nil },
			RolloutDiff: func(_ context.Context, c RolloutChoice) (RolloutDiff, error) { choice = &c; return RolloutDiff{}, nil },
		}}
		values, malformed := url.ParseQuery(query)
		ask := func(serve func(*http.Request) (any, error), known ...string) (allowed bool) {
			reply := httptest.NewRecorder()
			answer(serve)(reply, &http.Request{Method: http.MethodGet, URL: &url.URL{RawQuery: query}})
			var refused struct{ Error string }
			if err := json.Unmarshal(reply.Body.Bytes(), &refused); err != nil || reply.Code != http.StatusOK && reply.Code != http.StatusBadRequest || (refused.Error != "") != (reply.Code == http.StatusBadRequest) {
				t.Fatalf("%q is answered %d %q: %v", query, reply.Code, reply.Body, err)
			}
			for name, of := range values {
				if allowed := slices.Contains(known, name) && len(of) == 1; !allowed && reply.Code == http.StatusOK {
					t.Errorf("%q is answered, though %s is given %d times", query, name, len(of))
				}
			}
			return reply.Code == http.StatusOK
		}
		if allowed := ask(s.rollouts, "origin"); allowed != (origin != nil) || allowed && (malformed != nil || *origin != values.Get("origin")) {
			t.Errorf("%q asks for the rollouts of %v: %v", query, origin, allowed)
		}
		allowed := ask(s.rolloutDiff, "origin", "type", "name", "group", "limit", "after")
		if allowed != (choice != nil) || allowed && (malformed != nil || choice.Name != values.Get("name") || choice.Name != "" && choice.Type == "" || choice.Limit < 0 || choice.Limit > maxLimit) {
			t.Errorf("%q asks for the changes %+v: %v", query, choice, allowed)
		}
	})
}

func text(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
