package rollout

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
)

// mentions reports whether a text has a name that is not only a part of a longer one.
func mentions(text, name string) bool {
	for from := 0; name != ""; {
		at := strings.Index(text[from:], name)
		if at < 0 {
			return false
		}
		before, after := text[:from+at], text[from+at+len(name):]
		last, _ := utf8.DecodeLastRuneInString(before)
		next, size := utf8.DecodeRuneInString(after)
		if next == '.' || next == ':' { // at the end of a sentence, or before the cause
			next, _ = utf8.DecodeRuneInString(after[size:])
		}
		if !inName(last) && !inName(next) {
			return true
		}
		from = len(before) + 1
	}
	return false
}

// inName reports whether a character usually continues a name.
func inName(r rune) bool {
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_-/|.:", r))
}

// wordsOf returns the names that a text mentions, if they have no characters but those for which inName returns true.
func wordsOf(text string) (words []string) {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return !inName(r) }) {
		words = append(words, word)
		if last := word[len(word)-1]; len(word) > 1 && (last == '.' || last == ':') {
			words = append(words, word[:len(word)-1])
		}
	}
	return words
}

// A nameSet has the names that an edition changes of a type or collection. A NACK is looked up in it while a tracker is locked, so
// that does not take longer for more names, except for odd ones.
type nameSet struct {
	all map[string]wire.Digest
	odd []string // names that are no words of wordsOf, without their parameters
}

// newNameSet returns a set of names.
func newNameSet(all map[string]wire.Digest) *nameSet {
	n := &nameSet{all: all}
	for text := range all {
		if name, _ := wire.SplitParameters(text); name != text || isOdd(name) {
			n.odd = append(n.odd, name)
		}
	}
	return n
}

// isMentioned reports whether a text, whose words are those of wordsOf, mentions one of the names.
func (n *nameSet) isMentioned(text string, words []string) bool {
	known := func(word string) bool { _, ok := n.all[word]; return ok }
	return slices.ContainsFunc(words, known) ||
		slices.ContainsFunc(n.odd, func(name string) bool { return mentions(text, name) })
}

// Mentioned returns the names of a type that some changes have, and a text mentions.
func Mentioned(text, typeURL string, changes []downstream.Change) (names []string) {
	words := make(map[string]bool)
	for _, word := range wordsOf(text) {
		words[word] = true
	}
	for _, change := range changes {
		if of, _, _ := cache.SplitCollection(change.Key); of != typeURL {
			continue
		}
		for _, name := range change.Names {
			if base, _ := wire.SplitParameters(name); words[base] || isOdd(base) && mentions(text, base) {
				names = append(names, name)
			}
		}
	}
	return names
}

// isOdd reports whether a name is no word of wordsOf.
func isOdd(name string) bool {
	return strings.ContainsFunc(name, func(r rune) bool { return !inName(r) })
}
