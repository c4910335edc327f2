package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
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

func text(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
