package snapshot

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/xdstender/tender/cache"
)

// A Bundle is the state that a relay sends to a peer: the snapshots of its views, and the decisions of operators.
type Bundle struct {
	Decisions Decisions
	Snapshots []*cache.Snapshot
}

// A Bundle is encoded as a tar archive with the files of a Dir: the snapshots, and then decisions.json. An archive without
// that is truncated.

// Encode writes the bundle in the format that [DecodeBundle] reads.
func (b *Bundle) Encode(w io.Writer) error {
	archive := tar.NewWriter(w)
	var encoded bytes.Buffer // an archive has the size of a file before its content
	for _, s := range b.Snapshots {
		encoded.Reset()
		err := s.Encode(&encoded)
		if err == nil {
			err = appendFile(archive, nameOf(&s.Header), encoded.Bytes())
		}
		if err != nil {
			return fmt.Errorf("encode bundle: %w", err)
		}
	}
	text, err := json.Marshal(file{decisionsFormat, b.Decisions})
	if err == nil {
		err = appendFile(archive, decisionsName, text)
	}
	if err = errors.Join(err, archive.Close()); err != nil {
		return fmt.Errorf("encode bundle: %w", err)
	}
	return nil
}

// appendFile adds a file to an archive.
func appendFile(archive *tar.Writer, name string, content []byte) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(fileMode), Size: int64(len(content))}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}

// ErrTooLarge is the error of a bundle that exceeds the limit of [DecodeBundle].
var ErrTooLarge = errors.New("the bundle is too large")

// DecodeBundle reads a bundle of at most a number of bytes. It returns an error if any part of it is damaged. The caller
// must check the headers of the snapshots.
func DecodeBundle(r io.Reader, limit int64) (*Bundle, error) {
	limited := &io.LimitedReader{R: r, N: limit}
	archive, b := tar.NewReader(limited), new(Bundle)
	for whole := false; !whole; {
		header, err := archive.Next()
		if err == nil {
			whole = header.Name == decisionsName
			err = b.readFile(header, archive)
		}
		switch {
		case err != nil && limited.N == 0:
			err = ErrTooLarge
		case errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, fmt.Errorf("decode bundle: %w", err)
		}
	}
	return b, nil
}

// readFile reads a file of an archive.
func (b *Bundle) readFile(header *tar.Header, archive io.Reader) error {
	content, err := io.ReadAll(archive)
	if err != nil {
		return err
	}
	if header.Name == decisionsName {
		var read file
		if err := json.Unmarshal(content, &read); err != nil {
			return fmt.Errorf("%s: %w", decisionsName, err)
		}
		if read.Format != decisionsFormat {
			return fmt.Errorf("%s: format %d, this relay reads format %d", decisionsName, read.Format, decisionsFormat)
		}
		b.Decisions = read.Decisions
		return nil
	}
	s, err := cache.DecodeSnapshot(content)
	if err != nil {
		return fmt.Errorf("%.64q: %w", header.Name, err)
	}
	b.Snapshots = append(b.Snapshots, s)
	return nil
}

// CheckAge returns an error if a snapshot of a peer is older than maxAge. The state of a snapshot of the future is of now.
func CheckAge(s *cache.Snapshot, now time.Time, maxAge time.Duration) error {
	if s.Created.After(now) {
		s.Created = now
	}
	if age := now.Sub(s.Created); age > maxAge {
		return fmt.Errorf("%w: its state is %v old", errOld, age.Round(time.Second))
	}
	return nil
}
