package operator

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	codepb "google.golang.org/genproto/googleapis/rpc/code"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
)

// A place is the position of a client in a sorted list.
type place struct {
	lacks  int64 // since when it lacks something, in nanoseconds from placesFrom; the end of time if nothing
	number uint64
}

// placesFrom is what times in places are counted from: a clock that is set between two pages leaves the order as it is.
var placesFrom = time.Now()

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.lacks, o.lacks), cmp.Compare(p.number, o.number))
}

// placeAfter reads the place after which a page begins.
func placeAfter(text string) (p place, err error) {
	if text == "" {
		return place{lacks: math.MinInt64}, nil
	}
	var rest string
	if n, _ := fmt.Sscanf(text+"\n", "%d.%d%s", &p.lacks, &p.number, &rest); n != 2 {
		return p, badCursor(text)
	}
	return p, nil
}

// Clients implements admin.Fleet. It looks at every client, and keeps a place for each that
// matches; what a page shows of one is looked up when the places are sorted.
func (f *Fleet) Clients(q admin.ClientQuery) (admin.Clients, error) {
	after, err := placeAfter(q.After)
	if err != nil {
		return admin.Clients{}, err
	}
	out := admin.Clients{Clients: []admin.Client{}}
	totals := make(typeTotals)
	var places []place
	for s := range f.matching(q, &out.Totals.Streams) {
		at := place{math.MaxInt64, s.Number}
		lacks, lag, refusing := sumOf(&s)
		if !lacks.IsZero() {
			out.Totals.Lagging++
			out.Totals.LagSeconds = max(out.Totals.LagSeconds, lag.Seconds())
			if q.Sort != admin.ByNumber {
				at.lacks = int64(lacks.Sub(placesFrom))
			}
		}
		out.Totals.Matching++
		out.Totals.Refusing += count(refusing)
		out.Totals.Stalled += count(!s.Stalled.IsZero())
		totals.add(&s)
		if at.compare(after) > 0 {
			places = append(places, at)
		}
	}
	out.Types = totals.sorted()
	slices.SortFunc(places, place.compare)
	if len(places) > q.Limit {
		places = places[:q.Limit]
		if q.Limit > 0 {
			last := places[q.Limit-1]
			out.Next = fmt.Sprintf("%d.%d", last.lacks, last.number)
		}
	}
	for _, at := range places {
		if s, open := f.Server.Client(at.number); open {
			out.Clients = append(out.Clients, clientOf(&s, q.Type))
		}
	}
	return out, nil
}

// matching yields the clients that a query is about, with what it asks of them alone, and
// counts all that there are.
func (f *Fleet) matching(q admin.ClientQuery, streams *int) iter.Seq[downstream.StreamStatus] {
	return func(yield func(downstream.StreamStatus) bool) {
		for s := range f.Server.Clients() {
			*streams++
			if matches(&s, q) && !yield(s) {
				return
			}
		}
	}
}

// matches reports whether a client matches a query. It removes the types from s that the query does not ask for.
func matches(s *downstream.StreamStatus, q admin.ClientQuery) bool {
	if q.Group != "" && s.Group != q.Group || q.Stalled && s.Stalled.IsZero() || q.Node != "" && !strings.Contains(s.NodeID(), q.Node) {
		return false
	}
	if q.Type != "" {
		keepType(s, q.Type)
		if len(s.Types) == 0 {
			return false
		}
	}
	_, _, refusing := sumOf(s)
	return refusing || !q.Refused
}

func keepType(s *downstream.StreamStatus, typeURL string) {
	s.Types = slices.DeleteFunc(s.Types, func(t downstream.TypeStatus) bool { return t.TypeURL != typeURL })
}

// sumOf returns since when and for how long a client lacks something of any type, and whether
// it refuses something.
func sumOf(s *downstream.StreamStatus) (lacks time.Time, lag time.Duration, refusing bool) {
	for i := range s.Types {
		t := &s.Types[i]
		refusing = refusing || t.Refused
		if !t.UnacceptedSince.IsZero() && (lacks.IsZero() || t.UnacceptedSince.Before(lacks)) {
			lacks, lag = t.UnacceptedSince, t.Lag
		}
	}
	return lacks, lag, refusing
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Totals counts clients by group, and by type in the order of sending.
func Totals(clients iter.Seq[downstream.StreamStatus]) []admin.TypeTotals {
	totals := make(typeTotals)
	for s := range clients {
		totals.add(&s)
	}
	return totals.sorted()
}

// typeTotals count clients by group and type URL.
type typeTotals map[[2]string]*admin.TypeTotals

// add counts a client.
func (t typeTotals) add(s *downstream.StreamStatus) {
	for i := range s.Types {
		typ := &s.Types[i]
		key := [2]string{s.Group, typ.TypeURL}
		sum := t[key]
		if sum == nil {
			short, _ := schema.ShortName(typ.TypeURL)
			sum = &admin.TypeTotals{Group: s.Group, TypeURL: typ.TypeURL, Name: short}
			t[key] = sum
		}
		sum.Clients++
		sum.Lagging += count(!typ.UnacceptedSince.IsZero())
		sum.Refusing += count(typ.Refused)
		sum.LagSeconds = max(sum.LagSeconds, typ.Lag.Seconds())
	}
}

// sorted returns the sums by group, and by type in the order of sending.
func (t typeTotals) sorted() []admin.TypeTotals {
	out := []admin.TypeTotals{}
	for _, sum := range t {
		out = append(out, *sum)
	}
	slices.SortFunc(out, func(a, b admin.TypeTotals) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), compareTypes(a.TypeURL, b.TypeURL))
	})
	return out
}

