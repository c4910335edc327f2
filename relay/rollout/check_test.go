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

var question = Question{Origin: "default", Edition: "ab12", Stage: 1, Stages: 2, Changed: time.Unix(1e9, 5e8).UTC(), Resources: 3, Clients: 2, Accepted: 1, Canaries: []string{"a", "b"}}

// asked is what a check is asked, and answers with a status and a body.
func asked(t *testing.T, code int, body string) (c Check, request func() string) {
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got = fmt.Sprintf("%s %s %s %s", r.Method, r.URL.Path, r.Header.Get("Content-Type"), text)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return Check{URL: server.URL + "/here", Client: server.Client()}, func() string { return got }
}

func (v Verdict) expect(t *testing.T, err error, allowed bool, refuse, problem string) {
	t.Helper()
	if v.Go != allowed || v.Refuse != refuse || v.Asked.IsZero() || (err != nil) != (problem != "") || err != nil && !strings.Contains(err.Error(), problem) {
		t.Errorf("%+v, %v; want go %v, refused for %q, a problem %q", v, err, allowed, refuse, problem)
	}
}

func TestI12_AnswersOfAWebhook(t *testing.T) {
	for _, c := range []struct {
		code    int
		body    string
		allowed bool
		refuse  string
		problem string
	}{
		{200, "whatever", true, "", ""},
		{204, "", true, "", ""},
		{403, "errors are up\nsee the dashboard", false, "errors are up", ""},
		{409, "", false, "status 409 without a reason", ""},
		{403, strings.Repeat("é", 10_000), false, strings.Repeat("é", maxReason/2) + "…", ""},
		{201, "ok", false, "", `status 201 is no answer`},
		{500, "no", false, "", `"no"`},
		{404, "", false, "", "status 404"},
	} {
		check, _ := asked(t, c.code, c.body)
		v, err := check.Ask(t.Context(), question)
		v.expect(t, err, c.allowed, c.refuse, c.problem)
	}
}

func TestI12_ACheckThatIsSilentDoesNotAnswer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		cancel() // in place of the time that it may take
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	v, err := (&Check{URL: server.URL, Client: server.Client()}).Ask(ctx, question)
	v.expect(t, err, false, "", context.Canceled.Error())
	v, err = (&Check{URL: "http://127.0.0.1:1"}).Ask(t.Context(), question)
	v.expect(t, err, false, "", "connection refused")
}

func TestI12_ARedirectIsNoAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/login" {
			http.Redirect(w, r, "/login", http.StatusFound)
		}
	}))
	t.Cleanup(server.Close)
	for _, client := range []*http.Client{nil, server.Client()} {
		v, err := (&Check{URL: server.URL, Client: client}).Ask(t.Context(), question)
		v.expect(t, err, false, "", "status 302 is no answer")
	}
}

func TestErrorsOfTheCheckHoldNoCredentials(t *testing.T) {
	for _, to := range []string{"http://user:hunter2@127.0.0.1:1/a?token=hunter2", "http://user:hunter2@127.0.0.1:x"} {
		for _, query := range []string{"", "up"} {
			_, err := (&Check{URL: to, Query: query}).Ask(t.Context(), question)
			if err == nil || strings.Contains(err.Error(), "user") || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s, query %q: %v; want an error without the user and the token", to, query, err)
			}
		}
	}
}

func TestTheCheckIsGivenTheUserOfItsURL(t *testing.T) {
	var user, password string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { user, password, _ = r.BasicAuth() }))
	t.Cleanup(server.Close)
	v, err := (&Check{URL: strings.Replace(server.URL, "//", "//user:hunter2@", 1)}).Ask(t.Context(), question)
	v.expect(t, err, true, "", "")
	if user != "user" || password != "hunter2" {
		t.Errorf("the check was given the user %q with the password %q", user, password)
	}
}

func TestTheCheckIsAskedAboutTheEdition(t *testing.T) {
	check, request := asked(t, 204, "")
	if _, err := check.Ask(t.Context(), question); err != nil {
		t.Fatal(err)
	}
	const want = `POST /here application/json {"origin":"default","edition":"ab12","stage":1,"stages":2,"changed":"2001-09-09T01:46:40.5Z",` +
		`"resources":3,"clients":2,"accepted":1,"refused":0,"canaries":["a","b"]}`
	if got := request(); got != want {
		t.Errorf("the check was asked\n%s\nwant\n%s", got, want)
	}
}

func TestI12_AnswersThatNoPrometheusGives(t *testing.T) {
	for body, problem := range map[string]string{
		"":                   "status 200, and the body is not that of a Prometheus",
		`{"status":"error"}`: "status 200",
		`{"status":"success","data":{"resultType":"vector","result":7}}`:                                 "read the result",
		`{"status":"success","data":{"resultType":"vector","result":null`:                                "not that of a Prometheus",
		`{"status":"success","data":{"resultType":"matrix","result":[]}}`:                                "not a matrix",
		`{"status":"success","data":{"resultType":"vector","result":[]},"warnings":["a store is down"]}`: "no result, and it may be incomplete: a store is down",
		`{"status":"success","data":{"resultType":"","result":[]}}`:                                      "vector",
		`{"status":"success","data":{"resultType":"vector","result":[1]}}`:                               "read the result",
	} {
		check, _ := asked(t, 200, body)
		check.Query = "up"
		v, err := check.Ask(t.Context(), question)
		v.expect(t, err, false, "", problem)
	}
}

func FuzzVerdict(f *testing.F) {
	f.Add(200, []byte(`{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1,"2"]}]}}`))
	f.Add(403, []byte("no\nwhy"))
	f.Fuzz(func(t *testing.T, code int, body []byte) {
		for _, read := range []func(*Verdict, int, []byte) error{(*Verdict).readStatus, (*Verdict).readSamples} {
			var v Verdict
			if err := read(&v, code, body); err != nil && (v.Go || v.Refuse != "") || err == nil && v.Go == (v.Refuse != "") {
				t.Errorf("%+v, %v", v, err)
			}
			if _, err := json.Marshal(v); err != nil || len(v.Refuse) > maxReason+3 {
				t.Errorf("%q: %v", v.Refuse, err)
			}
		}
	})
}
