package admin

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/xdstender/tender/cache/wire/schema"
)

// Numbers of entries on a page.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

// serveJSON returns a handler that serves the result of a function as JSON, or its error with the code of [Refuse].
func serveJSON(f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		response, err := f(r)
		if err != nil {
			writeError(w, CodeOf(err), err.Error())
			return
		}
		writeJSON(w, r, response)
	}
}

// queries serves the GET requests whose responses are functions of their query parameters.
type queries struct{ cfg *Config }

// clients serves a page of clients.
func (qs queries) clients(r *http.Request) (any, error) {
	p := parametersOf(r)
	q := ClientQuery{
		Type: p.typeURL(), ID: p.text("id"), Node: p.text("node"), Cluster: p.text("cluster"), Zone: p.text("zone"),
		Group: p.text("group"), Sync: p.oneOf("sync", "", Rejecting, Stalled, Behind, Unknown, InSync),
		Rejected: p.flag("rejected"), Stalled: p.flag("stalled"), Relays: p.flag("relays"),
		Sort: p.oneOf("sort", ByLag, ByNumber), NoTotals: p.oneOf("totals", "true", "false") == "false", Page: p.page(),
	}
	if q.NoTotals && q.Sort != ByNumber {
		p.fail("totals=false: want sort=number, because other orders need all clients")
	}
	if err := p.done(); err != nil {
		return nil, err
	}
	return qs.cfg.Fleet.Clients(q)
}

// client serves one client.
func (qs queries) client(r *http.Request) (any, error) {
	p := parametersOf(r)
	q := ClientResourceQuery{
		Type: p.typeURL(), State: p.oneOf("state", "", "not_sent", "sent", "accepted", "rejected", NotAccepted), Page: p.page(),
	}
	number, err := strconv.ParseUint(r.PathValue("number"), 10, 64)
	if err != nil {
		p.fail("the client number is %q, want digits", r.PathValue("number"))
	}
	if err := p.done(); err != nil {
		return nil, err
	}
	return qs.cfg.Fleet.Client(number, q)
}

// resources serves a page of resources, or one resource if the parameter "name" is set.
func (qs queries) resources(r *http.Request) (any, error) {
	p := parametersOf(r)
	typeURL := p.typeURL()
	if typeURL == "" {
		p.fail("type is empty: want a type URL, or a short name such as cds")
	}
	if p.values.Has("name") {
		c := ResourceChoice{
			Type: typeURL, Name: p.text("name"), Group: p.text("group"),
			YAML: p.oneOf("format", "json", "yaml") == "yaml", Limit: p.limit(),
		}
		if err := p.done(); err != nil {
			return nil, err
		}
		return qs.cfg.Fleet.Resource(c)
	}
	q := ResourceQuery{Type: typeURL, Group: p.text("group"), Contains: p.text("contains"), Page: p.page()}
	if err := p.done(); err != nil {
		return nil, err
	}
	return qs.cfg.Fleet.Resources(q)
}

// history serves the changes of a resource.
func (qs queries) history(r *http.Request) (any, error) {
	p := parametersOf(r)
	c := HistoryChoice{Type: p.typeURL(), Name: p.text("name"), Group: p.text("group"), Limit: p.limit()}
	if c.Type == "" || !p.values.Has("name") {
		p.fail("type or name is missing: want a type URL, or a short name such as cds, and the name of a resource")
	}
	if err := p.done(); err != nil {
		return nil, err
	}
	return qs.cfg.Fleet.History(c)
}

// parameters are the query parameters of a request, with the first error in them.
type parameters struct {
	values url.Values
	names  []string // parameters that were read
	err    error    // the first error
}

// parametersOf returns the query parameters of a request. The caller reads them, and then calls done.
func parametersOf(r *http.Request) *parameters {
	values, err := url.ParseQuery(r.URL.RawQuery)
	p := &parameters{values: values}
	if err != nil {
		p.fail("the query is malformed: %v", err)
	}
	return p
}

// fail records an error with the code 400, unless there is one already.
func (p *parameters) fail(format string, args ...any) {
	if p.err == nil {
		p.err = Refuse(http.StatusBadRequest, fmt.Errorf(format, args...))
	}
}

// done returns the first error. A parameter that the caller has not read is an error too.
func (p *parameters) done() error {
	for name, values := range p.values {
		switch {
		case !slices.Contains(p.names, name):
			p.fail("unknown parameter %.64q: want %s", name, strings.Join(p.names, ", "))
		case len(values) > 1:
			p.fail("%s occurs %d times, want once", name, len(values))
		}
	}
	return p.err
}

// text returns the value of a parameter; empty without one.
func (p *parameters) text(name string) string {
	p.names = append(p.names, name)
	return p.values.Get(name)
}

// flag returns the value of a parameter that is true or false, which is the default.
func (p *parameters) flag(name string) bool {
	switch text := p.text(name); text {
	case "", "false":
		return false
	case "true":
		return true
	default:
		p.fail("%s=%.64s: want true or false", name, text)
		return false
	}
}

// oneOf returns the value of a parameter that has one of the given values. The first one is the default.
func (p *parameters) oneOf(name string, values ...string) string {
	text := p.text(name)
	if text == "" {
		return values[0]
	}
	if !slices.Contains(values, text) {
		p.fail("%s=%.64s: want %s", name, text, strings.TrimPrefix(strings.Join(values, ", "), ", "))
	}
	return text
}

// typeURL returns the type URL of the parameter "type", which may be a short name.
func (p *parameters) typeURL() string {
	text := p.text("type")
	if typeURL, ok := schema.TypeURLFor(text); ok {
		return typeURL
	}
	if text != "" && !strings.Contains(text, "/") {
		p.fail("type=%.64s: want a type URL, or a short name such as cds", text)
	}
	return text
}

// page returns the parameters "limit" and "after".
func (p *parameters) page() Page { return Page{Limit: p.limit(), After: p.text("after")} }

// limit returns the parameter "limit".
func (p *parameters) limit() int {
	text := p.text("limit")
	if text == "" {
		return defaultLimit
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxLimit {
		p.fail("limit=%.64s: want 0 to %d", text, maxLimit)
	}
	return n
}
