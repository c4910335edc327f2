// Package ledger checks the responses to clients against the history of an origin, while resources change and faults
// occur.
//
// The package is not a stable API: programs that embed Tender use package relay.
package ledger

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// A Ledger records the history of an origin, or of several origins with equal content: the successive contents and
// removals of each resource. It decides whether a response to a client is legal while resources change and faults
// occur. All contents of a name must differ. Its methods may be called from any goroutine.
type Ledger struct {
	mu      sync.Mutex
	records map[string]map[string]*record // by type URL and name
	changes int                           // number of recorded contents and removals
	behind  bool                          // whether an origin may lag
	repeats bool                          // whether relays may repeat content that clients have
	staged  func(typeURL string) bool     // whether relays stage the changes of a type; nil if none
	frozen  bool                          // whether a relay may be frozen
}

// A record is the history of one resource. A generation is the number of a content or a removal.
type record struct {
	generation  int
	generations map[relaytest.Digest]int // generation by content
	now         relaytest.Digest
	present     bool
	removed     int               // generation of the last removal; 0 if there was none
	floor       int               // generation when an origin began to lag
	absent      bool              // whether it was absent when an origin began to lag
	reverted    int               // newest generation that a lagging origin may have sent again
	expires     map[int]time.Time // earliest expiry by generation, for contents with a TTL
}

// New returns an empty ledger.
func New() *Ledger { return &Ledger{records: make(map[string]map[string]*record)} }

// record returns the record of a resource, and creates it if necessary. The caller must hold the lock.
func (l *Ledger) record(typeURL, name string) *record {
	of := l.records[typeURL]
	if of == nil {
		of = make(map[string]*record)
		l.records[typeURL] = of
	}
	if of[name] == nil {
		of[name] = &record{generations: make(map[relaytest.Digest]int)}
	}
	return of[name]
}

// Put records messages, and then sets them in each Content.
func (l *Ledger) Put(to []*relaytest.Content, msgs ...proto.Message) {
	l.mu.Lock()
	for _, msg := range msgs {
		body := relaytest.Pack(msg)
		r := l.record(body.GetTypeUrl(), relaytest.NameOf(body))
		r.generation++
		r.now, r.present = relaytest.DigestOf(body), true
		r.generations[r.now] = r.generation
		l.changes++
	}
	l.mu.Unlock()
	for _, c := range to {
		c.Put(msgs...)
	}
}

// PutWithTTL records a resource with a TTL, and then sets it in each Content. Clients may lose it once the TTL has
// passed since it was last sent.
func (l *Ledger) PutWithTTL(to []*relaytest.Content, msg proto.Message, ttl time.Duration) {
	l.Put(nil, msg)
	body := relaytest.Pack(msg)
	name := relaytest.NameOf(body)
	l.mu.Lock()
	r := l.record(body.GetTypeUrl(), name)
	if r.expires == nil {
		r.expires = make(map[int]time.Time)
	}
	r.expires[r.generation] = time.Now().Add(ttl)
	l.mu.Unlock()
	for _, c := range to {
		c.SetWithTTL(body.GetTypeUrl(), name, msg, ttl)
	}
}

// Expire permits the loss of all resources with a TTL from now on. A relay that starts after its clock was set forward
// treats them as expired.
func (l *Ledger) Expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, of := range l.records {
		for _, r := range of {
			for generation := range r.expires {
				r.expires[generation] = now
			}
		}
	}
}

// Remove records removals, and then removes the resources from each Content.
func (l *Ledger) Remove(from []*relaytest.Content, typeURL string, names ...string) {
	l.mu.Lock()
	for _, name := range names {
		r := l.record(typeURL, name)
		r.generation++
		r.present, r.removed = false, r.generation
		l.changes++
	}
	l.mu.Unlock()
	for _, c := range from {
		c.Apply(func(tx *relaytest.Tx) {
			for _, name := range names {
				tx.Remove(typeURL, name)
			}
		})
	}
}

// Behind sets whether an origin may lag behind the ledger. While one may, a client may receive older content on a
// stream, but nothing older than the content at the call. It may also lose resources that are absent at the call.
func (l *Ledger) Behind(may bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.behind = may
	for _, of := range l.records {
		for _, r := range of {
			r.floor, r.absent = r.generation, !r.present
			if !may {
				r.reverted = r.generation
			}
		}
	}
}

