package tlsfiles

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	// lookEvery is the interval between two reads of a file.
	lookEvery = time.Second

	// maxFileBytes is the maximum size of a file, about ten times that of a bundle of all public CAs.
	maxFileBytes = 4 << 20
)

// A File is a file whose path is the value of an environment variable.
type File struct {
	Variable string // name of the variable, TENDER_…
	Path     string // empty if the variable is not set
}

// String returns the file as VARIABLE="path".
func (f File) String() string { return f.Variable + "=" + strconv.Quote(f.Path) }

// wrap returns a [FileError], or one for each of the errors that err joins.
func (f File) wrap(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return &FileError{File: f, Cause: err}
	}
	var errs []error
	for _, err := range joined.Unwrap() {
		errs = append(errs, f.wrap(err))
	}
	return errors.Join(errs...)
}

// A FileError says why a file cannot be used.
type FileError struct {
	File  File
	Cause error
}

// Error returns the file and the cause.
func (e *FileError) Error() string { return fmt.Sprintf("%s: %v", e.File, e.Cause) }

// Unwrap returns the cause.
func (e *FileError) Unwrap() error { return e.Cause }

// A Watch reloads files when they change. All files must be opened before Run is called.
type Watch struct {
	log     *slog.Logger
	sources []*source     // in the order in which they were opened
	reload  chan struct{} // has an element after Reload, until Run reads the files
}

// New returns a watch without files. A nil logger discards all messages.
func New(log *slog.Logger) *Watch {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Watch{log: log, reload: make(chan struct{}, 1)}
}

