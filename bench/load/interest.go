package load

import (
	"fmt"

	"github.com/xdstender/tender/bench/content"
)

// An Interest is the subscription of each client to one type: the wildcard, or Count
// names out of Of existing resources. Clients subscribe to different names, and each
// name has the same number of subscribers.
type Interest struct {
	TypeURL  string
	Wildcard bool
	Count    int
	Of       int
}

// extra reports whether a resource is outside the counted ones. A server may add and remove such resources at any time.
func (i Interest) extra(index int) bool { return i.Wildcard && index >= i.Of }

// A holding is the subscription of one client to a type, with its received changes. The
// resource at place i has the index (start + i·step) modulo Of. Adjacent names of a
// subscription are thus not adjacent resources, and places are computed, not looked up.
type holding struct {
	Interest
	start, step, inverse int

	known  []uint32 // by place: the latest received change, plus one; 0 if none was received
	have   int      // number of elements of known that are not 0
	extras bool     // whether resources were received for which extra is true
}

// newHolding returns the holding of client c, out of all clients.
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

// inverseOf returns the multiplicative inverse of a modulo n; ok is false if there is none.
func inverseOf(a, n int) (int, bool) {
	r0, r1, t0, t1 := n, a, 0, 1
	for r1 != 0 {
		q := r0 / r1
		r0, r1 = r1, r0-q*r1
		t0, t1 = t1, t0-q*t1
	}
	return (t0%n + n) % n, r0 == 1
}

// index returns the index of the resource at a place of the subscription.
func (h *holding) index(place int) int { return (h.start + place*h.step) % h.Of }

// place returns the place of a resource in the subscription, or -1 if the client does not subscribe to it.
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

// names returns the names of the subscription in Delta, where the wildcard is "*".
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

// sotwNames returns the names of the subscription in SotW, where no names mean the wildcard.
func (h *holding) sotwNames() []string {
	if h.Wildcard {
		return nil
	}
	return h.names()
}

// An outcome classifies a received resource.
type outcome int

const (
	unwanted outcome = iota // the client does not subscribe to it
	again                   // the client already has this change or a later one
	first                   // the client receives the resource for the first time
	newer                   // the client has an older change
)

// receive records a resource and classifies it.
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

// differences counts the resources of the subscription whose latest change the client
// has not received. latest is by index.
func (h *holding) differences(latest []content.Stamp) (n int) {
	for p, known := range h.known {
		if known != latest[h.index(p)].Change+1 {
			n++
		}
	}
	return n
}
