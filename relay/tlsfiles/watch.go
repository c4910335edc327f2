package tlsfiles

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	// lookEvery is how often files are read.
	lookEvery = time.Second

	// maxFileBytes bounds a file: a bundle of all public CAs has a tenth of it.
	maxFileBytes = 4 << 20
)

// A File is one that a variable names.
type File struct {
	Variable string // TENDER_…
	Path     string // empty if there is none
}

// String returns the file as VARIABLE="path".
func (f File) String() string { return f.Variable + "=" + strconv.Quote(f.Path) }

func (f File) wrap(err error) error { return fmt.Errorf("%s: %w", f, err) }

// A Watch reads files again when they change. Files are opened before Run is called.
type Watch struct {
	log     *slog.Logger
	sources []*source
}

// New returns a watch of nothing yet. A nil logger discards.
func New(log *slog.Logger) *Watch {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Watch{log: log}
}

// Run looks at the files until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	if len(w.sources) == 0 {
		return
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for _, s := range w.sources {
				s.look(time.Now(), w.log)
			}
		case <-ctx.Done():
			return
		}
	}
}

// A Status is the state of files that are loaded together.
type Status struct {
	Files []File

	// LoadedAt is when what is in force was read.
	LoadedAt time.Time

	// NotAfter is when the certificate expires; of several CAs, when the last of them does.
	// It is zero if there is none in the files.
	NotAfter time.Time

	// Err is why the files as they are now are not in force; nil if they are.
	Err error

	// Refused counts the changes of the files that could not be used.
	Refused int64
}

// Status returns how the files stand, in the order in which they were opened.
func (w *Watch) Status() []Status {
	all := make([]Status, len(w.sources))
	for i, s := range w.sources {
		all[i] = *s.status.Load()
	}
	return all
}

// Warnings returns what is wrong with files that can be used nonetheless, a line for
// each.
func (w *Watch) Warnings() (lines []string) {
	for _, s := range w.sources {
		lines = append(lines, s.warnings...)
	}
	return lines
}

// A reading is what files hold.
type reading struct {
	validity
	use func() // puts it in force
}

// A source is files that are of use together alone.
type source struct {
	// Set when opened, read-only afterwards.
	files    []File
	parse    func(contents [][]byte) (reading, error)
	warnings []string

	// Owned by the watch. Each state is a digest of the files, or why they cannot be read.
	inForce  string
	seen     string // by the last look
	settled  string // that two looks saw
	validity        // of what is in force
	expired  bool   // was logged

	status atomic.Pointer[Status]
}

// open reads files for the first time. Expired certificates are used, with a warning: handshakes fail with a clear error,
// and a new file may come.
func (w *Watch) open(parse func([][]byte) (reading, error), files ...File) error {
	s := &source{files: files, parse: parse}
	contents, err := s.read()
	if err != nil {
		return err
	}
	r, err := parse(contents)
	if err != nil {
		return err
	}
	now := time.Now()
	if err := r.check(now); err != nil {
		s.warnings = append(s.warnings, err.Error())
		s.expired = true
	}
	s.inForce = state(contents, nil)
	s.seen, s.settled = s.inForce, s.inForce
	s.use(r, now)
	w.sources = append(w.sources, s)
	return nil
}

// File opens a file of another kind. parse returns a function that puts its content in use, now and after changes.
func (w *Watch) File(f File, parse func(content []byte) (use func(), err error)) error {
	return w.open(func(contents [][]byte) (reading, error) {
		use, err := parse(contents[0])
		if err != nil {
			return reading{}, f.wrap(err)
		}
		return reading{use: use}, nil
	}, f)
}

// use puts in force what was read.
func (s *source) use(r reading, now time.Time) {
	r.use()
	s.validity = r.validity
	status := Status{Files: s.files, LoadedAt: now, NotAfter: r.notAfter}
	if before := s.status.Load(); before != nil {
		status.Refused = before.Refused
	}
	s.status.Store(&status)
}

// look reads the files, and puts in force what has changed.
func (s *source) look(now time.Time, log *slog.Logger) {
	s.tellExpired(now, log)
	contents, err := s.read()
	found := state(contents, err)
	if found != s.seen {
		s.seen = found
		return
	}
	if found == s.settled {
		return
	}
	s.settled = found
	if found == s.inForce { // it had changed, and the change was taken back
		s.fail(nil)
		return
	}
	var r reading
	if err == nil {
		r, err = s.parse(contents)
	}
	if err == nil {
		err = r.check(now)
	}
	if err != nil {
		s.fail(err)
		log.Warn("credential file rejected; the previous content stays in force", s.attr(), slog.Any("err", err))
		return
	}
	s.inForce, s.expired = found, false
	s.use(r, now)
	log.Info("credential file reloaded", s.attr())
}

// tellExpired logs, once, that what is in force has expired.
func (s *source) tellExpired(now time.Time, log *slog.Logger) {
	if s.expired || s.notAfter.IsZero() || !now.After(s.notAfter) {
		return
	}
	s.expired = true
	log.Warn("certificate expired and not replaced", s.attr(), slog.Time("not_after", s.notAfter))
}

// fail records why the files are not in force; nil if they are.
func (s *source) fail(err error) {
	status := *s.status.Load()
	status.Err = err
	if err != nil {
		status.Refused++
	}
	s.status.Store(&status)
}

// attr names the files in the log.
func (s *source) attr() slog.Attr {
	names := make([]string, len(s.files))
	for i, f := range s.files {
		names[i] = f.String()
	}
	return slog.Any("files", names)
}

// read returns what the files hold.
func (s *source) read() (contents [][]byte, err error) {
	for _, f := range s.files {
		content, err := readFile(f.Path)
		if err != nil {
			return nil, f.wrap(err)
		}
		contents = append(contents, content)
	}
	return contents, nil
}

// readFile reads a file that is not too large. It does not wait for one that is no file.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, cause(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, cause(err)
	}
	defer func() { _ = f.Close() }() // was only read
	content, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, cause(err)
	}
	if len(content) > maxFileBytes {
		return nil, fmt.Errorf("it has more than %d bytes", maxFileBytes)
	}
	return content, nil
}

// cause takes the path off an error, which names it already.
func cause(err error) error {
	var pathError *os.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

// state returns a digest of the contents or of the error.
func state(contents [][]byte, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	h := sha256.New()
	for _, content := range contents {
		sum := sha256.Sum256(content)
		_, _ = h.Write(sum[:]) // never fails
	}
	return string(h.Sum(nil))
}

// warnIfExposed adds a warning for each of the files that every user of the system may
// read.
func (w *Watch) warnIfExposed(files ...File) {
	s := w.sources[len(w.sources)-1]
	for _, f := range files {
		if info, err := os.Stat(f.Path); err == nil && info.Mode().Perm()&0o004 != 0 {
			s.warnings = append(s.warnings, fmt.Sprintf("%s: every user may read it (mode %#o): 0400 or 0440 would do", f, info.Mode().Perm()))
		}
	}
}
