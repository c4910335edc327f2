package relaytest

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
)

// A Ledger is what an origin, or several that say the same, has ever said: of each
// resource its contents in their order, and when it was removed. Held to it, what a client
// is told can be judged while everything changes and fails. All content of one name must be
// different. Its methods may be called from any goroutine.
type Ledger struct {
	mu      sync.Mutex
	records map[string]map[string]*record // by type URL and name
	n       int                           // changes
	behind  bool                          // an origin may be
	repeats bool                          // relays may tell again what clients have
	staged  func(typeURL string) bool     // whether relays distribute a type in stages; nil if none
}

// A record is what was said of one resource. Generations count its contents and removals.
type record struct {
	generation int
	said       map[Digest]int // generation, by content
	now        Digest
	present    bool
	removed    int               // generation of the last removal; 0 if there was none
	floor      int               // generation when an origin began to lag
	lacked     bool              // by an origin that lags: it was not there then
	reverted   int               // newest generation that may have come back after an older one, of an origin that lagged
	expires    map[int]time.Time // by generation, of those that live for some time: not before
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger { return &Ledger{records: make(map[string]map[string]*record)} }

func (l *Ledger) record(typeURL, name string) *record {
	of := l.records[typeURL]
	if of == nil {
		of = make(map[string]*record)
		l.records[typeURL] = of
	}
	if of[name] == nil {
		of[name] = &record{said: make(map[Digest]int)}
	}
	return of[name]
}

// Put writes messages down, and then puts them into each of the contents.
func (l *Ledger) Put(to []*Content, msgs ...proto.Message) {
	l.mu.Lock()
	for _, msg := range msgs {
		body := pack(msg)
		r := l.record(body.GetTypeUrl(), nameOf(body.GetValue()))
		r.generation++
		r.now, r.present = digest(body), true
		r.said[r.now] = r.generation
		l.n++
	}
	l.mu.Unlock()
	for _, c := range to {
		c.Put(msgs...)
	}
}

// Expiring writes down content that lives for ttl after anybody was last told of it, and then
// sets it in each of the contents. Whoever has it may lose it once that long has passed.
func (l *Ledger) Expiring(to []*Content, msg proto.Message, ttl time.Duration) {
	l.Put(nil, msg)
	body := pack(msg)
	name := nameOf(body.GetValue())
	l.mu.Lock()
	r := l.record(body.GetTypeUrl(), name)
	if r.expires == nil {
		r.expires = make(map[int]time.Time)
	}
	r.expires[r.generation] = time.Now().Add(ttl)
	l.mu.Unlock()
	for _, c := range to {
		c.Expiring(body.GetTypeUrl(), name, msg, ttl)
	}
}

// Expire has whoever has something that lives for some time lose it at any time from now on: a relay that
// starts takes it for expired if its clock was set forward.
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

// Remove writes removals down, and then removes from each of the contents.
func (l *Ledger) Remove(from []*Content, typeURL string, names ...string) {
	l.mu.Lock()
	for _, name := range names {
		r := l.record(typeURL, name)
		r.generation++
		r.present, r.removed = false, r.generation
		l.n++
	}
	l.mu.Unlock()
	for _, c := range from {
		c.Apply(func(tx *Tx) {
			for _, name := range names {
				tx.Remove(typeURL, name)
			}
		})
	}
}

// Behind says that from now on one of the origins may lag behind what is written down. Until it is said that
// none does, a client may go back on a stream, but to nothing older than what there is now, and may
// lose what there is not now.
func (l *Ledger) Behind(may bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.behind = may
	for _, of := range l.records {
		for _, r := range of {
			r.floor, r.lacked = r.generation, !r.present
			if !may {
				r.reverted = r.generation
			}
		}
	}
}

// Repeats says that the origins give different contents one version. From now on, relays that have noticed it may tell
// who comes what it has (B.3).
func (l *Ledger) Repeats() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.repeats = true
}

// Staged says that relays distribute changes of some types in stages, each by itself: on another stream, a client may
// lose what was once not there, as there another state may be the last good. Clients of a stage see more ([Reader.Early]).
func (l *Ledger) Staged(waits func(typeURL string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.staged = waits
}

// mayRepeat reports whether a client may be told what it has when it comes. Locked.
func (l *Ledger) mayRepeat(typeURL string, of *record, generation int) bool {
	return l.repeats || l.behind || generation <= of.reverted || of.expires != nil || typeURL == EndpointType || typeURL == SecretType
}

// goesBack reports whether a client may be told a generation after a newer one, since an origin lags. Locked.
func (l *Ledger) goesBack(to *record, generation int) bool { return l.behind && generation >= to.floor }

// Changes returns how many contents and removals were written down.
func (l *Ledger) Changes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// Names returns the sorted names of a type of which anything was ever said, and those
// of them that exist.
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

// match returns the names that a subscription is about: those that it lists, with
// what is in its collections, or all of its type if it lists none. Locked.
func (l *Ledger) match(sub Subscription) (names []string) {
	for name := range l.records[sub.TypeURL] {
		if len(sub.Names) == 0 || slices.Contains(sub.Names, name) || slices.Contains(sub.Names, collectionOf(name)) {
			names = append(names, name)
		}
	}
	return names
}

// Differs returns in what a client that asked for all of what differs from the origin, ""
// in nothing. What a SotW client was never told is gone of a type whose responses are not
// complete, it may have.
func (l *Ledger) Differs(s State, v Variant, what []Subscription) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, sub := range what {
		has := s[sub.TypeURL]
		for _, name := range l.match(sub) {
			r := l.records[sub.TypeURL][name]
			got, is := has[name]
			switch {
			case !r.present && is && v == SotW && !fullState(sub.TypeURL):
			case r.present != is:
				return fmt.Sprintf("%s %q: it has it: %v, the origin: %v", short(sub.TypeURL), name, is, r.present)
			case is && got.Digest != r.now:
				return fmt.Sprintf("%s %q: it has generation %d, the origin %d", short(sub.TypeURL), name, r.said[got.Digest], r.generation)
			}
		}
	}
	return ""
}

