package files

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// A change of files is read once there was no sign of another for
// eventQuiet, but not later than eventWait after the first.
const (
	eventQuiet = 50 * time.Millisecond
	eventWait  = 500 * time.Millisecond
)

// A dirWatch waits for changes of a directory. It belongs to one goroutine.
//
// It takes every event for a sign, whatever name it is of: a file may be a link to
// a link of any name, as ..data is in what Kubernetes mounts.
type dirWatch struct {
	dir     string
	log     *slog.Logger
	watcher *fsnotify.Watcher // nil if there can be none
	watched os.FileInfo       // the directory that has the watch; nil if none has
	events  <-chan fsnotify.Event
	errs    <-chan error
	warningLogged  bool
}

// newDirWatch returns a watch that renew must begin. Where the system has no
// events to give, that is logged, and wait only waits.
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

// renew makes sure that it is the directory of that name that is watched, and not
// one that was.
func (d *dirWatch) renew() {
	if d.watcher == nil {
		return
	}
	info, err := os.Stat(d.dir)
	// A new directory may look like the old one, whose watch ended with it.
	if err == nil && d.watched != nil && os.SameFile(info, d.watched) && len(d.watcher.WatchList()) > 0 {
		return
	}
	if d.watched != nil {
		_ = d.watcher.Remove(d.dir) // fails if the directory is gone, and its watch with it
		d.watched = nil
	}
	if err != nil {
		return // reading the directory says so
	}
	if err := d.watcher.Add(d.dir); err != nil {
		d.warn(err)
		return
	}
	d.watched, d.warningLogged = info, false
}

// warn logs, once, that there are no events.
func (d *dirWatch) warn(err error) {
	if !d.warningLogged {
		d.log.Warn("directory cannot be watched: polling it instead", slog.String("dir", d.dir), slog.Any("err", err))
	}
	d.warningLogged = true
}

// wait returns true when there is reason to read the directory: events, after
// which there was quiet, the time has come, or a call, which it returns. It returns false
// if ctx ended.
func (d *dirWatch) wait(ctx context.Context, until time.Time, calls <-chan func(*reader)) (call func(*reader), again bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	var latest time.Time // to wait for; zero if there was no event
	for {
		select {
		case _, ok := <-d.events:
			if !ok {
				d.events = nil
			}
		case err, ok := <-d.errs: // such as events that were lost
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
