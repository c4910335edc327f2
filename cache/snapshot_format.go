package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire"
)

// Errors from [DecodeSnapshot]. After any of them, the caller starts without a snapshot.
var (
	// ErrSnapshotForeign: the data is not a snapshot.
	ErrSnapshotForeign = errors.New("not a snapshot")
	// ErrSnapshotVersion: the snapshot has another version of the format.
	ErrSnapshotVersion = errors.New("unsupported snapshot version")
	// ErrSnapshotDamaged: the snapshot is damaged or truncated.
	ErrSnapshotDamaged = errors.New("snapshot is damaged or truncated")
)

// A snapshot is stored as a magic text, the version of the format in four bytes (big endian), a series of protobuf
// fields, and the SHA-256 of all these. The first field is the header. Each type is a field, followed by the fields of
// its entries. Each earlier generation is a field, followed by the fields of its formers.
const (
	snapshotMagic   = "tender snapshot\n"
	snapshotVersion = 1

	snapshotPreamble = len(snapshotMagic) + 4
	snapshotLeast    = snapshotPreamble + sha256.Size
)

// Fields of a snapshot, and of the messages in it.
const (
	fieldHeader protowire.Number = 1
	fieldType   protowire.Number = 2
	fieldMember protowire.Number = 3 // an entry of the preceding type's wildcard set
	fieldNamed  protowire.Number = 4 // an entry of the preceding type's set of names
	fieldAbsent protowire.Number = 5 // an absent name of the preceding type; older relays ignore it

	fieldGeneration protowire.Number = 6 // relays before 2026-11-25 ignore it and fieldFormer
	fieldFormer     protowire.Number = 7 // a former resource of the preceding generation

	fieldRemoval protowire.Number = 8 // a recent removal from the preceding type's wildcard set
	fieldWaiting protowire.Number = 9 // a change of the preceding type that waits

	headerOrigin       protowire.Number = 1
	headerTarget       protowire.Number = 2 // repeated
	headerGroup        protowire.Number = 3
	headerNode         protowire.Number = 4
	headerOptions      protowire.Number = 5
	headerCreated      protowire.Number = 6 // Unix seconds
	headerSourceTarget protowire.Number = 7 // Snapshot.Target
	headerIdentifier   protowire.Number = 8
	headerReused       protowire.Number = 9
	headerRolledBack   protowire.Number = 10 // Unix nanoseconds; omitted unless readers are rolled back

	typeKey            protowire.Number = 1
	typeComplete       protowire.Number = 2
	typeMembersSystem  protowire.Number = 3
	typeMembersLimited protowire.Number = 4
	typeNamedSystem    protowire.Number = 5
	typeNamedLimited   protowire.Number = 6
	typeSettled        protowire.Number = 7 // relays before 2026-11-23 ignore it, and the members with it
	typePast           protowire.Number = 8 // former sums of the wildcard set, see appendPast
	typeNewestMembers  protowire.Number = 9 // TypeSnapshot.Newest
	typeNewestNamed    protowire.Number = 10

	entryName         protowire.Number = 1
	entryResource     protowire.Number = 2
	entryDeadline     protowire.Number = 3 // Unix nanoseconds
	entryOtherVersion protowire.Number = 4 // repeated
	entryPast         protowire.Number = 5 // former contents, see appendPast
	entryShadowed     protowire.Number = 6

	removalName protowire.Number = 1
	removalAt   protowire.Number = 2 // Unix nanoseconds
	removalPast protowire.Number = 3 // as entryPast
)

