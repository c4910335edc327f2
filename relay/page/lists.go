package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/admin"
)

// perPage is how many clients or resources one page lists.
const perPage = 100

// A clientTable lists clients.
type clientTable struct {
	Clients []admin.Client
	Totals  admin.ClientTotals
	Now     time.Time
	Next    string // the start of the next page; empty on the last page
	More    bool   // there are more, to be found on the page of clients
}

// A clientForm is what one may ask of clients.
type clientForm struct {
	Node, Group, Type string
	Refused, Stalled  bool
	Types             []string // to choose from
}

// typeOf returns the type URL of a parameter, which may be a short name.
func typeOf(text string) string {
	if typeURL, ok := schema.TypeURLFor(text); ok {
		return typeURL
	}
	return text
}

// clients makes the page that lists clients.
func (p *Pages) clients(r *http.Request) (view, error) {
	values := r.URL.Query()
	form := clientForm{
		Node: values.Get("node"), Group: values.Get("group"), Type: typeOf(values.Get("type")),
		Refused: values.Get("refused") == "true", Stalled: values.Get("stalled") == "true",
	}
	got, err := p.cfg.Fleet.Clients(admin.ClientQuery{
		Type: form.Type, Node: form.Node, Group: form.Group, Refused: form.Refused, Stalled: form.Stalled,
		Sort: admin.ByLag, Page: admin.Page{Limit: perPage, After: values.Get("after")},
	})
	if err != nil {
		return view{}, err
	}
	form.Types = p.types(form.Type)
	table := clientTable{Clients: got.Clients, Totals: got.Totals, Now: time.Now(), Next: next(r, got.Next)}
	return view{Title: "Clients", Under: "/clients", Form: &section{"client-form", form}, Sections: []section{{"clients", table}}}, nil
}

// types returns the types that the relay has anything of, and the one that is asked for.
func (p *Pages) types(also string) []string {
	var types []string
	if also != "" {
		types = append(types, also)
	}
	status := p.cfg.Status()
	for i := range status.Views {
		for _, t := range status.Views[i].Types {
			types = append(types, t.TypeURL)
		}
	}
	slices.Sort(types)
	return slices.Compact(types)
}

// next returns the path of the next page of a list.
func next(r *http.Request, after string) string {
	if after == "" {
		return ""
	}
	values := r.URL.Query()
	values.Set("after", after)
	return strings.TrimPrefix(r.URL.Path, "/live") + "?" + values.Encode()
}

// client makes the page of one client.
func (p *Pages) client(r *http.Request) (view, error) {
	number, err := strconv.ParseUint(r.PathValue("number"), 10, 64)
	if err != nil {
		return view{}, admin.Refuse(http.StatusNotFound, fmt.Errorf("%.32q is not the number of a client", r.PathValue("number")))
	}
	values := r.URL.Query()
	got, err := p.cfg.Fleet.Client(number, admin.ClientResourceQuery{
		Type: typeOf(values.Get("type")), State: values.Get("state"), Page: admin.Page{Limit: perPage, After: values.Get("after")},
	})
	if err != nil {
		return view{}, err
	}
	data := struct {
		admin.ClientDetail
		Now        time.Time
		Asked      url.Values
		NextPage   string
		StateNames []string
	}{got, time.Now(), values, next(r, got.Next), states}
	return view{
		Title: "Client " + got.NodeID, Under: "/clients",
		Sections: []section{{"client", data}, {"client-types", data}, {"client-resources", data}},
	}, nil
}

// states are those that a resource may be in on the way to a client, what is worst first.
var states = []string{"refused", "not_sent", "sent", "accepted"}

// resources makes the page that lists the resources of a type, or the types.
func (p *Pages) resources(r *http.Request) (view, error) {
	values := r.URL.Query()
	form := struct {
		Type, Contains string
		Types          []string
	}{Type: typeOf(values.Get("type")), Contains: values.Get("contains")}
	form.Types = p.types(form.Type)
	v := view{Title: "Resources", Under: "/resources", Form: &section{"resource-form", form}}
	if form.Type == "" {
		return v, nil
	}
	got, err := p.cfg.Fleet.Resources(admin.ResourceQuery{
		Type: form.Type, Contains: form.Contains, Page: admin.Page{Limit: perPage, After: values.Get("after")},
	})
	if err != nil {
		return view{}, err
	}
	v.Title = short(form.Type)
	v.Sections = []section{{"resources", struct {
		admin.Resources
		NextPage string
	}{got, next(r, got.Next)}}}
	return v, nil
}

// maxHolders is how many of the clients that asked for a resource its page lists.
const maxHolders = 100

// resource makes the page of one resource.
func (p *Pages) resource(r *http.Request) (view, error) {
	values := r.URL.Query()
	got, err := p.cfg.Fleet.Resource(admin.ResourceChoice{
		Type: typeOf(values.Get("type")), Name: values.Get("name"), Group: values.Get("group"), YAML: true, Limit: maxHolders,
	})
	if err != nil {
		return view{}, err
	}
	data := struct {
		admin.ResourceDetail
		Texts      map[string]string
		Now        time.Time
		StateNames []string
		Changes    []change
		NoChanges  string // why there are none
	}{ResourceDetail: got, Texts: make(map[string]string, len(got.Bodies)), Now: time.Now(), StateNames: states}
	changed, err := p.cfg.Fleet.History(admin.HistoryChoice{Type: got.TypeURL, Name: got.Name, Group: values.Get("group"), Limit: maxChanges})
	if err != nil {
		data.NoChanges = err.Error()
	}
	for _, c := range changed.Changes {
		data.Changes = append(data.Changes, change{c, linesOf(c.Diff)})
	}
	for digest, body := range got.Bodies {
		var text string
		if err := json.Unmarshal(body, &text); err != nil {
			return view{}, fmt.Errorf("read YAML of %s: %w", got.Name, err)
		}
		data.Texts[digest] = text
	}
	return view{
		Title: got.Name, Under: "/resources",
		Sections: []section{{"resource", data}, {"resource-body", data}, {"holders", data}, {"history", data}},
	}, nil
}

// maxChanges is how many changes of a resource its page shows.
const maxChanges = 10

// A change is shown with the lines of its diff.
type change struct {
	admin.Change
	Lines []diffLine
}

// A diffLine is a line of a diff. Its Kind is added, removed, place (the position of the next lines), or empty.
type diffLine struct{ Kind, Text string }

func linesOf(diff string) (lines []diffLine) {
	for text := range strings.Lines(diff) {
		l := diffLine{Text: text}
		switch text[0] {
		case '+':
			l.Kind = "added"
		case '-':
			l.Kind = "removed"
		case '@':
			l.Kind = "place"
		}
		lines = append(lines, l)
	}
	return lines
}
