package reconcile

import (
	"cmp"
	"log/slog"

	"github.com/xdstender/tender/cache/wire"
)

// requires reports whether only an operator removes a resource of the set (TENDER_REQUIRED).
func (s *Set) requires(name string) bool {
	return s.group.cfg.Required != nil && s.group.cfg.Required(s.TypeURL, name) && s.content.Get(name) != nil
}

// holdRequired returns an update, whose removals are decided, without the removals of required resources, and records these:
// they wait for an operator.
func (f *filter) holdRequired(u wire.Update) wire.Update {
	s := f.set
	if s.group.cfg.Required == nil {
		return u
	}
	u.Removed = without(u.Removed, func(name string) bool { return f.holdsRequired(name, nil) })
	u.Errors = without(u.Errors, func(e *wire.ResourceError) bool {
		return e.NotFound() && e.Constraints == nil && f.holdsRequired(e.Name, e)
	})
	return u
}

// holdsRequired records the removal of a resource if it is required, and reports whether it is. The error is the one with
// which the origin stated the removal; nil without one.
func (f *filter) holdsRequired(name string, originError *wire.ResourceError) bool {
	s := f.set
	if !s.requires(name) {
		return false
	}
	old, known := s.byName[name]
	change := removal{state: required, explicit: true, originError: cmp.Or(originError, old.originError)}
	if known {
		change.follow(old, s.cause(f.now), f.now)
	} else {
		change.since, change.cause = f.waitsSince(name)
	}
	s.record(name, change)
	if old.state != required {
		s.requiredAlarm.start(f.now)
		s.group.cfg.Logger.Error("removal of a required resource waits for an operator: use tender pass or tender drop",
			slog.String("type_url", s.TypeURL), slog.String("name", name))
	}
	return true
}
