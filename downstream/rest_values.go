package downstream

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

// jsonValues returns the number of values in JSON, names of members included, and how deep they are nested. The text
// need not be valid.
func jsonValues(text []byte) (values, nesting int) {
	depth, before := 0, byte(jsonSpace)
	for i := 0; i < len(text); i++ {
		kind := jsonBytes[text[i]]
		switch kind {
		case jsonQuote:
			values++
			i = endOfText(text, i) - 1
		case jsonOpens:
			values++
			depth++
			nesting = max(nesting, depth)
		case jsonCloses:
			depth--
		case jsonWord:
			if before != jsonWord {
				values++
			}
		}
		before = kind
	}
	return values, nesting
}
