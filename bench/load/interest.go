package load

import (
	"fmt"

	"github.com/xdstender/tender/bench/content"
)

// An Interest is what each client subscribes to of one type: all by the wildcard,
// or Count names of the Of that there are. Clients want different names, and each
// name is wanted by as many clients as any other.
type Interest struct {
	TypeURL  string
	Wildcard bool
	Count    int
	Of       int
}

// extra reports whether a resource is beyond the Of that are counted: such resources come and go.
func (i Interest) extra(index int) bool { return i.Wildcard && index >= i.Of }

// A holding is what one client wants and has of a type. Its names are
// start + i·step modulo of, so neighbours in a subscription are no neighbours in
// the catalogue, and the place of a name is computed rather than looked up.
type holding struct {
	Interest
	start, step, inverse int

	known  []uint32 // by place: the number of the latest change, plus one; 0 if it was never seen
	have   int      // how many of known are not 0
	extras bool     // resources beyond the Of have come
}

// newHolding returns what client c of all wants.
func (i Interest) newHolding(c, all int) (*holding, error) {
	if i.Wildcard {
		i.Count = i.Of
	}
	if i.Count < 1 || i.Count > i.Of || c < 0 || c >= all {
		return nil, fmt.Errorf("client %d of %d wants %d of %d resources of %s", c, all, i.Count, i.Of, i.TypeURL)
	}
	h := &holding{Interest: i, start: c * i.Of / all, step: 1, inverse: 1, known: make([]uint32, i.Count)}
	if i.Count == i.Of {
		h.start = 0
		return h, nil
	}
	for h.step = 199; ; h.step++ {
		if inverse, ok := inverseOf(h.step%i.Of, i.Of); ok {
			h.inverse = inverse
			return h, nil
		}
	}
}

// inverseOf returns the number that a must be multiplied with to be 1 modulo n.
func inverseOf(a, n int) (int, bool) {
	r0, r1, t0, t1 := n, a, 0, 1
	for r1 != 0 {
		q := r0 / r1
		r0, r1 = r1, r0-q*r1
		t0, t1 = t1, t0-q*t1
	}
	return (t0%n + n) % n, r0 == 1
}

// index returns the number of the resource at a place.
func (h *holding) index(place int) int { return (h.start + place*h.step) % h.Of }

// place returns where a resource is among what the client wants, or -1.
func (h *holding) place(index int) int {
	if index < 0 || index >= h.Of {
		return -1
	}
	p := (index - h.start + h.Of) % h.Of * h.inverse % h.Of
	if p >= h.Count {
		return -1
	}
	return p
}

// names returns the names of the subscription.
func (h *holding) names() []string {
	if h.Wildcard {
		return []string{"*"}
	}
	names := make([]string, h.Count)
	for p := range names {
		names[p] = content.Name(h.TypeURL, h.index(p))
	}
	return names
}

// sotwNames returns the names as a SotW client gives them: none is the wildcard.
func (h *holding) sotwNames() []string {
	if h.Wildcard {
		return nil
	}
	return h.names()
}

// What became of a resource that a client received.
type outcome int

const (
	unwanted outcome = iota // the client did not ask for it
	again                   // the client had it
	first                   // the client had no change of it
	newer                   // the client had an older change
)

// receive notes a resource.
func (h *holding) receive(s content.Stamp) outcome {
	p := h.place(s.Index)
	switch {
	case p < 0:
		return unwanted
	case h.known[p] == 0:
		h.known[p] = s.Change + 1
		h.have++
		return first
	case h.known[p] >= s.Change+1:
		return again
	default:
		h.known[p] = s.Change + 1
		return newer
	}
}

// differences counts the resources of which the client does not have the latest
// change.
func (h *holding) differences(latest []content.Stamp) (n int) {
	for p, known := range h.known {
		if known != latest[h.index(p)].Change+1 {
			n++
		}
	}
	return n
}