// Encode writes the snapshot in the format that [DecodeSnapshot] reads, with one call of Write for each field.
func (s *Snapshot) Encode(w io.Writer) error {
	e := encoder{w: w, sum: sha256.New()}
	e.write(binary.BigEndian.AppendUint32([]byte(snapshotMagic), snapshotVersion))
	e.field(fieldHeader, s.appendHeader(nil))
	for i := range s.Types {
		t := &s.Types[i]
		e.field(fieldType, t.append(nil))
		e.entries(fieldMember, t.Wildcard.Entries)
		for j := range t.Wildcard.history.recentRemovals {
			e.field(fieldRemoval, t.Wildcard.history.recentRemovals[j].append(nil))
		}
		e.entries(fieldNamed, t.ByName.Entries)
		for _, name := range t.Absent {
			e.field(fieldAbsent, []byte(name))
		}
		for j := range t.Waiting {
			e.entry = t.Waiting[j].append(e.entry[:0])
			e.field(fieldWaiting, e.entry)
		}
	}
	e.generations(s.Generations)
	e.write(e.sum.Sum(nil))
	if e.err != nil {
		return fmt.Errorf("encode snapshot: %w", e.err)
	}
	return nil
}

// An encoder writes fields and computes their checksum. After an error it writes nothing.
type encoder struct {
	w     io.Writer
	sum   hash.Hash // of all bytes written
	err   error     // the first one
	entry []byte    // reused
	out   []byte    // reused
}

func (e *encoder) write(b []byte) {
	if e.err != nil {
		return
	}
	e.sum.Write(b)
	_, e.err = e.w.Write(b)
}

func (e *encoder) field(num protowire.Number, msg []byte) {
	e.out = protowire.AppendBytes(protowire.AppendTag(e.out[:0], num, protowire.BytesType), msg)
	e.write(e.out)
}

func (e *encoder) entries(num protowire.Number, entries []EntrySnapshot) {
	for i := range entries {
		e.entry = entries[i].append(e.entry[:0])
		e.field(num, e.entry)
	}
}

func (s *Snapshot) appendHeader(b []byte) []byte {
	b = appendText(b, headerOrigin, s.Origin)
	for _, target := range s.Targets {
		b = appendText(b, headerTarget, target)
	}
	b = appendText(b, headerGroup, s.Group)
	b = appendText(b, headerNode, string(s.Node))
	b = appendText(b, headerOptions, s.Options)
	b = appendNumber(b, headerCreated, uint64(s.Created.Unix()))
	b = appendText(b, headerSourceTarget, s.Target)
	b = appendText(b, headerIdentifier, s.Identifier)
	b = appendTime(b, headerRolledBack, s.RolledBack)
	return appendBool(b, headerReused, s.Reused)
}

func (t *TypeSnapshot) append(b []byte) []byte {
	b = appendText(b, typeKey, t.Key)
	b = appendBool(b, typeComplete, t.Complete)
	b = appendText(b, typeMembersSystem, t.Wildcard.System)
	b = appendBool(b, typeMembersLimited, t.Wildcard.Limited)
	b = appendText(b, typeNamedSystem, t.ByName.System)
	b = appendBool(b, typeNamedLimited, t.ByName.Limited)
	b = appendBool(b, typeSettled, t.Settled)
	if len(t.Waiting) > 0 {
		b = appendText(b, typeNewestMembers, t.Newest[Wildcard])
		b = appendText(b, typeNewestNamed, t.Newest[ByName])
	}
	return t.Wildcard.history.append(b, typePast)
}

func (e *EntrySnapshot) append(b []byte) []byte {
	b = appendText(b, entryName, e.Name)
	b = appendText(b, entryResource, string(e.Resource.AppendStored(nil)))
	b = appendTime(b, entryDeadline, e.Deadline)
	for _, v := range e.OtherVersions {
		b = appendText(b, entryOtherVersion, v)
	}
	b = appendBool(b, entryShadowed, e.Shadowed)
	return e.past.append(b, entryPast)
}

func (r *pastRemoval) append(b []byte) []byte {
	b = appendTime(appendText(b, removalName, r.name), removalAt, r.at)
	return r.past.append(b, removalPast)
}

// appendTime appends a time in Unix nanoseconds; nothing if it is zero.
func appendTime(b []byte, num protowire.Number, at time.Time) []byte {
	if at.IsZero() {
		return b
	}
	return appendNumber(b, num, uint64(at.UnixNano()))
}

