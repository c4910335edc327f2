package downstream

import (
	"maps"
	"slices"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
)

// A fit is which names of a request are within the limits, and which are over each of them, and why.
type fit struct {
	within []string
	over   []overLimit
}

// An overLimit is what a limit refuses of a request.
type overLimit struct {
	names []string
	why   error
}

func (f *fit) refuse(text string, why error) {
	limit, _ := guard.LimitOf(why)
	for i := range f.over {
		if l, _ := guard.LimitOf(f.over[i].why); l == limit {
			f.over[i].names = append(f.over[i].names, text)
			return
		}
	}
	f.over = append(f.over, overLimit{[]string{text}, why})
}

// fit sorts out which names are over a limit if the subscription gives up others at the same time, on a stream that
// holds so many names and globs; replaces is set if it gives up all that is not among the names. What it has already is
// within, and what other clients want of an origin, too.
func (s *subscription) fit(names, ceases []string, replaces bool, held, globs int) (f fit) {
	if s.fitAll(names, held) {
		f.within = names // as nearly always
		return f
	}
	has := s.has()
	if replaces {
		ceases = slices.Collect(maps.Keys(has))
	}
	count := func(text string, by int) {
		if held += by; wire.Glob(text) {
			globs += by
		}
	}
	for _, text := range set(ceases) {
		if _, is := has[text]; is {
			count(text, -1)
		}
	}
	var fresh []string
	for _, text := range set(names) {
		_, had := has[text]
		if !had && !s.all(text) {
			fresh = append(fresh, text)
			continue
		}
		if f.within = append(f.within, text); had && replaces {
			count(text, 1)
		}
	}
	f.add(s, fresh, ceases, held, globs)
	return f
}

// fitAll reports whether all names are within the limits, whatever the subscription has.
func (s *subscription) fitAll(names []string, held int) bool {
	return held+len(names) <= s.cfg.MaxNames && len(names) <= s.watch.Room() && !slices.ContainsFunc(names, wire.Glob)
}

// has returns the names and globs of the subscription.
func (s *subscription) has() map[string]struct{} {
	has := make(map[string]struct{}, len(s.names)+len(s.globs))
	for _, n := range s.names {
		has[n.name.String()] = struct{}{}
	}
	for _, glob := range s.globs {
		has[glob.glob] = struct{}{}
	}
	return has
}

// all reports whether a name stands for all resources of the type.
func (s *subscription) all(text string) bool {
	return text == wire.Wildcard || text == "" && wire.Known(s.typeURL)
}

// add is fit for names that the subscription does not have.
func (f *fit) add(s *subscription, fresh, ceases []string, held, globs int) {
	wanted := held + len(fresh)
	var plain []string
	followed := 0 // of the globs, those that are new to the group
	for _, text := range fresh {
		var why error
		switch {
		case held >= s.cfg.MaxNames:
			why = guard.Exceeds(guard.LimitNames, "%d resource names on one stream, at most %d are served", wanted, s.cfg.MaxNames)
		case wire.Glob(text):
			why = s.globOver(text, globs, &followed)
		}
		if why != nil {
			f.refuse(text, why)
			continue
		}
		if held++; wire.Glob(text) {
			globs++
			f.within = append(f.within, text)
		} else {
			plain = append(plain, text)
		}
	}
	over, bound := s.watch.Over(s.key, plain, ceases)
	for _, text := range plain {
		if _, is := slices.BinarySearch(over, text); !is {
			f.within = append(f.within, text)
			continue
		}
		f.refuse(text, originOver(s.watch.Peer(), bound))
	}
}

// originOver returns why a name of a peer is over a bound of its origin.
func originOver(peer string, bound cache.Excess) error {
	if bound.OfPeer {
		return guard.Exceeds(guard.LimitOriginNames, "clients of %s want %d resource names of one origin, at most %d of one peer are served while more than half of %d are wanted",
			peer, bound.Used, bound.Most, bound.Total)
	}
	return guard.Exceeds(guard.LimitOriginNames, "clients want %d resource names of one origin, it is asked for at most %d", bound.Used, bound.Most)
}

// globOver returns why a glob is over a limit, on a stream that has others, if followed of these are new to the group.
func (s *subscription) globOver(glob string, others int, followed *int) error {
	if others >= s.cfg.MaxGlobs {
		return guard.Exceeds(guard.LimitGlobs, "more globs on one stream than the %d that are served", s.cfg.MaxGlobs)
	}
	if more, all := s.watch.Unfollowed([]string{cache.Collection(s.typeURL, glob)}); more > 0 {
		if all+*followed >= s.cfg.MaxGroupGlobs {
			return guard.Exceeds(guard.LimitGroupGlobs, "more globs in one node group than the %d that are served", s.cfg.MaxGroupGlobs)
		}
		*followed++
	}
	return nil
}

// set returns texts in order, each once.
func set(texts []string) []string { return slices.Compact(slices.Sorted(slices.Values(texts))) }
