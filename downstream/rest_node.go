package downstream

import (
	"bytes"
	"encoding/json"

	"github.com/xdstender/tender/downstream/guard"
)

// tokensOfValue is the largest number of commas and brackets in JSON for one value of a Node.
const tokensOfValue = 4

// skimNode scans a DiscoveryRequest in JSON before it is decoded. It blanks the extensions of the Node, and returns the
// size of the Node in bytes. Errors: the Node has so many values that decoding it takes too much memory. Invalid JSON is
// no error: the decoder reports it.
func skimNode(body []byte) (size int, err error) {
	s := nodeSkimmer{body: body, from: -1}
	for s.at < len(body) && s.tokens <= tokensOfValue*guard.MaxNodeValues {
		s.next()
	}
	if s.tokens > tokensOfValue*guard.MaxNodeValues {
		return 0, guard.TooManyValues()
	}
	return s.size, nil
}

// A nodeSkimmer scans a request in JSON.
type nodeSkimmer struct {
	body   []byte
	at     int
	depth  int // brackets that are open
	from   int // where the Node begins; negative outside of it
	size   int // of the Node so far
	tokens int // commas and brackets in it
}

func (s *nodeSkimmer) next() {
	c := s.body[s.at]
	if c == '"' {
		s.text()
		return
	}
	s.at++
	switch c {
	case '{', '[':
		s.depth++
	case '}', ']':
		s.depth--
	}
	inside := s.from >= 0
	switch {
	case inside && s.depth <= 1 && (c == ',' || s.depth < 1): // what follows is another member, or nothing
		s.size += s.at - 1 - s.from
		s.from = -1
	case inside && (c == ',' || c == '{' || c == '['):
		s.tokens++
	}
}

// text skips a string. After the key of the Node, the Node begins; after the key of its extensions, they are blanked.
func (s *nodeSkimmer) text() {
	begin := s.at
	s.at = endOfText(s.body, begin)
	key := s.body[begin:s.at]
	after := skipBlanks(s.body, s.at)
	if after == len(s.body) || s.body[after] != ':' {
		return
	}
	s.at = after + 1
	switch {
	case s.depth == 1 && isKey(key, "node"):
		s.from = s.at
	case s.depth == 2 && s.from >= 0 && isKey(key, "extensions"):
		s.at = skipBlanks(s.body, s.at)
		s.blank()
	}
}

// blank empties the list that begins here.
func (s *nodeSkimmer) blank() {
	begin, depth := s.at, 0
	if begin == len(s.body) || s.body[begin] != '[' {
		return // invalid, which the decoder reports
	}
	for at := begin; at < len(s.body); {
		switch s.body[at] {
		case '"':
			at = endOfText(s.body, at)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if at++; depth == 0 {
			copy(s.body[begin:at], "[]")
			copy(s.body[begin+2:at], bytes.Repeat([]byte{' '}, at-begin-2))
			s.at = at
			return
		}
	}
}

// endOfText returns the end of the string that begins at an index.
func endOfText(body []byte, at int) int {
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

func skipBlanks(body []byte, at int) int {
	for at < len(body) && (body[at] == ' ' || body[at] == '\t' || body[at] == '\n' || body[at] == '\r') {
		at++
	}
	return at
}

// isKey reports whether a JSON string is a text.
func isKey(quoted []byte, text string) bool {
	if !bytes.ContainsRune(quoted, '\\') {
		return len(quoted) == len(text)+2 && string(quoted[1:len(quoted)-1]) == text
	}
	var key string
	return json.Unmarshal(quoted, &key) == nil && key == text
}
