package files

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"time"
)

// read reads the directory and updates the served resources and the status. It returns when to read again because a
// hold ends; zero if there is none. If the directory exists but cannot be read, the served resources do not change.
func (r *reader) read(now time.Time) (over time.Time) {
	files, err := readDir(r.dir, r.files.current())
	r.logDirError(err)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		was := *r.status.Load()
		was.Err, was.At = err, now
		r.status.Store(&was)
		return time.Time{}
	}
	empty := len(files) == 0
	deleted := r.files.deletedNames(files)
	var found sets
	if !empty {
		found = r.takeFiles(files, now)
	}
	r.setStatus(len(files), err, now)
	r.closeKnown(r.hasContent || err == nil && empty)
	if !r.hasContent && !r.waitLogged {
		r.waitLogged = true
		r.log.Warn("no valid file yet: clients receive no responses",
			slog.String("dir", r.dir), slog.Int("files", len(files)))
	}
	was := r.serving
	over = r.serve(found, deleted, empty, now)
	if !maps.Equal(was, r.serving) {
		r.log.Info("files read", slog.String("dir", r.dir),
			slog.Int("files", len(files)), slog.Int("resources", r.serving.count()))
	}
	if empty && r.serving.count() == 0 {
		clear(r.files) // no resource is served, so the old content is not needed
	}
	return over
}

// setStatus publishes the status of the files.
func (r *reader) setStatus(files int, trouble error, at time.Time) {
	now := &Status{Files: files, Err: trouble, At: at}
	if files > 0 {
		now.Bad = r.files.bad()
	}
	r.status.Store(now)
	r.logFileChanges()
}

// closeKnown closes contentKnown once the content of the directory is known.
func (r *reader) closeKnown(known bool) {
	select {
	case <-r.contentKnown:
	default:
		if known {
			close(r.contentKnown)
		}
	}
}

// takeFiles records the files that were read and returns their resources.
func (r *reader) takeFiles(files map[string]*fileContent, now time.Time) sets {
	if !maps.Equal(r.files.current(), files) {
		r.content, r.changed = r.files.update(files)
		if !r.hasContent && r.files.anyGood() {
			r.hasContent, r.knownAt = true, now.Add(r.settleTime)
		}
	}
	return r.content
}

// logDirError logs a new error of the directory itself, or its end.
func (r *reader) logDirError(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == r.loggedError {
		return
	}
	r.loggedError = text
	if err == nil {
		r.log.Info("directory can be read again", slog.String("dir", r.dir))
		return
	}
	r.log.Warn("directory cannot be read", slog.String("dir", r.dir), slog.Any("err", err))
}

// logFileChanges logs files that became bad or good. The status must contain them already.
func (r *reader) logFileChanges() {
	for _, f := range r.changed {
		if f.Err == nil {
			r.log.Info("file is good again", slog.String("file", f.File))
			continue
		}
		r.log.Warn("file is bad: serving its last good resources",
			slog.String("file", f.File), slog.Any("err", f.Err), slog.Int("last_good", f.LastGood))
	}
	r.changed = nil
}
