package files

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// The reader reads a change eventQuiet after the last event, but at most eventWait after the first.
const (
	eventQuiet = 50 * time.Millisecond
	eventWait  = 500 * time.Millisecond
)

// A dirWatch waits for changes of a directory. It belongs to one goroutine.
//
// Every event counts, whatever file it is about: a file may be a link to a link with any name, such as ..data in a
// Kubernetes volume.
type dirWatch struct {
	dir           string
	log           *slog.Logger
	watcher       *fsnotify.Watcher // nil if the system provides no events
	watched       os.FileInfo       // the watched directory; nil if there is no watch
	events        <-chan fsnotify.Event
	errs          <-chan error
	warningLogged bool // reset when the watch works
}

// newDirWatch returns a watch that renew starts. If the system provides no events, it logs that, and wait only waits
// for the time.
func newDirWatch(cfg Config) *dirWatch {
	d := &dirWatch{dir: cfg.Dir, log: cfg.Logger}
	if cfg.disableEvents {
		return d
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		d.warn(err)
		return d
	}
	d.watcher, d.events, d.errs = w, w.Events, w.Errors
	return d
}

// close ends the watch and waits for its goroutine.
func (d *dirWatch) close() {
	if d.watcher == nil {
		return
	}
	if err := d.watcher.Close(); err != nil {
		d.log.Debug("directory watch failed to close", slog.String("dir", d.dir), slog.Any("err", err))
	}
}

// renew watches the directory that has the name now, which may have replaced another one.
func (d *dirWatch) renew() {
	if d.watcher == nil {
		return
	}
	info, err := os.Stat(d.dir)
	// A new directory may have the identity of the old one, whose watch has ended.
	if err == nil && d.watched != nil && os.SameFile(info, d.watched) && len(d.watcher.WatchList()) > 0 {
		return
	}
	if d.watched != nil {
		_ = d.watcher.Remove(d.dir) // fails if the directory and its watch no longer exist
		d.watched = nil
	}
	if err != nil {
		return // the read returns the error
	}
	if err := d.watcher.Add(d.dir); err != nil {
		d.warn(err)
		return
	}
	d.watched, d.warningLogged = info, false
}

// warn logs once that there are no events.
func (d *dirWatch) warn(err error) {
	if !d.warningLogged {
		d.log.Warn("directory cannot be watched: polling it instead", slog.String("dir", d.dir), slog.Any("err", err))
	}
	d.warningLogged = true
}

// wait waits for a reason to read the directory: events, the time until, or a call, which it returns. It returns again
// = false if ctx ends.
func (d *dirWatch) wait(
	ctx context.Context, until time.Time, calls <-chan func(*reader),
) (call func(*reader), again bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	var latest time.Time // maximum wait after the first event; zero if there was none
	for {
		select {
		case _, ok := <-d.events:
			if !ok {
				d.events = nil
			}
		case err, ok := <-d.errs: // for example lost events
			if !ok {
				d.errs = nil
				break
			}
			d.log.Debug("directory watch failed", slog.String("dir", d.dir), slog.Any("err", err))
		case <-timer.C:
			return nil, true
		case call := <-calls:
			return call, true
		case <-ctx.Done():
			return nil, false
		}
		now := time.Now()
		if latest.IsZero() {
			latest = now.Add(eventWait)
		}
		timer.Reset(min(eventQuiet, latest.Sub(now)))
	}
}
