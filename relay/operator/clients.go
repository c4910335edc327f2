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

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"

	codepb "google.golang.org/genproto/googleapis/rpc/code"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/tier"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
)

// A place is the position of a client in a sorted list.
type place struct {
	lagSince int64 // time of the oldest change without an ACK, in nanoseconds from lagEpoch; MaxInt64 without one
	number   uint64
}

// lagEpoch is the zero time of places. Because it has a monotonic clock reading, setting the clock between two pages
// does not change the order.
var lagEpoch = time.Now()

// compare orders places by lag, the longest first, and then by number.
func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.lagSince, o.lagSince), cmp.Compare(p.number, o.number))
}

// parsePlace parses the place after which a page begins. The empty text is the beginning of the list.
func parsePlace(text string) (p place, err error) {
	if text == "" {
		return place{lagSince: math.MinInt64}, nil
	}
	var trailing string
	if n, _ := fmt.Sscanf(text+"\n", "%d.%d%s", &p.lagSince, &p.number, &trailing); n != 2 {
		return p, badCursor(text)
	}
	return p, nil
}

// Clients implements admin.Fleet. It collects the places of all matching clients, sorts them, and then reads the
// details of the clients on the page only, and omits those that no longer match.
func (f *Fleet) Clients(q admin.ClientQuery) (admin.Clients, error) {
	after, err := parsePlace(q.After)
	if err != nil {
		return admin.Clients{}, err
	}
	out := admin.Clients{Relay: f.NodeID, Clients: []admin.Client{}}
	if q.NoTotals {
		f.addPage(&out, q, after)
		return out, nil
	}
	totals := make(typeTotals)
	var places []place
	for s := range f.matching(q, &out.Totals.Streams) {
		at := place{math.MaxInt64, s.Number}
		if since := addTotals(&out.Totals, &s); !since.IsZero() && q.Sort != admin.ByNumber {
			at.lagSince = int64(since.Sub(lagEpoch))
		}
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
			out.Next = fmt.Sprintf("%d.%d", last.lagSince, last.number)
		}
	}
	for _, at := range places {
		if s, open := f.Server.Client(at.number); open && matchesQuery(&s, q) { // its state may have changed
			out.Clients = append(out.Clients, clientOf(&s, q.Type))
		}
	}
	return out, nil
}

// addTotals counts a client. It returns the time of the oldest change that the client has not accepted; zero without
// one.
func addTotals(t *admin.ClientTotals, s *downstream.StreamStatus) time.Time {
	since, lag, rejecting := summarize(s)
	sync := syncOf(s)
	t.Matching++
	t.Lagging += toInt(!since.IsZero())
	t.LagSeconds = max(t.LagSeconds, lag.Seconds())
	t.Rejecting += toInt(rejecting)
	t.Stalled += toInt(!s.Stalled.IsZero())
	t.InSync += toInt(sync == admin.InSync)
	t.Unknown += toInt(sync == admin.Unknown)
	if s.Below != nil {
		if t.Below == nil {
			t.Below = new(admin.TierTotals)
		}
		t.Below.Relays++
		t.Below.Silent += toInt(!s.Below.Known)
		addCounts(&t.Below.TierCounts, &s.Below.All)
	}
	return since
}

// addPage adds the page of a query by number that begins after a place, without the totals. It reads no client before
// and none after the page.
func (f *Fleet) addPage(out *admin.Clients, q admin.ClientQuery, after place) {
	out.Types = []admin.TypeTotals{}
	last := place{math.MaxInt64, 0}
	for s := range f.Server.ClientsAfter(after.number) {
		if !matchesQuery(&s, q) {
			continue
		}
		if len(out.Clients) >= q.Limit {
			if q.Limit > 0 {
				out.Next = fmt.Sprintf("%d.%d", last.lagSince, last.number)
			}
			return
		}
		last.number = s.Number
		out.Clients = append(out.Clients, clientOf(&s, q.Type))
	}
}

// matching yields the clients that a query selects, with only the selected types. It adds the number of all streams to
// streams.
func (f *Fleet) matching(q admin.ClientQuery, streams *int) iter.Seq[downstream.StreamStatus] {
	return func(yield func(downstream.StreamStatus) bool) {
		for s := range f.Server.Clients() {
			*streams++
			if matchesQuery(&s, q) && !yield(s) {
				return
			}
		}
	}
}

// matchesQuery reports whether a query selects a client. It removes the types from s that the query does not select.
func matchesQuery(s *downstream.StreamStatus, q admin.ClientQuery) bool {
	if q.Group != "" && !nodegroup.Is(q.Group, s.Group) || q.Stalled && s.Stalled.IsZero() || !matchesNode(s, q) {
		return false
	}
	if q.Type != "" && !retainType(s, q.Type) {
		return false
	}
	if q.Sync != "" && syncOf(s) != q.Sync {
		return false
	}
	_, _, rejecting := summarize(s)
	return rejecting || !q.Rejected
}

