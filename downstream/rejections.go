package downstream

import (
	"cmp"
	"slices"
	"strings"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/subscription"
)

// A RejectedResource is a resource whose current content clients of a node group reject.
type RejectedResource struct {
	Group     string
	TypeURL   string
	Name      string         // under which clients subscribe to it
	Resource  *wire.Resource // with the content that they reject
	Rejecting int            // streams that reject it
	Clients   int            // streams that subscribe to it, and are served this content
	First     *Rejection     // the earliest of their NACKs
}

// Limits on the resources of a type and a node group that RejectedResources returns, and on those that it considers of one
// stream and type.
const (
	maxRejected   = 16
	maxConsidered = 1000
)

// RejectedResources returns the resources that clients reject now, by node group, type and name. It reads each stream like
// Clients does.
//
// A NACK rejects a response, and the relay knows only what the response had. So if the error of a client names some of
// these resources, the client rejects only these.
func (s *Server) RejectedResources() (all []RejectedResource) {
	streams, found := s.openStreams(), make(rejections)
	for _, stream := range streams {
		stream.findRejected(found)
	}
	if len(found) == 0 {
		return nil
	}
	for _, stream := range streams {
		stream.countRejected(found)
	}
	for _, of := range found {
		for _, r := range of.chosen() {
			if r.Rejecting > 0 { // otherwise the client has left or accepted meanwhile
				all = append(all, *r)
			}
		}
	}
	slices.SortFunc(all, func(a, b RejectedResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.TypeURL, b.TypeURL), cmp.Compare(a.Name, b.Name),
			slices.Compare(a.Resource.Digest[:], b.Resource.Digest[:]))
	})
	return all
}

// rejections are the resources that clients reject, by node group and type.
type rejections map[groupType]*typeRejections

type groupType struct{ group, typeURL string }

// A rejectedContent is a resource with its content. Cohorts of a node group may be served different contents.
type rejectedContent struct {
	name   string
	digest wire.Digest
}

// A typeRejections has resources that clients of a node group reject: those that the error of a client names, and
// others of rejected responses.
type typeRejections struct {
	named, others map[rejectedContent]*RejectedResource
}

// chosen returns the resources that the errors of clients name, or if there are none, all.
func (t *typeRejections) chosen() map[rejectedContent]*RejectedResource {
	if len(t.named) > 0 {
		return t.named
	}
	return t.others
}

// add adds a resource that a client of a group rejects.
func (all rejections) add(group string, r *subscription.ResourceStatus) {
	of := all[groupType{group, r.TypeURL}]
	if of == nil {
		of = &typeRejections{make(map[rejectedContent]*RejectedResource), make(map[rejectedContent]*RejectedResource)}
		all[groupType{group, r.TypeURL}] = of
	}
	name, list := r.Entry.Name.String(), of.others
	if quotes(r.Rejection.Detail, name) {
		list = of.named
	}
	if content := (rejectedContent{name, r.Entry.Resource.Digest}); list[content] == nil && len(list) < maxRejected {
		list[content] = &RejectedResource{Group: group, TypeURL: r.TypeURL, Name: name, Resource: r.Entry.Resource}
	}
}

// rejects reports whether a client with a rejection rejects a resource: its error names the resource, or none of them.
func (t *typeRejections) rejects(r *Rejection, name string) bool {
	if quotes(r.Detail, name) {
		return true
	}
	for other := range t.named {
		if quotes(r.Detail, other.name) {
			return false
		}
	}
	return true
}

// quotes reports whether a text contains a name, and not only as a part of a longer name.
func quotes(text, name string) bool {
	if name == "" {
		return false
	}
	for at := 0; ; {
		i := strings.Index(text[at:], name)
		if i < 0 {
			return false
		}
		from, to := at+i, at+i+len(name)
		if (from == 0 || !inName(text[from-1])) && (to == len(text) || !inName(text[to])) {
			return true
		}
		at = from + 1
	}
}

// inName reports whether a byte beside a name makes it a part of a longer name. Punctuation may end a sentence.
func inName(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '-' || b == '/'
}

// findRejected adds the resources that the client rejects.
func (s *stream) findRejected(all rejections) {
	s.lock.peek()
	defer s.lock.release()
	if s.ended || s.watch == nil {
		return
	}
	g := s.group.View.Generation()
	for _, sub := range s.subs {
		considered := 0
		for r := range sub.At(g).Rejected {
			all.add(s.group.Key, &r)
			if considered++; considered == maxConsidered {
				break
			}
		}
	}
}

// countRejected counts the client for the resources that it subscribes to.
func (s *stream) countRejected(all rejections) {
	s.lock.peek()
	defer s.lock.release()
	if s.ended || s.watch == nil {
		return
	}
	g := s.group.View.Generation()
	for _, sub := range s.subs {
		of := all[groupType{s.group.Key, sub.TypeURL}]
		if of == nil {
			continue
		}
		for content, rejection := range of.chosen() {
			r, subscribed := sub.At(g).Resource(content.name)
			if subscribed && r.Entry.Present() && r.Entry.Resource.Digest == content.digest {
				rejection.count(r.Rejection, r.State == Rejected && of.rejects(r.Rejection, content.name))
			}
		}
	}
}

// count counts a client, and its rejection if it rejects the resource.
func (r *RejectedResource) count(rejection *Rejection, rejects bool) {
	if r.Clients++; !rejects {
		return
	}
	if r.Rejecting++; r.First == nil || rejection.At.Before(r.First.At) {
		r.First = rejection
	}
}
