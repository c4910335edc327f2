package rollout

import (
	"maps"
	"slices"
	"sync"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// Trials are the editions that the judge has, of all origins of a relay: a local Envoy is a client of all of them. Its methods may
// be called from any goroutine.
type Trials struct {
	mu   sync.Mutex
	open map[*Controller]*trial
}

// A trial is that of an edition, from when the judge is called until it has answered. Changes are digests by type URL or collection,
// and name.
type trial struct {
	edition []map[string]map[string]wire.Digest // by section

	// beside are the changes that the view of the judge has had in addition, since the trial began: those of the last good, and
	// the editions of other origins, which may wait for the turn of the judge.
	beside []map[string]map[string]wire.Digest
}

// begin begins the trial of an edition.
func (t *Trials) begin(of *Controller, edition Changes) {
	is := &trial{edition: slices.Collect(maps.Values(edition))}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, other := range t.open {
		is.beside, other.beside = append(is.beside, other.edition...), append(other.beside, is.edition...)
	}
	if t.open == nil {
		t.open = make(map[*Controller]*trial)
	}
	t.open[of] = is
}

// recordGood records changes of the last good of an origin, which all trials have from now on.
func (t *Trials) recordGood(changes map[string]map[string]wire.Digest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, is := range t.open {
		is.beside = append(is.beside, changes)
	}
}

// end ends the trial of an origin. It reports whether the NACKs of its judgement are none of the edition: each names resources
// that the judge has had in addition, and none of the edition.
func (t *Trials) end(of *Controller, judgement Judgement) (concernsOthers bool) {
	t.mu.Lock()
	is := t.open[of]
	delete(t.open, of)
	t.mu.Unlock()
	for typeURL, detail := range judgement.NACKs {
		if mentionsAny(detail, typeURL, is.edition) || !mentionsAny(detail, typeURL, is.beside) {
			return false
		}
	}
	return len(judgement.NACKs) > 0
}

// mentionsAny reports whether a text mentions a resource of a type that some changes have, by type URL or collection and name.
func mentionsAny(text, typeURL string, all []map[string]map[string]wire.Digest) bool {
	words := wordsOf(text)
	for _, changes := range all {
		for key, names := range changes {
			if of, _, _ := cache.SplitCollection(key); of == typeURL && newNameSet(names).isMentioned(text, words) {
				return true
			}
		}
	}
	return false
}
