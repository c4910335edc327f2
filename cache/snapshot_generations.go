package cache

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire"
)

// A GenerationSnapshot is a generation of what readers saw of a source. The last one is that of the snapshot, and has no
// formers.
type GenerationSnapshot struct {
	Digest                  string    // State.Digest
	Since                   time.Time // when it was first served
	Added, Changed, Removed int       // by it, of the one before
	Formers                 []Former  // what differs from the generation after it
}

// Storable reports whether a former resource may be stored with its content, without which it is of no use. What a snapshot
// stores without its content is asked of the origin again, and the origin does not have former content.
func (f *Former) Storable(sensitive bool) bool {
	r := f.Resource
	return r == nil || !r.ContentDropped() && !r.DoNotCache && r.Intact() && (sensitive || !r.MayBeSensitive())
}

// Fields of a generation, and of a former resource.
const (
	generationDigest  protowire.Number = 1
	generationSince   protowire.Number = 2 // Unix nanoseconds
	generationAdded   protowire.Number = 3
	generationChanged protowire.Number = 4
	generationRemoved protowire.Number = 5

	formerType     protowire.Number = 1
	formerByName   protowire.Number = 2
	formerName     protowire.Number = 3
	formerResource protowire.Number = 4 // left out if there was none
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
	if !f.Deadline.IsZero() {
		b = appendNumber(b, formerDeadline, uint64(f.Deadline.UnixNano()))
	}
	return b
}

// readGeneration reads a generation, or a former resource of the one that came last.
func (s *Snapshot) readGeneration(num protowire.Number, val []byte) error {
	if num == fieldGeneration {
		s.Generations = append(s.Generations, GenerationSnapshot{})
		return eachField(val, s.Generations[len(s.Generations)-1].read)
	}
	if len(s.Generations) == 0 {
		return fmt.Errorf("%w: a former resource without a generation", ErrSnapshotDamaged)
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
			return fmt.Errorf("%w: %w", ErrSnapshotDamaged, err)
		}
	case formerDeadline:
		f.Deadline = time.Unix(0, int64(v))
	}
	return nil
}