func appendText(b []byte, num protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func appendNumber(b []byte, num protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func appendBool(b []byte, num protowire.Number, v bool) []byte {
	return appendNumber(b, num, protowire.EncodeBool(v))
}

// DecodeSnapshot decodes a snapshot that Encode wrote. The snapshot shares no memory with b.
//
// Errors: [ErrSnapshotForeign], [ErrSnapshotVersion], [ErrSnapshotDamaged].
func DecodeSnapshot(b []byte) (*Snapshot, error) {
	switch {
	case !bytes.HasPrefix(b, []byte(snapshotMagic[:min(len(b), len(snapshotMagic))])) || len(b) == 0:
		return nil, ErrSnapshotForeign
	case len(b) < snapshotLeast:
		return nil, fmt.Errorf("%w: %d bytes", ErrSnapshotDamaged, len(b))
	}
	if v := binary.BigEndian.Uint32(b[len(snapshotMagic):]); v != snapshotVersion {
		return nil, fmt.Errorf("%w: %d; this relay supports %d", ErrSnapshotVersion, v, snapshotVersion)
	}
	content, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if got := sha256.Sum256(content); !bytes.Equal(got[:], sum) {
		return nil, fmt.Errorf("%w: checksum mismatch, %d bytes", ErrSnapshotDamaged, len(b))
	}
	s := new(Snapshot)
	if err := eachField(content[snapshotPreamble:], s.readField); err != nil {
		return nil, err
	}
	return s, nil
}

// eachField calls read with each field of a message: with its bytes, or with its integer value.
func eachField(b []byte, read func(num protowire.Number, val []byte, v uint64) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrSnapshotDamaged, protowire.ParseError(n))
		}
		b = b[n:]
		var val []byte
		var v uint64
		switch typ {
		case protowire.BytesType:
			val, n = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrSnapshotDamaged, protowire.ParseError(n))
		}
		if err := read(num, val, v); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func (s *Snapshot) readField(num protowire.Number, val []byte, _ uint64) error {
	switch num {
	case fieldHeader:
		return eachField(val, s.readHeader)
	case fieldType:
		s.Types = append(s.Types, TypeSnapshot{})
		return eachField(val, s.Types[len(s.Types)-1].read)
	case fieldGeneration, fieldFormer:
		return s.readGeneration(num, val)
	case fieldMember, fieldNamed, fieldAbsent, fieldRemoval, fieldWaiting:
		if len(s.Types) == 0 {
			return fmt.Errorf("%w: entry without a type", ErrSnapshotDamaged)
		}
		return s.Types[len(s.Types)-1].readField(num, val)
	}
	return nil
}

// readField reads a field that follows the type.
func (t *TypeSnapshot) readField(num protowire.Number, val []byte) error {
	switch num {
	case fieldAbsent:
		t.Absent = append(t.Absent, "")
		return readParts(&t.Absent[len(t.Absent)-1], val)
	case fieldRemoval:
		var r pastRemoval
		err := eachField(val, r.read)
		t.Wildcard.history.recentRemovals = append(t.Wildcard.history.recentRemovals, r)
		return err
	case fieldWaiting:
		t.Waiting = append(t.Waiting, WaitingSnapshot{})
		return eachField(val, t.Waiting[len(t.Waiting)-1].read)
	}
	set := &t.Wildcard
	if num == fieldNamed {
		set = &t.ByName
	}
	var e EntrySnapshot
	if err := eachField(val, e.read); err != nil {
		return err
	}
	if e.Resource == nil {
		return fmt.Errorf("%w: entry without a resource", ErrSnapshotDamaged)
	}
	set.Entries = append(set.Entries, e)
	return nil
}

