package downstream

import (
	"bytes"
	"encoding/json"
)

// maxJSONPerNodeValue is the largest number of JSON values in the encoding of one value of a Node.
const maxJSONPerNodeValue = 5

// A bodyScan scans a DiscoveryRequest in JSON before it is decoded, because decoding takes many times the memory of the
// body. Keys of objects count as values. The scan ignores invalid JSON, which the decoder rejects.
type bodyScan struct {
	body   []byte
	at     int // index of the next byte
	depth  int // open brackets
	nodeAt int // index where the Node starts; negative outside the Node

	nodeBytes, nodeValues int // size of the Node; its extensions count as one value
	values, nesting       int // size of the body
}

// The kinds of bytes in JSON outside strings.
const (
	jsonWord = iota // part of a number, true, false or null
	jsonSpace
	jsonQuote
	jsonOpens
	jsonCloses
)

var jsonBytes = [256]byte{
	' ': jsonSpace, '\t': jsonSpace, '\n': jsonSpace, '\r': jsonSpace, ',': jsonSpace, ':': jsonSpace,
	'"': jsonQuote, '{': jsonOpens, '[': jsonOpens, '}': jsonCloses, ']': jsonCloses,
}

// scanBody scans a body. It overwrites the extensions of the Node, which the relay does not read, with an empty list.
func scanBody(body []byte) *bodyScan {
	s := &bodyScan{body: body, nodeAt: -1}
	for previous := byte(jsonSpace); s.at < len(body); {
		previous = s.scanNext(previous)
	}
	return s
}

// scanNext scans a string or one byte, and returns its kind. It is passed the kind of the previous byte.
func (s *bodyScan) scanNext(previous byte) (kind byte) {
	c := s.body[s.at]
	switch kind = jsonBytes[c]; kind {
	case jsonQuote:
		s.count()
		s.scanString()
		return kind
	case jsonOpens:
		s.count()
		s.depth++
		s.nesting = max(s.nesting, s.depth)
	case jsonCloses:
		s.depth--
	case jsonWord:
		if previous != jsonWord {
			s.count()
		}
	}
	if s.nodeAt >= 0 && (s.depth < 1 || s.depth == 1 && c == ',') { // the Node ends here
		s.nodeBytes += s.at - s.nodeAt
		s.nodeAt = -1
	}
	s.at++
	return kind
}

// count counts a value.
func (s *bodyScan) count() {
	if s.values++; s.nodeAt >= 0 {
		s.nodeValues++
	}
}

// scanString skips a string. If it is the key of the Node, it also skips the colon, and the Node starts there. If it is
// the key of the Node's extensions, it overwrites their list.
func (s *bodyScan) scanString() {
	begin := s.at
	s.at = endOfString(s.body, begin)
	key, next := s.body[begin:s.at], s.skipSpace()
	if next == len(s.body) || s.body[next] != ':' {
		return
	}
	s.at = next + 1
	switch {
	case s.depth == 1 && isKey(key, "node"):
		s.nodeAt = s.at
	case s.depth == 2 && s.nodeAt >= 0 && isKey(key, "extensions"):
		s.at = s.skipSpace()
		s.blankList()
	}
}

// blankList overwrites the list that starts at s.at with an empty list and spaces, and skips it.
func (s *bodyScan) blankList() {
	begin, depth := s.at, 0
	if begin == len(s.body) || s.body[begin] != '[' {
		return // invalid; the decoder rejects it
	}
	for at := begin; at < len(s.body); at++ {
		switch jsonBytes[s.body[at]] {
		case jsonQuote:
			at = endOfString(s.body, at) - 1
		case jsonOpens:
			depth++
		case jsonCloses:
			depth--
		}
		if depth == 0 {
			s.count()
			s.nesting = max(s.nesting, s.depth+1)
			s.at = at + 1
			copy(s.body[begin:s.at], append([]byte("[]"), bytes.Repeat([]byte{' '}, s.at-begin-2)...))
			return
		}
	}
}

// skipSpace returns the index of the next byte that is not white space.
func (s *bodyScan) skipSpace() int {
	return len(s.body) - len(bytes.TrimLeft(s.body[s.at:], " \t\n\r"))
}

// endOfString returns the index after the string that starts at an index.
func endOfString(body []byte, at int) int {
	for at++; at < len(body); at++ {
		switch body[at] {
		case '\\':
			at++
		case '"':
			return at + 1
		}
	}
	return len(body)
}

// isKey reports whether a quoted JSON string equals text.
func isKey(quoted []byte, text string) bool {
	if !bytes.ContainsRune(quoted, '\\') {
		return len(quoted) == len(text)+2 && string(quoted[1:len(quoted)-1]) == text
	}
	var key string
	return json.Unmarshal(quoted, &key) == nil && key == text
}
