package downstream

import (
	"bytes"
	"encoding/json"
)

// jsonOfNode is the largest number of values in JSON for one value of a Node.
const maxJSONPerNodeValue = 5

// A bodyScan is what a scan finds in a DiscoveryRequest in JSON before it is decoded, which takes many times its size.
// Names of members count as values. Invalid JSON is no error: the decoder reports it.
type bodyScan struct {
	body   []byte
	at     int
	depth  int // brackets that are open
	nodeAt int // where the Node begins; negative outside of it

	nodeBytes, nodeValues int // of the Node; its extensions count as one value
	values, nesting       int // of the body
}

// The kinds of bytes of JSON outside of strings.
const (
	jsonWord = iota // of a number, true, false or null
	jsonSpace
	jsonQuote
	jsonOpens
	jsonCloses
)

var jsonBytes = [256]byte{
	' ': jsonSpace, '\t': jsonSpace, '\n': jsonSpace, '\r': jsonSpace, ',': jsonSpace, ':': jsonSpace,
	'"': jsonQuote, '{': jsonOpens, '[': jsonOpens, '}': jsonCloses, ']': jsonCloses,
}

// scanBody scans a body. It blanks the extensions of the Node, which the relay does not read.
func scanBody(body []byte) *bodyScan {
	s := &bodyScan{body: body, nodeAt: -1}
	for before := byte(jsonSpace); s.at < len(body); {
		before = s.scanNext(before)
	}
	return s
}

// next scans a string or a byte that follows one of another kind, and returns its kind.
func (s *bodyScan) scanNext(before byte) (kind byte) {
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
		if before != jsonWord {
			s.count()
		}
	}
	if s.nodeAt >= 0 && (s.depth < 1 || s.depth == 1 && c == ',') { // what follows is another member, or nothing
		s.nodeBytes += s.at - s.nodeAt
		s.nodeAt = -1
	}
	s.at++
	return kind
}

func (s *bodyScan) count() {
	if s.values++; s.nodeAt >= 0 {
		s.nodeValues++
	}
}

// text skips a string. After the key of the Node, the Node begins; after the key of its extensions, they are blanked.
func (s *bodyScan) scanString() {
	begin := s.at
	s.at = endOfString(s.body, begin)
	key, after := s.body[begin:s.at], s.skipSpace()
	if after == len(s.body) || s.body[after] != ':' {
		return
	}
	s.at = after + 1
	switch {
	case s.depth == 1 && isKey(key, "node"):
		s.nodeAt = s.at
	case s.depth == 2 && s.nodeAt >= 0 && isKey(key, "extensions"):
		s.at = s.skipSpace()
		s.blankList()
	}
}

// blank empties the list that begins here.
func (s *bodyScan) blankList() {
	begin, depth := s.at, 0
	if begin == len(s.body) || s.body[begin] != '[' {
		return // invalid, which the decoder reports
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

// afterBlanks returns where the next byte is that is not blank.
func (s *bodyScan) skipSpace() int {
	return len(s.body) - len(bytes.TrimLeft(s.body[s.at:], " \t\n\r"))
}

// endOfText returns the end of the string that begins at an index.
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

// isKey reports whether a JSON string is a text.
func isKey(quoted []byte, text string) bool {
	if !bytes.ContainsRune(quoted, '\\') {
		return len(quoted) == len(text)+2 && string(quoted[1:len(quoted)-1]) == text
	}
	var key string
	return json.Unmarshal(quoted, &key) == nil && key == text
}
