package page

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/humanize"
)

// Limits of the picture. A large relay shows the most urgent views, and the types of each with the most clients.
const (
	maxPictureViews = 12
	maxPictureTypes = 8
)

// Positions and sizes in the picture. It is 1,460 units wide, so a unit is about a pixel on a wide screen.
const (
	boxHeight = 40
	rowHeight = 50
	viewGap   = 12
	originX   = 0
	viewX     = 300
	typeX     = 850
	clientX   = 1220
	originW   = 210
	viewW     = 440
	typeW     = 220
	clientW   = 236
)

// Maximum lengths of names in boxes, in characters.
const (
	originName = 23
	viewName   = 42
	typeName   = 24
)

// A fanout is a picture of the distribution: origins, views, types and clients, from left to right. Narrow screens show
// the same as nested lists.
type fanout struct {
	Width, Height int
	Boxes         []box
	Links         []link
	Tree          []branch
	Omitted       int // number of views that are not shown
}

// A branch is a box of the picture as an item of a list.
type branch struct {
	Class, Name, Note, Href string
	Children                []branch
}

// branchOf returns the item of a box, with the full name.
func branchOf(b box, name string) branch {
	return branch{Class: b.Class, Name: name, Note: b.Note, Href: b.Href}
}

// A box is an origin, a view, a type or the clients of a type.
type box struct {
	X, Y, W, H  int
	Class       string // origin, view, type or clients, followed by its problem: stale, rejected or frozen
	Name, Note  string
	Title, Href string // the full name and description, and the page with details
}

// A link connects two boxes. Its width grows with the rate of responses.
type link struct {
	Path, Class, Width string
}

// TextX is the position at which the text of a box begins.
func (b box) TextX() int { return b.X + 8 }

// NameY is the position of the first line of a box.
func (b box) NameY() int { return b.Y + 17 }

// NoteY is the position of the second line of a box.
func (b box) NoteY() int { return b.Y + 33 }

// newFanout returns the picture of a relay.
func newFanout(s *admin.Status, totals []admin.TypeTotals, rates map[GroupType]Rates, now time.Time) fanout {
	f := fanout{Width: clientX + clientW + 4}
	clients := make(map[GroupType]admin.TypeTotals, len(totals))
	for _, t := range totals {
		clients[GroupType{t.Group, t.TypeURL}] = t
	}
	views, y, minY := f.chooseViews(s), 0, 0 // minY is below the last origin
	for i := range s.Origins {
		o := originBox(&s.Origins[i], now)
		item := branchOf(o, s.Origins[i].Name)
		var flows []flow
		for j := range views {
			if v := &views[j]; v.Origin == s.Origins[i].Name {
				flows = append(flows, f.drawView(v, clients, rates, &y, now))
				item.Children = append(item.Children, flows[len(flows)-1].branch)
				y += viewGap
			}
		}
		if len(flows) > 0 {
			o.Y = (flows[0].to.Y + flows[len(flows)-1].to.Y) / 2
		}
		o.Y = max(o.Y, minY)
		minY = o.Y + rowHeight
		y = max(y, minY)
		f.Boxes, f.Tree = append(f.Boxes, o), append(f.Tree, item)
		for _, v := range flows {
			f.drawLink(o, v)
		}
	}
	f.Height = y + 4
	return f
}

// chooseViews returns the views of the picture: first the views with a problem, then the views with the most clients.
func (f *fanout) chooseViews(s *admin.Status) []admin.View {
	unused := func(v admin.View) bool { return len(v.Types) == 0 && v.Streams == 0 }
	views := slices.DeleteFunc(slices.Clone(s.Views), unused)
	slices.SortStableFunc(views, func(a, b admin.View) int {
		return cmp.Or(urgency(&b)-urgency(&a), cmp.Compare(b.Streams, a.Streams))
	})
	if f.Omitted = max(len(views)-maxPictureViews, 0); f.Omitted > 0 {
		views = views[:maxPictureViews]
	}
	return views
}

// urgency returns 1 for a view that needs attention, else 0.
func urgency(v *admin.View) int {
	if v.Stale || !v.FrozenAt.IsZero() {
		return 1
	}
	return 0
}

// A flow is a box, its item, its rate in responses per second, and the class of its problem; empty without one.
type flow struct {
	to      box
	branch  branch
	rate    float64
	problem string
}

// drawLink adds a link from a box to the box of a flow.
func (f *fanout) drawLink(from box, to flow) {
	x1, y1 := from.X+from.W, from.Y+from.H/2
	x2, y2 := to.to.X, to.to.Y+to.to.H/2
	middle := (x1 + x2) / 2
	f.Links = append(f.Links, link{
		Path:  fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x1, y1, middle, y1, middle, y2, x2, y2),
		Class: "link " + to.problem,
		Width: fmt.Sprintf("%.1f", 1.5+min(math.Log2(1+to.rate), 10)),
	})
}

