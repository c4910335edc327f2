package upstream

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"
)

// A reader knows what the directory held and holds. It starts no goroutine.
type reader struct {
	dir     string
	log     *slog.Logger
	shelf   shelf
	found   sets      // what the shelf holds
	changed []BadFile // files that turned bad or good, and were not logged yet
	holds   fileHolds
	trouble string // with the directory itself, as logged last

	standing atomic.Pointer[FilesStatus] // for everybody

	settled chan struct{} // closed once known is set, or there was no file
	known   bool          // some file was good; until then, that there is nothing is not said
	waiting bool          // it was logged that none was
	serving sets          // every type that was ever served is in it, maybe empty; never modified
}

func newReader(cfg FilesConfig) *reader {
	r := &reader{
		dir: cfg.Dir, log: cfg.Logger,
		settled: make(chan struct{}), shelf: make(shelf), holds: newFileHolds(cfg.MassDeleteHold, cfg.HoldExplicit, new(counters)), serving: make(sets),
	}
	r.standing.Store(new(FilesStatus))
	return r
}

// read brings what is served up to date with the directory. It returns when a hold
// is over and the directory must be read again, zero if that is not to be known.
func (r *reader) read(now time.Time) (over time.Time) {
	files, err := readDir(r.dir, r.shelf.seen())
	r.report(err)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		was := *r.standing.Load()
		was.Trouble, was.At = err, now
		r.standing.Store(&was)
		return time.Time{}
	}
	empty := len(files) == 0
	vanished := r.shelf.vanished(files)
	var found sets
	if !empty {
		found = r.take(files)
	}
	r.stand(len(files), err, now)
	r.settle(r.known || err == nil && empty)
	if !r.known && !r.waiting {
		r.waiting = true
		r.log.Warn("no good file yet: clients are told nothing until there is one", slog.String("dir", r.dir), slog.Int("files", len(files)))
	}
	serving := r.admit(looked{found, vanished, empty}, now)
	if !maps.Equal(serving, r.serving) {
		r.log.Info("files read", slog.String("dir", r.dir), slog.Int("files", len(files)), slog.Int("resources", serving.count()))
	}
	r.serving = serving
	if empty && serving.count() == 0 {
		clear(r.shelf) // nothing is held back: what the files held is over
	}
	return r.holds.next()
}

// admit returns what is to be served of what was found; a set that has not changed is the one that is served.
func (r *reader) admit(look looked, now time.Time) sets {
	serving, decisions := r.holds.admit(r.serving, look, now)
	r.explain(decisions)
	r.holds.alarm(r.log.With(slog.String("dir", r.dir)), now)
	for typeURL, set := range serving {
		if was := r.serving[typeURL]; was.equal(set) {
			serving[typeURL] = was
		}
	}
	return serving
}

// stand notes how many files there are, and what is wrong with them.
func (r *reader) stand(files int, trouble error, at time.Time) {
	now := &FilesStatus{Files: files, Trouble: trouble, At: at}
	if files > 0 {
		now.Bad = r.shelf.bad()
	}
	r.standing.Store(now)
	r.note()
}

// settle notes that it is known what the directory holds.
func (r *reader) settle(known bool) {
	select {
	case <-r.settled:
	default:
		if known {
			close(r.settled)
		}
	}
}

// take returns what counts of the files that were read.
func (r *reader) take(files map[string]*fileContent) sets {
	if !maps.Equal(r.shelf.seen(), files) {
		r.found, r.changed = r.shelf.take(files)
		r.known = r.known || r.shelf.anyGood()
	}
	return r.found
}

// forgetDamaged has files read anew, as if they had changed, of which a resource is not what it
// was made of any more.
func (r *reader) forgetDamaged() {
	for file, f := range r.shelf {
		if f.seen.damaged() {
			r.shelf[file] = &shelved{seen: new(fileContent), good: f.good, err: f.err}
			r.log.Warn("a resource is not what its file holds: the file is read anew", slog.String("file", file))
		}
	}
}

// report logs trouble with the directory itself, once.
func (r *reader) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == r.trouble {
		return
	}
	r.trouble = text
	if err == nil {
		r.log.Info("directory can be read again", slog.String("dir", r.dir))
		return
	}
	r.log.Warn("directory cannot be read", slog.String("dir", r.dir), slog.Any("err", err))
}

// note logs which files turned bad or good, once the status says so.
func (r *reader) note() {
	for _, f := range r.changed {
		if f.Err == nil {
			r.log.Info("file is good again", slog.String("file", f.File))
			continue
		}
		r.log.Warn("file is bad: what it last held while it could be read is served, as far as no other file has the names",
			slog.String("file", f.File), slog.Any("err", f.Err), slog.Int("last_good", f.LastGood))
	}
	r.changed = nil
}

func (r *reader) explain(decisions []decision) {
	for _, d := range decisions {
		attrs := []any{slog.String("dir", r.dir), slog.String("type_url", d.typeURL)}
		if d.held > 0 {
			r.log.Error("files seem to have lost resources: their removal is held back",
				append(attrs, slog.Int("held", d.held), slog.Duration("hold", r.holds.wait))...)
		}
		switch {
		case d.released > 0:
			r.log.Warn("removals that were held back were released: the resources are removed", append(attrs, slog.Int("removed", d.removed))...)
		case d.over && d.removed > 0:
			r.log.Warn("resources are still missing after the hold and were removed", append(attrs, slog.Int("removed", d.removed))...)
		case d.over:
			r.log.Info("no removal is held back any more", attrs...)
		}
	}
}
