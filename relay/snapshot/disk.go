package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// patience is how long the file system may take for one step of a call, such as reading or writing syncBytes.
const patience = 10 * time.Second

// maxFileBytes is the maximum size of a file that is read, unless the memory limit of the process is lower.
const maxFileBytes = 4 << 30

// syncBytes is how much of a file is written before it is flushed, so that no step of a large file takes long.
const syncBytes = 16 << 20

// errHangs means that the file system has not answered in time.
var errHangs = errors.New("the file system does not answer")

// A disk makes the calls to the file system, one after another, in one goroutine. A call to a file system that hangs does not
// return, and nothing can end it. So a caller waits until no step of the current call has ended for [patience], and then gets
// errHangs. Until that call has returned, all further callers get it at once.
type disk struct {
	log   *slog.Logger
	calls chan diskCall
	ended chan struct{} // closed by stop
	stop  func()

	began   time.Time
	stepped atomic.Int64 // the end of the last step, as a [time.Duration] since began
	busy    atomic.Bool  // the goroutine makes a call

	fault atomic.Pointer[diskFault] // nil if the last call that needs a usable directory found one
}

// A diskCall is a function that calls the file system, and the channel for its result, which has room for it.
type diskCall struct {
	run  func() error
	done chan error
}

// A diskFault is why the directory is not usable, and since when.
type diskFault struct {
	err   error
	since time.Time
	hangs bool
}

// startDisk starts the goroutine. stop ends it, after the current call.
func startDisk(log *slog.Logger) *disk {
	d := &disk{log: log, calls: make(chan diskCall), ended: make(chan struct{}), began: time.Now()}
	d.stop = sync.OnceFunc(func() { close(d.ended) })
	go func() { // ends with stop; leaked if a call never returns
		for {
			select {
			case c := <-d.calls:
				d.step()
				d.busy.Store(true)
				err := c.run()
				d.busy.Store(false) // before fault is read, see call
				if f := d.fault.Load(); f != nil && f.hangs {
					d.recover()
				}
				c.done <- err
			case <-d.ended:
				return
			}
		}
	}()
	return d
}

// step records the end of a step of the current call.
func (d *disk) step() { d.stepped.Store(int64(time.Since(d.began))) }

// call runs a function in the goroutine of the disk. It returns the function's error, or errHangs. The function may run on
// after that.
func (d *disk) call(run func() error) error {
	if f := d.fault.Load(); f != nil && f.hangs {
		return fmt.Errorf("%w for %v", errHangs, time.Since(f.since).Round(time.Second))
	}
	c := diskCall{run, make(chan error, 1)}
	calls, ended, late := d.calls, d.ended, time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case calls <- c:
			calls, ended = nil, nil
		case err := <-c.done:
			return err
		case <-ended:
			return fs.ErrClosed
		case <-late.C:
			since := d.began.Add(time.Duration(d.stepped.Load()))
			if left := patience - time.Since(since); left > 0 {
				late.Reset(left)
				continue
			}
			err := d.hang(since)
			if d.busy.Load() {
				return err
			}
			d.recover() // the call has ended meanwhile, perhaps before it could see the fault
			late.Reset(patience)
		}
	}
}

// hang records and logs that a call since a time has not returned.
func (d *disk) hang(since time.Time) error {
	err := fmt.Errorf("%w for %v", errHangs, patience)
	d.fail(&diskFault{err, since, true})
	return err
}

// fail records and logs that the directory is not usable, unless that is known.
func (d *disk) fail(f *diskFault) {
	for {
		was := d.fault.Load()
		known := was != nil && was.hangs == f.hangs
		if known {
			f.since = was.since // before others can read f
		}
		if !d.fault.CompareAndSwap(was, f) {
			continue
		}
		if !known {
			d.log.Error("snapshot directory not usable; the relay serves without it and tries again", slog.Any("err", f.err))
		}
		return
	}
}

// recover records and logs that the directory is usable, if it was not.
func (d *disk) recover() {
	if was := d.fault.Swap(nil); was != nil {
		d.log.Info("snapshot directory usable again", slog.Duration("after", time.Since(was.since).Round(time.Second)))
	}
}

// readFile returns the content of a regular file. A pipe would block, and a sparse file would use all memory.
func (d *disk) readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	limit := min(maxFileBytes, debug.SetMemoryLimit(-1))
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", info.Name())
	case info.Size() > limit:
		return nil, fmt.Errorf("%s: %d bytes, allowed are %d", info.Name(), info.Size(), limit)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	b := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	for n := int64(syncBytes); n == syncBytes && err == nil; d.step() {
		n, err = io.CopyN(b, f, syncBytes)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b.Bytes(), errors.Join(err, f.Close())
}

// A syncWriter writes to a file and flushes it to the disk after each syncBytes.
type syncWriter struct {
	disk  *disk
	file  *os.File
	dirty int
}

func (w *syncWriter) Write(b []byte) (n int, err error) {
	n, err = w.file.Write(b)
	if w.dirty += n; err == nil && w.dirty >= syncBytes {
		w.dirty, err = 0, w.file.Sync()
		w.disk.step()
	}
	return n, err
}
