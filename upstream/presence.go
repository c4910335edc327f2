package upstream

import (
	"sync/atomic"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// A Presence is whom an origin takes the relay for: a node, which may become another one
// while streams are open. Its methods may be called from any goroutine.
type Presence struct{ now atomic.Pointer[presented] }

type presented struct {
	node *corepb.Node
	over chan struct{} // closed once streams must not go on with the node
}

// Present returns a presence with a node, which must not be altered.
func Present(node *corepb.Node) *Presence {
	p := new(Presence)
	p.now.Store(&presented{node: node, over: make(chan struct{})})
	return p
}

// Node returns the node that streams begin with now.
func (p *Presence) Node() *corepb.Node { return p.now.Load().node }

// Change has the streams that are opened from now on begin with another node. Calls must
// not overlap, nor with those of Announce.
func (p *Presence) Change(node *corepb.Node) {
	p.now.Store(&presented{node: node, over: p.now.Load().over})
}

// Announce is Change, and has those that are open opened anew, since a stream can say its
// node only once. What is held stays and is resumed.
func (p *Presence) Announce(node *corepb.Node) {
	last := p.now.Swap(&presented{node: node, over: make(chan struct{})})
	close(last.over)
}