// Repeats permits relays to send content to reconnecting clients that have it (B.3). Origins that use one version for
// different contents require this.
func (l *Ledger) Repeats() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.repeats = true
}

// Staged declares that relays stage changes of some types, each relay by itself. On another stream, a client may lose a
// resource that was absent at some time, because the last good state may differ there. Clients of a stage may see more
// changes ([Reader.InStage]).
func (l *Ledger) Staged(waits func(typeURL string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.staged = waits
}

// Frozen sets whether a relay may be frozen. While one may, a client may lose a resource on another stream that was
// absent at some time: the frozen state may lack it (B.7).
func (l *Ledger) Frozen(may bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = may
}

// mayRepeat reports whether a reconnecting client may be sent content that it has. The caller must hold the lock.
func (l *Ledger) mayRepeat(typeURL string, of *record, generation int) bool {
	return l.repeats || l.behind || generation <= of.reverted || of.expires != nil || typeURL == relaytest.EndpointType ||
		typeURL == relaytest.SecretType
}

// mayGoBack reports whether a client may be sent a generation after a newer one, because an origin lags. The caller
// must hold the lock.
func (l *Ledger) mayGoBack(to *record, generation int) bool {
	return l.behind && generation >= to.floor
}

// Changes returns the number of recorded contents and removals.
func (l *Ledger) Changes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes
}

// Names returns the sorted names of a type that ever existed, and those that exist now.
func (l *Ledger) Names(typeURL string) (all, present []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(l.records[typeURL])) {
		all = append(all, name)
		if l.records[typeURL][name].present {
			present = append(present, name)
		}
	}
	return all, present
}

// match returns the names that a subscription selects: the listed names and the members of listed collections, or all
// of the type if it lists none. The caller must hold the lock.
func (l *Ledger) match(sub relaytest.Subscription) (names []string) {
	for name := range l.records[sub.TypeURL] {
		if len(sub.Names) == 0 || slices.Contains(sub.Names, name) ||
			slices.Contains(sub.Names, relaytest.CollectionOf(name)) {
			names = append(names, name)
		}
	}
	return names
}

// Differs returns a difference between the origin and a client with subscriptions subs, or "". A SotW client may keep
// removed resources of types whose responses are not complete sets.
func (l *Ledger) Differs(s relaytest.State, v relaytest.Variant, subs []relaytest.Subscription) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, sub := range subs {
		entries := s[sub.TypeURL]
		for _, name := range l.match(sub) {
			r := l.records[sub.TypeURL][name]
			got, is := entries[name]
			switch {
			case !r.present && is && v == relaytest.SotW && !relaytest.FullState(sub.TypeURL):
			case r.present != is:
				return fmt.Sprintf("%s %q: present at the client: %v, at the origin: %v",
					relaytest.ShortType(sub.TypeURL), name, is, r.present)
			case is && got.Digest != r.now:
				return fmt.Sprintf("%s %q: generation %d at the client, %d at the origin", relaytest.ShortType(sub.TypeURL), name,
					r.generations[got.Digest], r.generation)
			}
		}
	}
	return ""
}

// A Reader checks all responses to one client. Its methods must be called from the goroutine that receives.
type Reader struct {
	ledger   *Ledger
	variant  relaytest.Variant
	held     map[string]map[string]int // generation, by type URL and name
	onStream map[string]struct{}       // received on this stream: type URL and name
	inStage  bool                      // whether the client is part of a stage
}

// Reader returns a reader for a new client of a variant.
func (l *Ledger) Reader(v relaytest.Variant) *Reader {
	return &Reader{ledger: l, variant: v, held: make(map[string]map[string]int), onStream: make(map[string]struct{})}
}

// InStage declares that the client is part of a stage (Staged): a change may be rolled back, and sent again. It must be
// called before the first stream.
func (r *Reader) InStage() { r.inStage = true }

// mayRevert reports whether the client may be sent an earlier state. The caller must hold the lock.
func (r *Reader) mayRevert(typeURL string) bool {
	return r.inStage && r.ledger.staged != nil && r.ledger.staged(typeURL)
}

