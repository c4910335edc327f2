package downstream

// What a byte is outside of the strings of a text of JSON.
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

// jsonValues returns how many values there are in a text of JSON, names of members included, and how deep they are nested. It
// does not look whether the text is JSON.
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
