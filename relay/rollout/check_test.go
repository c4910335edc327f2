package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

var checkRequest = CheckRequest{
	Origin: "default", Part: "rds/a", Edition: "ab12", Stage: 1, Stages: 2, Changed: time.Unix(1e9, 5e8).UTC(),
	Resources: 3, Clients: 2, Accepted: 1, Canaries: []string{"a", "b"},
}

// newCheck returns a check whose server responds with a status and a body. received returns the last request as text.
func newCheck(t *testing.T, code int, body string) (c Check, received func() string) {
	var last string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		last = fmt.Sprintf("%s %s %s %s", r.Method, r.URL.Path, r.Header.Get("Content-Type"), text)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return Check{URL: server.URL + "/here", Client: server.Client()}, func() string { return last }
}

// expect fails unless a verdict has the given decision. err must contain wantErr, or be nil if wantErr is empty.
func (v Verdict) expect(t *testing.T, err error, allowed bool, rejectReason, wantErr string) {
	t.Helper()
	errOK := (err != nil) == (wantErr != "") && (err == nil || strings.Contains(err.Error(), wantErr))
	if v.Allowed != allowed || v.RejectReason != rejectReason || v.RequestedAt.IsZero() || !errOK {
		t.Errorf("verdict %+v, error %v; want allowed %v, reject reason %q, error %q", v, err, allowed, rejectReason, wantErr)
	}
}

func TestI12_WebhookStatusDecides(t *testing.T) {
	for _, c := range []struct {
		code         int
		body         string
		allowed      bool
		rejectReason string
		wantErr      string
	}{
		{200, "whatever", true, "", ""},
		{204, "", true, "", ""},
		{403, "errors are up\nsee the dashboard", false, "errors are up", ""},
		{409, "", false, "status 409 without a reason", ""},
		{403, strings.Repeat("é", 10_000), false, strings.Repeat("é", maxReason/2) + "…", ""},
		{201, "ok", false, "", `unexpected status 201`},
		{500, "no", false, "", `"no"`},
		{404, "", false, "", "unexpected status 404"},
	} {
		check, _ := newCheck(t, c.code, c.body)
		v, err := check.Send(t.Context(), checkRequest)
		v.expect(t, err, c.allowed, c.rejectReason, c.wantErr)
	}
}

func TestI12_UnreachableCheckIsUndecided(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		cancel() // instead of the timeout
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	v, err := (&Check{URL: server.URL, Client: server.Client()}).Send(ctx, checkRequest)
	v.expect(t, err, false, "", context.Canceled.Error())
	v, err = (&Check{URL: "http://127.0.0.1:1"}).Send(t.Context(), checkRequest)
	v.expect(t, err, false, "", "connection refused")
}

func TestI12_RedirectIsUndecided(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/login" {
			http.Redirect(w, r, "/login", http.StatusFound)
		}
	}))
	t.Cleanup(server.Close)
	for _, client := range []*http.Client{nil, server.Client()} {
		v, err := (&Check{URL: server.URL, Client: client}).Send(t.Context(), checkRequest)
		v.expect(t, err, false, "", "unexpected status 302")
	}
}

func TestCheckErrorsOmitCredentials(t *testing.T) {
	for _, address := range []string{
		"http://user:hunter2@127.0.0.1:1/a?token=hunter2",
		"http://user:hunter2@127.0.0.1:x",
	} {
		_, err := (&Check{URL: address}).Send(t.Context(), checkRequest)
		if err == nil || strings.Contains(err.Error(), "user") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want an error without the user and the token", address, err)
		}
	}
}

func TestCheckSendsUserOfURL(t *testing.T) {
	var user, password string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		user, password, _ = r.BasicAuth()
	}))
	t.Cleanup(server.Close)
	v, err := (&Check{URL: strings.Replace(server.URL, "//", "//user:hunter2@", 1)}).Send(t.Context(), checkRequest)
	v.expect(t, err, true, "", "")
	if user != "user" || password != "hunter2" {
		t.Errorf("the check received user %q and password %q, want user and hunter2", user, password)
	}
}

func TestCheckRequestDescribesEdition(t *testing.T) {
	check, received := newCheck(t, 204, "")
	if _, err := check.Send(t.Context(), checkRequest); err != nil {
		t.Fatal(err)
	}
	const want = `POST /here application/json {"origin":"default","part":"rds/a","edition":"ab12","stage":1,"stages":2,` +
		`"changed":"2001-09-09T01:46:40.5Z","resources":3,"clients":2,"accepted":1,"rejected":0,"canaries":["a","b"]}`
	if got := received(); got != want {
		t.Errorf("the check received\n%s\nwant\n%s", got, want)
	}
}

func FuzzVerdict(f *testing.F) {
	f.Add(200, []byte("yes"))
	f.Add(403, []byte("no\nwhy"))
	f.Fuzz(func(t *testing.T, code int, body []byte) {
		var v Verdict
		err := v.readStatus(code, body)
		if decided := v.Allowed != (v.RejectReason != ""); err != nil && (v != Verdict{}) || err == nil && !decided {
			t.Errorf("verdict %+v, error %v; want exactly one of allowed, reject reason and error", v, err)
		}
		if _, err := json.Marshal(v); err != nil || len(v.RejectReason) > maxReason+3 {
			t.Errorf("reject reason %q, error %v; want at most %d bytes that JSON can encode", v.RejectReason, err, maxReason)
		}
	})
}
