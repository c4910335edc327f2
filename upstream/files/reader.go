package files

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"time"
)

// read brings what is served up to date with the directory. It returns when a hold ends and the directory must be read
// again; zero if there is none.
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
		r.log.Warn("no valid file yet: clients receive no response until there is one", slog.String("dir", r.dir), slog.Int("files", len(files)))
	}
	was := r.serving
	over = r.admit(found, vanished, empty, now)
	if !maps.Equal(was, r.serving) {
		r.log.Info("files read", slog.String("dir", r.dir), slog.Int("files", len(files)), slog.Int("resources", r.serving.count()))
	}
	if empty && r.serving.count() == 0 {
		clear(r.shelf) // nothing is held back, so the old files do not matter any more
	}
	return over
}

// stand publishes the status of the files.
func (r *reader) stand(files int, trouble error, at time.Time) {
	now := &Status{Files: files, Trouble: trouble, At: at}
	if files > 0 {
		now.Bad = r.shelf.bad()
	}
	r.standing.Store(now)
	r.note()
}

// settle closes settled once the content of the directory is known.
func (r *reader) settle(known bool) {
	select {
	case <-r.settled:
	default:
		if known {
			close(r.settled)
		}
	}
}

// take returns the resources of the files that were read.
func (r *reader) take(files map[string]*fileContent) sets {
	if !maps.Equal(r.shelf.seen(), files) {
		r.found, r.changed = r.shelf.take(files)
		r.known = r.known || r.shelf.anyGood()
	}
	return r.found
}

// report logs an error of the directory itself, once.
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

// note logs which files became bad or good, once the status has them.
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