// originBox returns the box of an origin, without its vertical position.
func originBox(o *admin.Origin, now time.Time) box {
	b := box{X: originX, W: originW, H: boxHeight, Class: "origin", Name: o.Name, Note: "connected"}
	var target string
	for _, t := range o.Targets {
		if t.Active {
			target, b.Note = t.Target, t.State
		}
	}
	switch {
	case o.Freeze != nil && o.Freeze.Rollback != nil:
		b.Class, b.Note = "origin frozen", "rolled back"
	case o.Frozen:
		b.Class, b.Note = "origin frozen", "frozen"
	case !o.Connected:
		b.Class, b.Note = "origin stale", "not connected"
	}
	b.Title = fmt.Sprintf("Origin %s, %s: %s for %s", o.Name, target, b.Note, ago(o.Since, now))
	if o.LastError != "" && !o.Connected {
		b.Title += "; " + o.LastError
	}
	b.Name = humanize.Cut(b.Name, originName)
	return b
}

// drawView adds a view at y, with its types and their clients. It advances y.
func (f *fanout) drawView(
	v *admin.View, clients map[GroupType]admin.TypeTotals, rates map[GroupType]Rates, y *int, now time.Time,
) flow {
	b := box{
		X: viewX, W: viewW, H: boxHeight, Class: "view", Name: humanize.Cut(v.Group, viewName),
		Note: plural(v.Streams, "client"), Href: clientsPath(v.Group, ""),
	}
	var problem string
	switch {
	case !v.FrozenAt.IsZero():
		problem = "frozen"
		b.Note = fmt.Sprintf("frozen for %s, %s pending", ago(v.FrozenAt, now), plural(v.Pending, "name"))
	case v.Stale:
		problem, b.Note = "stale", "stale for "+brief(v.StaleSeconds)
	}
	b.Class += " " + problem
	b.Title = fmt.Sprintf("View of %s for group %s: %s", v.Origin, v.Group, b.Note)
	types := slices.Clone(v.Types)
	slices.SortStableFunc(types, func(a, b admin.Type) int {
		return cmp.Compare(clients[GroupType{v.Group, b.TypeURL}].Clients, clients[GroupType{v.Group, a.TypeURL}].Clients)
	})
	top := *y
	var flows []flow
	var omitted []branch
	for i := range types[:min(len(types), maxPictureTypes)] {
		flows = append(flows, f.drawType(v, &types[i], clients, rates, *y, problem))
		*y += rowHeight
	}
	if n := len(types) - maxPictureTypes; n > 0 {
		more := box{X: typeX, Y: *y, W: typeW, H: boxHeight, Class: "type", Name: plural(n, "more type"), Note: "see below"}
		f.Boxes, omitted = append(f.Boxes, more), []branch{branchOf(more, more.Name)}
		*y += rowHeight
	}
	*y = max(*y, top+rowHeight)
	b.Y = top + (*y-top-rowHeight)/2
	f.Boxes = append(f.Boxes, b)
	out := flow{to: b, branch: branchOf(b, v.Group), problem: problem}
	for _, t := range flows {
		f.drawLink(b, t)
		out.rate += t.rate
		out.branch.Children = append(out.branch.Children, t.branch)
	}
	out.branch.Children = append(out.branch.Children, omitted...)
	return out
}

// drawType adds a type of a view at y, with its clients.
func (f *fanout) drawType(
	v *admin.View, t *admin.Type, clients map[GroupType]admin.TypeTotals, rates map[GroupType]Rates, y int, problem string,
) flow {
	key := GroupType{v.Group, t.TypeURL}
	total, rate := clients[key], rates[key]
	b := box{
		X: typeX, Y: y, W: typeW, H: boxHeight, Class: "type " + problem,
		Name: short(t.TypeURL), Note: plural(t.Entries, "resource"),
		Title: fmt.Sprintf("%s: %s, %s, %s", t.TypeURL, plural(t.Entries, "resource"), humanize.Bytes(t.Bytes), t.Phase),
		Href:  "/resources?" + url.Values{"type": {t.TypeURL}}.Encode(),
	}
	item := branchOf(b, b.Name)
	b.Name = humanize.Cut(b.Name, typeName)
	f.Boxes = append(f.Boxes, b)
	if total.Clients == 0 {
		return flow{to: b, branch: item, problem: problem}
	}
	c := box{
		X: clientX, Y: y, W: clientW, H: boxHeight, Class: "clients", Name: plural(total.Clients, "client"),
		Note: number(rate.Deliveries) + " per second", Href: clientsPath(v.Group, t.TypeURL),
	}
	out := flow{to: b, rate: rate.Deliveries, problem: problem}
	onward := flow{rate: rate.Deliveries, problem: problem}
	switch {
	case total.Rejecting > 0:
		c.Class, onward.problem = "clients rejected", "rejected"
		c.Note = fmt.Sprintf("%s reject%s", number(float64(total.Rejecting)), verbEnding(total.Rejecting))
		c.Href += "&rejected=true"
	case total.LagSeconds >= laggingSeconds:
		c.Note = fmt.Sprintf("%s lag%s, by up to %s",
			number(float64(total.Lagging)), verbEnding(total.Lagging), brief(total.LagSeconds))
	}
	c.Title = fmt.Sprintf("%s of %s: %s", plural(total.Clients, "client"), short(t.TypeURL), c.Note)
	onward.to = c
	f.Boxes = append(f.Boxes, c)
	f.drawLink(b, onward)
	item.Children = []branch{branchOf(c, c.Name)}
	out.branch = item
	return out
}

// clientsPath returns the path of the page that lists the clients of a group. An empty typeURL selects all types.
func clientsPath(group, typeURL string) string {
	q := url.Values{"group": {group}}
	if typeURL != "" {
		q.Set("type", typeURL)
	}
	return "/clients?" + q.Encode()
}
