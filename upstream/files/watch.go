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
// An event of any file counts, because a file may be a link to a link with any name, such as ..data in a Kubernetes
// volume.
type dirWatch struct {
	dir           string
	log           *slog.Logger
	watcher       *fsnotify.Watcher // nil if the system provides no events
	watched       os.FileInfo       // the watched directory; nil if there is no watch
	events        <-chan fsnotify.Event
	errs          <-chan error
	warningLogged bool // reset when the watch works
}

// newDirWatch returns a watch that renew starts. If the system provides no events, newDirWatch logs that, and wait
// returns only at the time or for a call. The caller must call close.
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

// renew watches the directory that has the name now. It may have replaced the watched directory since the last call.
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
		return // readDir returns the same error
	}
	if err := d.watcher.Add(d.dir); err != nil {
		d.warn(err)
		return
	}
	if d.warningLogged {
		d.log.Info("directory is watched again", slog.String("dir", d.dir))
	}
	d.watched, d.warningLogged = info, false
}

// warn logs that there are no events, once until a watch succeeds.
func (d *dirWatch) warn(err error) {
	if !d.warningLogged {
		d.log.Warn("directory cannot be watched: polling it instead", slog.String("dir", d.dir), slog.Any("err", err))
	}
	d.warningLogged = true
}

// wait waits until the directory must be read: after events, at the time until, or for a call, which it returns. again
// is false if ctx has ended.
func (d *dirWatch) wait(
	ctx context.Context, until time.Time, calls <-chan func(*reader),
) (call func(*reader), again bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	var latest time.Time // when to return after the first event at the latest; zero if there was none
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
