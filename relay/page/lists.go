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

// pageSize is the maximum number of clients or resources on one page.
const pageSize = 100

// A clientTable lists clients.
type clientTable struct {
	Clients []admin.Client
	Totals  admin.ClientTotals
	Now     time.Time
	Next    string // path of the next page; empty on the last page
	More    bool   // the page /clients lists more clients
}

// A clientForm has the filters of the list of clients.
type clientForm struct {
	Node, Group, Type string
	Rejected, Stalled bool
	Types             []string // options of Type
}

// typeURLOf returns the type URL of a parameter, which may be a short name such as cds.
func typeURLOf(text string) string {
	if typeURL, ok := schema.TypeURLFor(text); ok {
		return typeURL
	}
	return text
}

// clients returns the page /clients.
func (p *Pages) clients(r *http.Request) (view, error) {
	values := r.URL.Query()
	form := clientForm{
		Node: values.Get("node"), Group: values.Get("group"), Type: typeURLOf(values.Get("type")),
		Rejected: values.Get("rejected") == "true", Stalled: values.Get("stalled") == "true",
	}
	found, err := p.cfg.Fleet.Clients(admin.ClientQuery{
		Type: form.Type, Node: form.Node, Group: form.Group, Rejected: form.Rejected, Stalled: form.Stalled,
		Sort: admin.ByLag, Page: admin.Page{Limit: pageSize, After: values.Get("after")},
	})
	if err != nil {
		return view{}, err
	}
	form.Types = p.types(form.Type)
	table := clientTable{Clients: found.Clients, Totals: found.Totals, Now: time.Now(), Next: nextPage(r, found.Next)}
	return view{
		Title: "Clients", Nav: "/clients",
		Form: &section{"client-form", form}, Sections: []section{{"clients", table}},
	}, nil
}

// types returns the type URLs of all views, and the selected one if it is not empty.
func (p *Pages) types(selected string) []string {
	var types []string
	if selected != "" {
		types = append(types, selected)
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

// nextPage returns the path of the next page of a list; empty if after is.
func nextPage(r *http.Request, after string) string {
	if after == "" {
		return ""
	}
	values := r.URL.Query()
	values.Set("after", after)
	return strings.TrimPrefix(r.URL.Path, "/live") + "?" + values.Encode()
}

// client returns the page of one client.
func (p *Pages) client(r *http.Request) (view, error) {
	number, err := strconv.ParseUint(r.PathValue("number"), 10, 64)
	if err != nil {
		err := fmt.Errorf("%.32q is not the number of a client", r.PathValue("number"))
		return view{}, admin.Refuse(http.StatusNotFound, err)
	}
	values := r.URL.Query()
	found, err := p.cfg.Fleet.Client(number, admin.ClientResourceQuery{
		Type: typeURLOf(values.Get("type")), State: values.Get("state"),
		Page: admin.Page{Limit: pageSize, After: values.Get("after")},
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
	}{found, time.Now(), values, nextPage(r, found.Next), states}
	return view{
		Title: "Client " + found.NodeID, Nav: "/clients",
		Sections: []section{{"client", data}, {"client-types", data}, {"client-resources", data}},
	}, nil
}

// states are the states of a resource at a client, the most severe first.
var states = []string{"rejected", "not_sent", "sent", "accepted"}

// resources returns the page that lists the resources of a type, or all types if none is selected.
func (p *Pages) resources(r *http.Request) (view, error) {
	values := r.URL.Query()
	form := struct {
		Type, Contains string
		Types          []string
	}{Type: typeURLOf(values.Get("type")), Contains: values.Get("contains")}
	form.Types = p.types(form.Type)
	v := view{Title: "Resources", Nav: "/resources", Form: &section{"resource-form", form}}
	if form.Type == "" {
		return v, nil
	}
	found, err := p.cfg.Fleet.Resources(admin.ResourceQuery{
		Type: form.Type, Contains: form.Contains, Page: admin.Page{Limit: pageSize, After: values.Get("after")},
	})
	if err != nil {
		return view{}, err
	}
	v.Title = short(form.Type)
	v.Sections = []section{{"resources", struct {
		admin.Resources
		NextPage string
	}{found, nextPage(r, found.Next)}}}
	return v, nil
}

// maxHolders is the maximum number of subscribed clients on the page of a resource.
const maxHolders = 100

// resource returns the page of one resource.
func (p *Pages) resource(r *http.Request) (view, error) {
	values := r.URL.Query()
	found, err := p.cfg.Fleet.Resource(admin.ResourceChoice{
		Type: typeURLOf(values.Get("type")), Name: values.Get("name"), Group: values.Get("group"),
		YAML: true, Limit: maxHolders,
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
		NoChanges  string // why Changes is empty
	}{ResourceDetail: found, Texts: make(map[string]string, len(found.Bodies)), Now: time.Now(), StateNames: states}
	history, err := p.cfg.Fleet.History(admin.HistoryChoice{
		Type: found.TypeURL, Name: found.Name, Group: values.Get("group"), Limit: maxChanges,
	})
	if err != nil {
		data.NoChanges = err.Error()
	}
	for _, c := range history.Changes {
		data.Changes = append(data.Changes, change{c, diffLines(c.Diff)})
	}
	for digest, body := range found.Bodies {
		var text string
		if err := json.Unmarshal(body, &text); err != nil {
			return view{}, fmt.Errorf("read YAML of %s: %w", found.Name, err)
		}
		data.Texts[digest] = text
	}
	return view{
		Title: found.Name, Nav: "/resources",
		Sections: []section{{"resource", data}, {"resource-body", data}, {"holders", data}, {"history", data}},
	}, nil
}

// maxChanges is the maximum number of changes on the page of a resource.
const maxChanges = 10

// A change is a change of a resource with the lines of its diff.
type change struct {
	admin.Change
	Lines []diffLine
}

// A diffLine is a line of a diff. Kind is its CSS class: added, removed, place for the position of the next lines, or
// empty.
type diffLine struct{ Kind, Text string }

// diffLines returns the lines of a unified diff.
func diffLines(diff string) (lines []diffLine) {
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