// Run reads the files once per second, and after Reload, until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	if len(w.sources) == 0 {
		tick.Stop()
	}
	for {
		select {
		case <-tick.C:
			for _, s := range w.sources {
				s.look(time.Now(), w.log)
			}
		case <-w.reload:
			w.readNow(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// Reload makes Run read all files now, and load changed content without a second look. The log has the result. Reload
// does not block. Calls before Run has read the files count once.
func (w *Watch) Reload() {
	select {
	case w.reload <- struct{}{}:
	default:
	}
}

// readNow reads all files for Reload.
func (w *Watch) readNow(now time.Time) {
	var loaded, refused int
	for _, s := range w.sources {
		s.seen = s.state()
		if s.seen != s.inForce {
			s.settled = "" // also if it was refused before
		}
		before := s.inForce
		s.look(now, w.log)
		switch {
		case s.status.Load().Err != nil:
			refused++
		case s.inForce != before:
			loaded++
		}
	}
	w.log.Info("credential files read again on request", slog.Int("changed", loaded), slog.Int("refused", refused),
		slog.Int("unchanged", len(w.sources)-loaded-refused))
}

// A Status is the state of files that are loaded together.
type Status struct {
	Files []File

	// LoadedAt is the time at which the content in force was loaded.
	LoadedAt time.Time

	// NotAfter is the time at which the certificate expires, or the last of several CAs. It is zero for files without
	// certificates.
	NotAfter time.Time

	// Err is the error with which the current content of the files was refused; nil if it is in force.
	Err error

	// Refused is the number of changes of the files that were refused.
	Refused int64
}

// Status returns the state of all files, in the order in which they were opened.
func (w *Watch) Status() []Status {
	all := make([]Status, len(w.sources))
	for i, s := range w.sources {
		all[i] = *s.status.Load()
	}
	return all
}

// Warnings returns one line for each problem that was found when the files were opened and did not prevent their use.
func (w *Watch) Warnings() (lines []string) {
	for _, s := range w.sources {
		lines = append(lines, s.warnings...)
	}
	return lines
}

// A reading is the parsed content of files.
type reading struct {
	validity
	use func() // puts the content in force
}

// A source is one file, or several that are loaded together, such as a certificate and its key.
type source struct {
	// Set when opened, read-only afterwards.
	files    []File
	parse    func(contents [][]byte) (reading, error)
	warnings []string

	// Owned by the goroutine of Run once the files are open. The strings are results of the function state.
	inForce  string // state of the content in force
	seen     string // state at the last look
	settled  string // last state that two consecutive looks found
	validity        // of the content in force
	expired  bool   // the expiry of the content in force was already logged

	status atomic.Pointer[Status] // never nil once the files are open
}

// open reads and parses files for the first time. The error has that of each file: parse is called with nil for the
// content of an unreadable file, unless no file is readable. An expired certificate is used with a warning: handshakes
// fail with a clear error, and the file may be replaced later.
func (w *Watch) open(parse func([][]byte) (reading, error), files ...File) error {
	s := &source{files: files, parse: parse}
	contents, err := s.read()
	var r reading
	if slices.ContainsFunc(contents, func(content []byte) bool { return content != nil }) {
		var invalid error
		r, invalid = parse(contents)
		err = errors.Join(err, invalid)
	}
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

// File opens a file of any other format. parse is called with its content, now and after each change, and returns a
// function that puts the content in force. It must not be called after [Watch.Run].
func (w *Watch) File(f File, parse func(content []byte) (use func(), err error)) error {
	return w.open(func(contents [][]byte) (reading, error) {
		use, err := parse(contents[0])
		if err != nil {
			return reading{}, f.wrap(err)
		}
		return reading{use: use}, nil
	}, f)
}

// use puts a reading in force and clears the error of the status.
func (s *source) use(r reading, now time.Time) {
	r.use()
	s.validity = r.validity
	status := Status{Files: s.files, LoadedAt: now, NotAfter: r.notAfter}
	if before := s.status.Load(); before != nil {
		status.Refused = before.Refused
	}
	s.status.Store(&status)
}

// look reads the files and loads their content if it has changed and is the same as at the last look.
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
	if found == s.inForce { // the change was reverted
		s.fail(nil)
		log.Info("credential file has its previous content again", s.attr())
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
		log.Warn("credential file refused; the previous content stays in use", s.attr(), slog.Any("err", err))
		return
	}
	s.inForce, s.expired = found, false
	s.use(r, now)
	log.Info("credential file reloaded", s.attr())
}

// state reads the files and returns their state.
func (s *source) state() string { return state(s.read()) }

// tellExpired logs once that the certificate in force has expired.
func (s *source) tellExpired(now time.Time, log *slog.Logger) {
	if s.expired || s.notAfter.IsZero() || !now.After(s.notAfter) {
		return
	}
	s.expired = true
	log.Warn("certificate expired and not replaced", s.attr(), slog.Time("not_after", s.notAfter))
}

// fail sets the error of the status, and counts it. A nil error clears it.
func (s *source) fail(err error) {
	status := *s.status.Load()
	status.Err = err
	if err != nil {
		status.Refused++
	}
	s.status.Store(&status)
}

// attr returns the log attribute with the variables and paths of the files.
func (s *source) attr() slog.Attr {
	names := make([]string, len(s.files))
	for i, f := range s.files {
		names[i] = f.String()
	}
	return slog.Any("files", names)
}

// read returns the contents of the files, in order. That of an unreadable file is nil.
func (s *source) read() (contents [][]byte, err error) {
	var errs []error
	for _, f := range s.files {
		content, err := readFile(f.Path)
		if err != nil {
			errs = append(errs, f.wrap(err))
		}
		contents = append(contents, content)
	}
	return contents, errors.Join(errs...)
}

// readFile returns the content of a regular file of at most maxFileBytes. It does not open a named pipe, which would
// block.
func readFile(path string) ([]byte, error) {
	if path == "" {
		return nil, errors.New("it is not set")
	}
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
	defer func() { _ = f.Close() }() // the file was only read
	content, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, cause(err)
	}
	if len(content) > maxFileBytes {
		return nil, fmt.Errorf("it has more than %d bytes", maxFileBytes)
	}
	return content, nil
}

// cause returns an error without the path, since File.wrap adds the path.
func cause(err error) error {
	var pathError *os.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

// state returns a digest of the contents, or the text of the error, for comparison with other states.
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

// warnIfExposed adds a warning for each file that all users of the system may read. The files must belong to the source
// that was opened last.
func (w *Watch) warnIfExposed(files ...File) {
	s := w.sources[len(w.sources)-1]
	for _, f := range files {
		if info, err := os.Stat(f.Path); err == nil && info.Mode().Perm()&0o004 != 0 {
			s.warnings = append(s.warnings, fmt.Sprintf("%s: every user may read it (mode %#o): 0400 or 0440 would do", f, info.Mode().Perm()))
		}
	}
}