// matchesNode reports whether a query selects the Node of a client, and whether it is a relay.
func matchesNode(s *downstream.StreamStatus, q admin.ClientQuery) bool {
	if q.Relays && s.Below == nil || q.ID != "" && s.NodeID() != q.ID || q.Node != "" && !strings.Contains(s.NodeID(), q.Node) {
		return false
	}
	n := nodeFor(s, q)
	return (q.Cluster == "" || n.GetCluster() == q.Cluster) && (q.Zone == "" || n.GetLocality().GetZone() == q.Zone)
}

// nodeFor returns the Node of a client if a query needs it, since it has to be decoded; nil otherwise.
func nodeFor(s *downstream.StreamStatus, q admin.ClientQuery) *corepb.Node {
	if q.Cluster == "" && q.Zone == "" {
		return nil
	}
	return s.Node()
}

// syncOf returns the state of a client, see [admin.Client.Sync].
func syncOf(s *downstream.StreamStatus) string {
	worst := downstream.Unknown
	for i := range s.Types {
		if sync := s.Types[i].Sync; i == 0 || tier.Worst(worst, sync) != worst {
			worst = sync
		}
	}
	if s.Below != nil {
		worst = tier.Worst(worst, s.Below.All.Sync())
	}
	if worst != downstream.Rejecting && !s.Stalled.IsZero() {
		return admin.Stalled
	}
	return string(worst)
}

// retainType removes all types but one, also from what a relay has reported. It reports whether the client subscribes to that
// type, or is a relay with clients that do.
func retainType(s *downstream.StreamStatus, typeURL string) bool {
	s.Types = slices.DeleteFunc(s.Types, func(t downstream.TypeStatus) bool { return t.TypeURL != typeURL })
	if s.Below == nil {
		return len(s.Types) > 0
	}
	below := *s.Below
	below.All = below.Of(typeURL)
	s.Below = &below
	return len(s.Types)+below.All.Clients() > 0
}

// summarize returns the time of the oldest change of any type that a client has not accepted, and its age; zero without
// one. rejecting reports whether a NACK still applies.
func summarize(s *downstream.StreamStatus) (since time.Time, lag time.Duration, rejecting bool) {
	for i := range s.Types {
		t := &s.Types[i]
		rejecting = rejecting || t.Rejected
		if !t.UnacceptedSince.IsZero() && (since.IsZero() || t.UnacceptedSince.Before(since)) {
			since, lag = t.UnacceptedSince, t.Lag
		}
	}
	return since, lag, rejecting
}

// toInt returns 1 for true and 0 for false.
func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Totals counts clients by group and type. The result is sorted by group, and by type in the order of sending.
func Totals(clients iter.Seq[downstream.StreamStatus]) []admin.TypeTotals {
	totals := make(typeTotals)
	for s := range clients {
		totals.add(&s)
	}
	return totals.sorted()
}

// typeTotals count clients by group and type URL.
type typeTotals map[[2]string]*admin.TypeTotals

// add counts a client for each of its types.
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
		sum.Lagging += toInt(!typ.UnacceptedSince.IsZero())
		sum.Rejecting += toInt(typ.Rejected)
		sum.LagSeconds = max(sum.LagSeconds, typ.Lag.Seconds())
		if s.Below != nil {
			if sum.Below == nil {
				sum.Below = new(admin.TierCounts)
			}
			of := s.Below.Of(typ.TypeURL)
			addCounts(sum.Below, &of)
		}
	}
}

// addCounts adds the counts of what a relay has reported.
func addCounts(to *admin.TierCounts, c *tier.Counts) {
	to.Clients += c.Clients()
	to.InSync += c.InSync
	to.Behind += c.Behind
	to.Rejecting += c.Rejecting
	to.Unknown += c.Unknown
	to.Pending += c.Pending
}

// belowOf returns what a relay has reported for the admin API; nil if the client is no relay.
func belowOf(s *downstream.StreamStatus) *admin.Below {
	if s.Below == nil {
		return nil
	}
	b := &admin.Below{Known: s.Below.Known, At: s.Below.At, Worst: []admin.TierClient{}}
	addCounts(&b.TierCounts, &s.Below.All)
	for _, c := range s.Below.All.Worst {
		short, _ := schema.ShortName(c.TypeURL)
		b.Worst = append(b.Worst, admin.TierClient{
			NodeID: cmp.Or(c.Node, s.NodeID()), Via: append([]string{}, c.Via...), TypeURL: c.TypeURL, Name: short,
			Sync: string(c.Sync), LagSeconds: c.Lag.Seconds(), Detail: c.Detail,
		})
	}
	return b
}

// sorted returns the sums by group, and by type in the order of sending.
func (t typeTotals) sorted() []admin.TypeTotals {
	out := []admin.TypeTotals{}
	for _, sum := range t {
		out = append(out, *sum)
	}
	slices.SortFunc(out, func(a, b admin.TypeTotals) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), wire.CompareTypes(a.TypeURL, b.TypeURL))
	})
	return out
}

