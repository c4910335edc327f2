package snapshot

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// bundled returns an encoded bundle with the snapshots of two groups and a freeze.
func bundled(t testing.TB) []byte {
	t.Helper()
	b := Bundle{Decisions: Decisions{Freezes: []Freeze{{Origin: "default", By: "eve", Since: time.Unix(1, 0).UTC()}}}}
	for _, group := range []string{"a", "b"} {
		b.Snapshots = append(b.Snapshots, &cache.Snapshot{
			Header: cache.Header{Origin: "default", Targets: []string{"o:1"}, Group: group, Created: time.Unix(2, 0)},
			Target: strings.Repeat("target ", 1000),
		})
	}
	var out bytes.Buffer
	check.OK(t, b.Encode(&out))
	return out.Bytes()
}

// TestBundle: a bundle is decoded as it was encoded.
func TestBundle(t *testing.T) {
	b, err := DecodeBundle(bytes.NewReader(bundled(t)), 1<<20)
	if err != nil || len(b.Snapshots) != 2 || b.Snapshots[1].Group != "b" || len(b.Snapshots[1].Target) != 7000 {
		t.Fatalf("decoded %+v, error %v", b, err)
	}
	want := Decisions{Freezes: []Freeze{{Origin: "default", By: "eve", Since: time.Unix(1, 0).UTC()}}}
	if diff := cmp.Diff(want, b.Decisions); diff != "" {
		t.Errorf("decisions (-want +got):\n%s", diff)
	}
}

// endlessArchive is an archive with a file of an endless size.
func endlessArchive(t *testing.T, size int64) io.Reader {
	var head bytes.Buffer
	check.OK(t, tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "x.snapshot", Size: size}))
	return io.MultiReader(&head, zeros{})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// TestBadBundles: garbage, damage, and a body over the limit are errors. None of it is used.
func TestBadBundles(t *testing.T) {
	good := bundled(t)
	changed := bytes.Clone(good)
	changed[len(changed)/2] ^= 1
	for name, tt := range map[string]struct {
		of    io.Reader
		limit int64
		want  error // nil for any
	}{
		"empty":        {strings.NewReader(""), 1 << 20, nil},
		"text":         {strings.NewReader("<html>"), 1 << 20, nil},
		"truncated":    {bytes.NewReader(good[:len(good)/2]), 1 << 20, nil},
		"changed":      {bytes.NewReader(changed), 1 << 20, nil},
		"too large":    {bytes.NewReader(good), 2000, ErrTooLarge},
		"zeros":        {zeros{}, 1 << 20, nil},
		"a huge file":  {endlessArchive(t, 1<<40), 1 << 20, ErrTooLarge},
		"another file": {bytes.NewReader(mustArchive(t, "x.snapshot", "#!/bin/sh")), 1 << 20, cache.ErrSnapshotForeign},
		"decisions":    {bytes.NewReader(mustArchive(t, decisionsName, "{")), 1 << 20, nil},
		"a new format": {bytes.NewReader(mustArchive(t, decisionsName, `{"format": 9}`)), 1 << 20, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := DecodeBundle(tt.of, tt.limit)
			if b != nil || err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("decoded %+v, error %v, want %v", b, err, tt.want)
			}
		})
	}
}

func mustArchive(t *testing.T, name, content string) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	check.OK(t, appendFile(w, name, []byte(content)))
	check.OK(t, w.Close())
	return out.Bytes()
}