func (s *Snapshot) readHeader(num protowire.Number, val []byte, v uint64) (err error) {
	switch num {
	case headerOrigin:
		return readText(&s.Origin, val)
	case headerTarget:
		var target string
		err = readText(&target, val)
		s.Targets = append(s.Targets, target)
	case headerGroup:
		return readText(&s.Group, val)
	case headerNode:
		s.Node = bytes.Clone(val)
	case headerOptions:
		return readText(&s.Options, val)
	case headerCreated:
		s.Created = time.Unix(int64(v), 0)
	case headerSourceTarget:
		return readText(&s.Target, val)
	case headerIdentifier:
		return readText(&s.Identifier, val)
	case headerReused:
		s.Reused = v != 0
	case headerRolledBack:
		s.RolledBack = time.Unix(0, int64(v))
	}
	return err
}

func (t *TypeSnapshot) read(num protowire.Number, val []byte, v uint64) error {
	switch num {
	case typeKey:
		return readParts(&t.Key, val)
	case typeComplete:
		t.Complete = v != 0
	case typeMembersSystem:
		return readText(&t.Wildcard.System, val)
	case typeMembersLimited:
		t.Wildcard.Limited = v != 0
	case typeNamedSystem:
		return readText(&t.ByName.System, val)
	case typeNamedLimited:
		t.ByName.Limited = v != 0
	case typeSettled:
		t.Settled = v != 0
	case typePast:
		return damaged(t.Wildcard.history.read(val))
	case typeNewestMembers:
		return readText(&t.Newest[Wildcard], val)
	case typeNewestNamed:
		return readText(&t.Newest[ByName], val)
	}
	return nil
}

func (r *pastRemoval) read(num protowire.Number, val []byte, v uint64) error {
	switch num {
	case removalName:
		return readParts(&r.name, val)
	case removalAt:
		r.at = time.Unix(0, int64(v))
	case removalPast:
		r.past = new(past)
		return damaged(r.past.read(val))
	}
	return nil
}

// damaged returns an error of a part of a snapshot as one of the snapshot.
func damaged(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrSnapshotDamaged, err)
}

func (e *EntrySnapshot) read(num protowire.Number, val []byte, v uint64) (err error) {
	switch num {
	case entryName:
		return readParts(&e.Name, val)
	case entryResource:
		if e.Resource, err = wire.ReadStored(val); err != nil {
			return damaged(err)
		}
	case entryDeadline:
		e.Deadline = time.Unix(0, int64(v))
	case entryOtherVersion:
		var version string
		err = readText(&version, val)
		e.OtherVersions = append(e.OtherVersions, version)
	case entryShadowed:
		e.Shadowed = v != 0
	case entryPast:
		e.past = new(past)
		return damaged(e.past.read(val))
	}
	return err
}

// Fields of the message of a change that waits.
const (
	waitingByName   protowire.Number = 1
	waitingName     protowire.Number = 2
	waitingResource protowire.Number = 3 // omitted if it was removed
	waitingDeadline protowire.Number = 4 // Unix nanoseconds
	waitingSince    protowire.Number = 5 // Unix nanoseconds
	waitingEarlier  protowire.Number = 6
)

func (s *WaitingSnapshot) append(b []byte) []byte {
	b = appendText(appendBool(b, waitingByName, s.Kind == ByName), waitingName, s.Name)
	if s.Resource != nil {
		b = appendText(b, waitingResource, string(s.Resource.AppendStored(nil)))
	}
	b = appendTime(appendTime(b, waitingDeadline, s.Deadline), waitingSince, s.Since)
	return appendBool(b, waitingEarlier, s.Earlier)
}

func (s *WaitingSnapshot) read(num protowire.Number, val []byte, v uint64) (err error) {
	switch num {
	case waitingByName:
		if v != 0 {
			s.Kind = ByName
		}
	case waitingName:
		return readParts(&s.Name, val)
	case waitingResource:
		if s.Resource, err = wire.ReadStored(val); err != nil {
			return damaged(err)
		}
	case waitingDeadline:
		s.Deadline = time.Unix(0, int64(v))
	case waitingSince:
		s.Since = time.Unix(0, int64(v))
	case waitingEarlier:
		s.Earlier = v != 0
	}
	return nil
}