// clientOf returns a client for the admin API, with one type, or with all if typeURL is empty.
func clientOf(s *downstream.StreamStatus, typeURL string) admin.Client {
	if typeURL != "" {
		retainType(s, typeURL)
	}
	n := s.Node()
	_, lag, rejecting := summarize(s)
	c := admin.Client{
		Number: s.Number, NodeID: n.GetId(), Cluster: n.GetCluster(), Group: s.Group, GroupName: nodegroup.Name(s.Group),
		Address: s.Address, Identity: s.Identity(), Variant: "sotw", TypeURL: s.TypeURL,
		Began: s.Began, SentBytes: s.Sent, UnreadBytes: s.Unread, StalledSince: s.Stalled,
		Sync: syncOf(s), Below: belowOf(s), LagSeconds: lag.Seconds(), Rejecting: rejecting, Types: []admin.ClientType{},
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
		t := clientType(&s.Types[i])
		if s.Below != nil {
			of := s.Below.Of(t.TypeURL)
			t.Below = new(admin.TierCounts)
			addCounts(t.Below, &of)
		}
		c.Types = append(c.Types, t)
	}
	return c
}

// clientType returns the state of a subscription for the admin API.
func clientType(t *downstream.TypeStatus) admin.ClientType {
	short, _ := schema.ShortName(t.TypeURL)
	return admin.ClientType{
		TypeURL: t.TypeURL, Name: short, Wildcard: t.Wildcard, Names: t.Names, Globs: t.Globs, Sync: string(t.Sync), State: t.State,
		Version: t.Version, Nonce: t.Nonce, SentAt: t.SentAt, Pending: t.Pending,
		Accepted: t.Accepted, AcceptedAt: t.AcceptedAt, LagSeconds: t.Lag.Seconds(),
		Rejecting: t.Rejected, Rejection: rejectionOf(t.Rejection),
	}
}

// rejectionOf returns a NACK for the admin API; nil for nil.
func rejectionOf(r *downstream.Rejection) *admin.Rejection {
	if r == nil {
		return nil
	}
	return &admin.Rejection{
		At: r.At, Version: r.Version, Nonce: r.Nonce, Code: codepb.Code(r.Code).String(), Detail: r.Detail,
	}
}

// Client implements admin.Fleet.
func (f *Fleet) Client(number uint64, q admin.ClientResourceQuery) (admin.ClientDetail, error) {
	s, open := f.Server.Client(number)
	if !open {
		err := fmt.Errorf("there is no client %d: its stream has ended or never existed", number)
		return admin.ClientDetail{}, admin.Refuse(http.StatusNotFound, err)
	}
	d := admin.ClientDetail{Client: clientOf(&s, ""), States: make(map[string]int), Resources: []admin.ClientResource{}}
	if n := s.Node(); n != nil {
		d.Node, _ = protojson.Marshal(n) // cannot fail: the Node was decoded
	}
	var found []downstream.ResourceStatus
	for _, r := range f.Server.Resources(number) {
		if state := r.State.String(); q.Type == "" || q.Type == r.TypeURL {
			d.States[state]++
			if q.State == "" || q.State == state || q.State == admin.NotAccepted && r.State != downstream.Accepted {
				found = append(found, r)
			}
		}
	}
	page, next, err := pageOf(found, q.Page, func(r downstream.ResourceStatus) string {
		return fmt.Sprintf("%03d%s\x00%s", wire.Rank(r.TypeURL), r.TypeURL, r.Entry.Name)
	})
	for i := range page {
		d.Resources = append(d.Resources, f.clientResource(&page[i], s.View))
	}
	d.Next = next
	return d, err
}

// clientResource returns the state of a resource at a client for the admin API. view is that of the client.
func (f *Fleet) clientResource(r *downstream.ResourceStatus, view *cache.View) admin.ClientResource {
	out := admin.ClientResource{
		TypeURL: r.TypeURL, Name: r.Entry.Name.String(), State: r.State.String(), Rejection: rejectionOf(r.Rejection),
	}
	if r.Entry.Present() {
		out.Version = r.Entry.Resource.Version
	}
	out.Sent, out.Accepted = f.versionOf(r.SentVersion, &out, view), f.versionOf(r.AcceptedVersion, &out, view)
	return out
}

// versionOf returns a version of a resource at a client for the admin API. It looks for a version that does not follow
// from the client's positions in the history of the view.
func (f *Fleet) versionOf(h downstream.Holding, of *admin.ClientResource, view *cache.View) admin.ClientVersion {
	if h.Known {
		return admin.ClientVersion{Known: true, Version: h.Version}
	}
	if f.Journal == nil || view == nil || h.At == 0 {
		return admin.ClientVersion{}
	}
	version, known := f.Journal.VersionAt(view, of.TypeURL, of.Name, h.At)
	return admin.ClientVersion{Known: known, Version: version}
}