// A Reader judges what one client is told, from first to last. Its methods belong to the
// goroutine that receives.
type Reader struct {
	ledger  *Ledger
	variant Variant
	held    map[string]map[string]int // generation, by type URL and name
	fresh   map[string]struct{}       // told on this stream: type URL and name
	early   bool                      // the client is of a stage
}

// Reader returns a reader that was told nothing yet, by responses of a variant.
func (l *Ledger) Reader(v Variant) *Reader {
	return &Reader{ledger: l, variant: v, held: make(map[string]map[string]int), fresh: make(map[string]struct{})}
}

// Early says that the client is of a stage (Staged): a change that others do not have yet may be taken back, and be told again.
// It comes before the first stream.
func (r *Reader) Early() { r.early = true }

// returns reports whether the client may be taken back to what was before. Locked.
func (r *Reader) returns(typeURL string) bool {
	return r.early && r.ledger.staged != nil && r.ledger.staged(typeURL)
}

// Opened notes that the client is on another stream. Its server may know less than the
// last one did, and so may take it back to an older generation.
func (r *Reader) Opened() { clear(r.fresh) }

// Told takes content, and returns what is wrong with it, "" if nothing is: the origin has
// never said it, or had said something newer to the client on the same stream; or a Delta
// client came with it to the stream, and so has said that it has it. Of endpoints and secrets
// that is as it should be, of what lives for some time, of what may have come back (Behind), and of all once versions
// prove nothing (B.3, B.16, Repeats).
func (r *Reader) Told(typeURL, name string, value []byte) string {
	d := Digest(sha256.Sum256(value))
	r.ledger.mu.Lock()
	record := r.ledger.record(typeURL, name)
	generation, said := record.said[d]
	repeats := r.ledger.mayRepeat(typeURL, record, generation) || r.returns(typeURL)
	back := r.ledger.goesBack(record, generation) || r.returns(typeURL)
	r.ledger.mu.Unlock()
	of := r.held[typeURL]
	if of == nil {
		of = make(map[string]int)
		r.held[typeURL] = of
	}
	key := typeURL + "\x00" + name
	_, fresh := r.fresh[key]
	was := of[name]
	of[name], r.fresh[key] = generation, struct{}{}
	switch {
	case !said:
		return fmt.Sprintf("%s %q: content %v, which the origin never said", short(typeURL), name, d)
	case fresh && generation < was && !back:
		return fmt.Sprintf("%s %q: generation %d after %d on the same stream", short(typeURL), name, generation, was)
	case r.variant == Delta && generation == was && !fresh && !repeats:
		return fmt.Sprintf("%s %q: generation %d, which it has", short(typeURL), name, generation)
	}
	return ""
}

// expired reports whether a generation has expired or, unless the client was told it on its stream, an older one: its
// server may have lost the origin before that said anything newer.
func (r *record) expired(generation int, fresh bool) bool {
	for of, at := range r.expires {
		if (of == generation || of < generation && !fresh) && time.Now().After(at) {
			return true
		}
	}
	return false
}

// Gone takes the loss of a resource that the client has, and returns what is wrong with it: the
// origin has not removed it since it said what the client has, and that has not expired. The
// deletion would be an invention of the relay.
func (r *Reader) Gone(typeURL, name string) string {
	r.ledger.mu.Lock()
	record := r.ledger.record(typeURL, name)
	held, removed := r.held[typeURL][name], record.removed
	_, fresh := r.fresh[typeURL+"\x00"+name]
	expired := record.expired(held, fresh)
	lacked := r.ledger.behind && record.lacked
	if staged := r.ledger.staged; staged != nil && staged(typeURL) && (r.early || !fresh) {
		lacked = lacked || removed > 0
	}
	r.ledger.mu.Unlock()
	delete(r.held[typeURL], name)
	if removed < held && !expired && !lacked {
		return fmt.Sprintf("%s %q: taken away at generation %d, the origin removed it last at %d", short(typeURL), name, held, removed)
	}
	return ""
}

// Options returns those of a light client, of the reader's variant, whose reader this is, and
// which calls wrong for all that is wrong with what it is told.
func (r *Reader) Options(opts LightOptions, wrong func(string)) LightOptions {
	judge := func(what string) {
		if what != "" {
			wrong(what)
		}
	}
	opts.Variant, opts.OnOpen = r.variant, r.Opened
	opts.OnResource = func(typeURL string, name, value []byte) {
		if value != nil { // else it lives on
			judge(r.Told(typeURL, string(name), value))
		}
	}
	opts.OnGone = func(typeURL, name string) { judge(r.Gone(typeURL, name)) }
	return opts
}
