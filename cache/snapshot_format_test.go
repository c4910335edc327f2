package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire"
)

// sealSnapshot returns a snapshot file with these fields and a valid checksum.
func sealSnapshot(version uint32, fields []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte(snapshotMagic), version)
	b = append(b, fields...)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// TestB42_InvalidSnapshotsAreRefused, each with an error that gives the reason.
func TestB42_InvalidSnapshotsAreRefused(t *testing.T) {
	entry := appendText(nil, fieldMember, "")
	tests := []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, ErrSnapshotForeign},
		{"another file", []byte("#!/bin/sh\nexit 1\n"), ErrSnapshotForeign},
		{"truncated magic", []byte(snapshotMagic[:5]), ErrSnapshotDamaged},
		{"zeroes", make([]byte, 4096), ErrSnapshotForeign},
		{"a newer version", sealSnapshot(snapshotVersion+1, nil), ErrSnapshotVersion},
		{"an older version", sealSnapshot(0, nil), ErrSnapshotVersion},
		{"an entry before its type", sealSnapshot(snapshotVersion, entry), ErrSnapshotDamaged},
		{"an absent name before its type", sealSnapshot(snapshotVersion, appendText(nil, fieldAbsent, "a")),
			ErrSnapshotDamaged},
		{"a change that waits before its type", sealSnapshot(snapshotVersion, appendText(nil, fieldWaiting, "")), ErrSnapshotDamaged},
		{"a change that waits with a damaged resource", sealSnapshot(snapshotVersion,
			appendText(appendText(nil, fieldType, ""), fieldWaiting, string(appendText(nil, waitingResource, "\xff")))), ErrSnapshotDamaged},
		{"a former resource that is damaged", sealSnapshot(snapshotVersion, appendText(appendText(nil, fieldGeneration, ""),
			fieldFormer, string(appendText(nil, formerResource, "\xff")))), ErrSnapshotDamaged},
		{"an absent name that is not UTF-8",
			sealSnapshot(snapshotVersion, appendText(appendText(nil, fieldType, ""), fieldAbsent, "\xfe")), ErrSnapshotDamaged},
		{"entry without a resource", sealSnapshot(snapshotVersion, append(appendText(nil, fieldType, ""), entry...)),
			ErrSnapshotDamaged},
		{"former contents of half a mark", sealSnapshot(snapshotVersion, appendText(nil, fieldType,
			string(appendText(nil, typePast, "0123456789")))), ErrSnapshotDamaged},
		{"more former contents than are stored", sealSnapshot(snapshotVersion, append(appendText(nil, fieldType, ""),
			appendText(nil, fieldRemoval, string(appendText(nil, removalPast, strings.Repeat("x", 8+4*(maxFormer+1)))))...)),
			ErrSnapshotDamaged},
		{"truncated field", sealSnapshot(snapshotVersion, []byte{10, 9}), ErrSnapshotDamaged},
		{"a bad tag", sealSnapshot(snapshotVersion, []byte{0}), ErrSnapshotDamaged},
		{"text that is not UTF-8",
			sealSnapshot(snapshotVersion,
				appendText(nil, fieldHeader, string(appendText(nil, headerGroup, "\xff")))), ErrSnapshotDamaged},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if s, err := DecodeSnapshot(tt.b); !errors.Is(err, tt.want) || s != nil {
				t.Errorf("DecodeSnapshot = %v, %v, want the error %v", s, err, tt.want)
			}
		})
	}
}

// TestB42_FieldsOfAnotherReleaseAreSkipped: a new field needs no new version of the format.
func TestB42_FieldsOfAnotherReleaseAreSkipped(t *testing.T) {
	b := encodeSnapshot(t, smallSnapshot(t))
	fields := slices.Clone(b[snapshotPreamble : len(b)-sha256.Size])
	fields = appendText(fields, 99, "later")
	fields = protowire.AppendFixed64(protowire.AppendTag(fields, 98, protowire.Fixed64Type), 1)
	s, err := DecodeSnapshot(sealSnapshot(snapshotVersion, fields))
	if err != nil || len(s.Types) != 1 {
		t.Errorf("DecodeSnapshot = %+v, %v, want the snapshot without the unknown fields", s, err)
	}
}

var errFull = errors.New("no space left on device")

// fullWriter fails after this number of bytes.
type fullWriter int

func (f *fullWriter) Write(b []byte) (int, error) {
	if len(b) > int(*f) {
		return int(*f), errFull
	}
	*f -= fullWriter(len(b))
	return len(b), nil
}

func TestB42_EncodeReturnsWriteErrors(t *testing.T) {
	s := smallSnapshot(t)
	for n := range encodeSnapshot(t, s) {
		f := fullWriter(n)
		if err := s.Encode(&f); !errors.Is(err, errFull) {
			t.Fatalf("after %d bytes Encode = %v, want %v", n, err, errFull)
		}
	}
}

// FuzzDecodeSnapshot decodes fields with a valid checksum. DecodeSnapshot must return a snapshot or an error, and a
// view must accept each snapshot.
func FuzzDecodeSnapshot(f *testing.F) {
	b := encodeSnapshot(f, smallSnapshot(f))
	f.Add(b[snapshotPreamble : len(b)-sha256.Size])
	s, _ := newClusterOrigin(f).Snapshot(false)
	s.Types[0].Absent = []string{"a", "b"}
	s.Types[0].Newest = [2]string{"1", "2"}
	s.Types[0].Waiting = []WaitingSnapshot{
		{Name: "a", Resource: newResource(f, wire.ClusterType, "a", "2", aCluster), Since: time.Unix(1, 0)},
		{Kind: ByName, Name: "a", Deadline: time.Unix(2_000_000_000, 0), Earlier: true}, {Kind: ByName, Name: "unknown"},
	}
	b = encodeSnapshot(f, s)
	f.Add(b[snapshotPreamble : len(b)-sha256.Size])
	f.Fuzz(func(t *testing.T, fields []byte) {
		s, err := DecodeSnapshot(sealSnapshot(snapshotVersion, fields))
		if err != nil {
			t.Skip("not a snapshot")
		}
		for cohorts := range 2 {
			v, w := New(Config{Cohorts: cohorts, Waits: func(string) bool { return true }})
			now := time.Unix(1_700_000_000, 0)
			w.Restore(s, now)
			v.Generation()
			for key, of := range w.Waited(s, now) {
				if kind := of.Kind; !v.Generation().Type(key).HasLastGood(kind) || of.Since.After(now) {
					t.Errorf("%s of %s waits since %v in a set of kind %v without state", of.Name, key, of.Since, kind)
				}
			}
		}
		if again := roundTrip(t, s); !bytes.Equal(encodeSnapshot(t, again), encodeSnapshot(t, s)) {
			t.Errorf("encoding of the snapshot decoded from %x differs", fields)
		}
	})
}