// Opened records that the client has opened another stream. Its server may lag behind the last one, and so may send an
// older generation.
func (r *Reader) Opened() { clear(r.onStream) }

// Received records received content, and returns why it is illegal, or "". It is illegal if the origin never had it, if
// the client received newer content on the same stream, or if a Delta client reported it on this stream. The last is
// legal for endpoints, secrets, resources with a TTL, content that may have come back (Behind), and if versions are not
// trusted (B.3, B.16, Repeats).
func (r *Reader) Received(typeURL, name string, value []byte) string {
	d := relaytest.Digest(sha256.Sum256(value))
	r.ledger.mu.Lock()
	record := r.ledger.record(typeURL, name)
	generation, existed := record.generations[d]
	repeats := r.ledger.mayRepeat(typeURL, record, generation) || r.mayRevert(typeURL)
	back := r.ledger.mayGoBack(record, generation) || r.mayRevert(typeURL)
	r.ledger.mu.Unlock()
	of := r.held[typeURL]
	if of == nil {
		of = make(map[string]int)
		r.held[typeURL] = of
	}
	key := typeURL + "\x00" + name
	_, onStream := r.onStream[key]
	was := of[name]
	of[name], r.onStream[key] = generation, struct{}{}
	switch {
	case !existed:
		return fmt.Sprintf("%s %q: content %v, which the origin never had", relaytest.ShortType(typeURL), name, d)
	case onStream && generation < was && !back:
		return fmt.Sprintf("%s %q: generation %d after %d on the same stream",
			relaytest.ShortType(typeURL), name, generation, was)
	case r.variant == relaytest.Delta && generation == was && !onStream && !repeats:
		return fmt.Sprintf("%s %q: generation %d, which the client reported", relaytest.ShortType(typeURL), name, generation)
	}
	return ""
}

// expired reports whether a generation has expired. Unless the client received it on this stream, an older generation
// counts too: the relay may have lost the origin before the newer one.
func (r *record) expired(generation int, onStream bool) bool {
	for of, at := range r.expires {
		if (of == generation || of < generation && !onStream) && time.Now().After(at) {
			return true
		}
	}
	return false
}

// mayLose reports whether the client may lose a resource that was absent at some time (Frozen, Staged). onStream reports
// whether it received the resource on this stream. The caller must hold the lock.
func (r *Reader) mayLose(typeURL string, onStream bool) bool {
	staged := r.ledger.staged != nil && r.ledger.staged(typeURL)
	return staged && r.inStage || (staged || r.ledger.frozen) && !onStream
}

// Removed records the removal of a resource at the client, and returns why it is illegal, or "". It is illegal if the
// origin has not removed the resource since the client's content, and that content has not expired: the relay invented
// the removal.
func (r *Reader) Removed(typeURL, name string) string {
	r.ledger.mu.Lock()
	record := r.ledger.record(typeURL, name)
	held, removed := r.held[typeURL][name], record.removed
	_, onStream := r.onStream[typeURL+"\x00"+name]
	expired := record.expired(held, onStream)
	permitted := r.ledger.behind && record.absent || removed > 0 && r.mayLose(typeURL, onStream)
	r.ledger.mu.Unlock()
	delete(r.held[typeURL], name)
	if removed < held && !expired && !permitted {
		return fmt.Sprintf("%s %q: removed at generation %d, but the origin removed it last at %d",
			relaytest.ShortType(typeURL), name, held, removed)
	}
	return ""
}

// Options returns the options of a light client that passes its responses to the reader. report is called for each
// illegal response.
func (r *Reader) Options(opts relaytest.LightOptions, report func(string)) relaytest.LightOptions {
	check := func(illegal string) {
		if illegal != "" {
			report(illegal)
		}
	}
	opts.Variant, opts.OnOpen = r.variant, r.Opened
	opts.OnResource = func(typeURL string, name, value []byte) {
		if value != nil { // nil is a heartbeat
			check(r.Received(typeURL, string(name), value))
		}
	}
	opts.OnRemoved = func(typeURL, name string) { check(r.Removed(typeURL, name)) }
	return opts
}