// compareTypes orders types as they are sent.
func compareTypes(a, b string) int {
	return cmp.Or(cmp.Compare(wire.Rank(a), wire.Rank(b)), cmp.Compare(a, b))
}

// clientOf returns a client as operators see it, with one type or with all.
func clientOf(s *downstream.StreamStatus, only string) admin.Client {
	if only != "" {
		keepType(s, only)
	}
	n := s.Node()
	_, lag, refusing := sumOf(s)
	c := admin.Client{
		Number: s.Number, NodeID: n.GetId(), Cluster: n.GetCluster(), Group: s.Group, Address: s.Address, Identity: s.Identity(),
		Variant: "sotw", TypeURL: s.TypeURL, Began: s.Began, SentBytes: s.Sent, UnreadBytes: s.Unread, StalledSince: s.Stalled,
		LagSeconds: lag.Seconds(), Refusing: refusing, Types: []admin.ClientType{},
	}
	if s.Delta {
		c.Variant = "delta"
	}
	if l := n.GetLocality(); l != nil {
		c.Locality = strings.Join([]string{l.GetRegion(), l.GetZone(), l.GetSubZone()}, "/")
	}
	if c.UserAgent = n.GetUserAgentName(); n.GetUserAgentVersion() != "" {
		c.UserAgent += "/" + n.GetUserAgentVersion()
	} else if v := n.GetUserAgentBuildVersion().GetVersion(); v != nil {
		c.UserAgent += fmt.Sprintf("/%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
	}
	for i := range s.Types {
		c.Types = append(c.Types, clientType(&s.Types[i]))
	}
	return c
}

func clientType(t *downstream.TypeStatus) admin.ClientType {
	short, _ := schema.ShortName(t.TypeURL)
	return admin.ClientType{
		TypeURL: t.TypeURL, Name: short, Wildcard: t.Wildcard, Names: t.Names, Globs: t.Globs, State: t.State,
		Version: t.Version, Nonce: t.Nonce, SentAt: t.SentAt, Pending: t.Pending,
		Accepted: t.Accepted, AcceptedAt: t.AcceptedAt, LagSeconds: t.Lag.Seconds(),
		Refusing: t.Refused, Refusal: refusalOf(t.Refusal),
	}
}

// refusalOf returns a NACK as operators see it.
func refusalOf(r *downstream.Refusal) *admin.Refusal {
	if r == nil {
		return nil
	}
	return &admin.Refusal{At: r.At, Version: r.Version, Nonce: r.Nonce, Code: codepb.Code(r.Code).String(), Detail: r.Detail}
}

// Client implements admin.Fleet.
func (f *Fleet) Client(number uint64, q admin.ClientResourceQuery) (admin.ClientDetail, error) {
	s, open := f.Server.Client(number)
	if !open {
		return admin.ClientDetail{}, admin.Refuse(http.StatusNotFound, fmt.Errorf("there is no client %d: its stream has ended, or there was none", number))
	}
	d := admin.ClientDetail{Client: clientOf(&s, ""), States: make(map[string]int), Resources: []admin.ClientResource{}}
	if n := s.Node(); n != nil {
		d.Node, _ = protojson.Marshal(n) // which it was read from
	}
	var found []admin.ClientResource
	for _, r := range f.Server.Resources(number) {
		if state := r.State.String(); q.Type == "" || q.Type == r.TypeURL {
			d.States[state]++
			if q.State == "" || q.State == state {
				found = append(found, clientResource(&r))
			}
		}
	}
	var err error
	d.Resources, d.Next, err = pageOf(found, q.Page, func(r admin.ClientResource) string {
		return fmt.Sprintf("%03d%s\x00%s", wire.Rank(r.TypeURL), r.TypeURL, r.Name)
	})
	return d, err
}

func clientResource(r *downstream.ResourceStatus) admin.ClientResource {
	out := admin.ClientResource{TypeURL: r.TypeURL, Name: r.Entry.Name.String(), State: r.State.String(), Refusal: refusalOf(r.Refusal)}
	if r.Entry.Present() {
		out.Version = r.Entry.Resource.Version
	}
	return out
}