// readParts reads a text that may contain wire.Separator: the key of a collection, or a name with parameters.
func readParts(to *string, val []byte) error {
	*to = string(val)
	return readText(new(string), bytes.ReplaceAll(val, []byte(wire.Separator), nil))
}

// readText reads a text. It must be UTF-8, because the relay sends it to clients.
func readText(to *string, val []byte) error {
	if !utf8.Valid(val) {
		return fmt.Errorf("%w: %.256q is not UTF-8", ErrSnapshotDamaged, val)
	}
	*to = string(val)
	return nil
}

// Fields of the messages of a generation and of a former resource.
const (
	generationDigest  protowire.Number = 1
	generationSince   protowire.Number = 2 // Unix nanoseconds
	generationAdded   protowire.Number = 3
	generationChanged protowire.Number = 4
	generationRemoved protowire.Number = 5

	formerType     protowire.Number = 1
	formerByName   protowire.Number = 2
	formerName     protowire.Number = 3
	formerResource protowire.Number = 4 // omitted if there was none
	formerDeadline protowire.Number = 5 // Unix nanoseconds
)

// generations writes earlier generations.
func (e *encoder) generations(all []GenerationSnapshot) {
	for i := range all {
		g := &all[i]
		b := appendText(nil, generationDigest, g.Digest)
		b = appendNumber(b, generationSince, uint64(g.Since.UnixNano()))
		b = appendNumber(b, generationAdded, uint64(g.Added))
		b = appendNumber(b, generationChanged, uint64(g.Changed))
		e.field(fieldGeneration, appendNumber(b, generationRemoved, uint64(g.Removed)))
		for j := range g.Formers {
			e.entry = g.Formers[j].append(e.entry[:0])
			e.field(fieldFormer, e.entry)
		}
	}
}

func (f *Former) append(b []byte) []byte {
	b = appendText(b, formerType, f.Key)
	b = appendBool(b, formerByName, f.Kind == ByName)
	b = appendText(b, formerName, f.Name)
	if f.Resource != nil {
		b = appendText(b, formerResource, string(f.Resource.AppendStored(nil)))
	}
	return appendTime(b, formerDeadline, f.Deadline)
}

// readGeneration reads a generation, or a former resource of the preceding one.
func (s *Snapshot) readGeneration(num protowire.Number, val []byte) error {
	if num == fieldGeneration {
		s.Generations = append(s.Generations, GenerationSnapshot{})
		return eachField(val, s.Generations[len(s.Generations)-1].read)
	}
	if len(s.Generations) == 0 {
		return fmt.Errorf("%w: former resource without a generation", ErrSnapshotDamaged)
	}
	var f Former
	if err := eachField(val, f.read); err != nil {
		return err
	}
	last := &s.Generations[len(s.Generations)-1]
	last.Formers = append(last.Formers, f)
	return nil
}

func (g *GenerationSnapshot) read(num protowire.Number, val []byte, v uint64) error {
	switch num {
	case generationDigest:
		return readText(&g.Digest, val)
	case generationSince:
		g.Since = time.Unix(0, int64(v))
	case generationAdded:
		g.Added = int(v)
	case generationChanged:
		g.Changed = int(v)
	case generationRemoved:
		g.Removed = int(v)
	}
	return nil
}

func (f *Former) read(num protowire.Number, val []byte, v uint64) (err error) {
	switch num {
	case formerType:
		return readParts(&f.Key, val)
	case formerByName:
		if v != 0 {
			f.Kind = ByName
		}
	case formerName:
		return readParts(&f.Name, val)
	case formerResource:
		if f.Resource, err = wire.ReadStored(val); err != nil {
			return damaged(err)
		}
	case formerDeadline:
		f.Deadline = time.Unix(0, int64(v))
	}
	return nil
}
