package wire

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

// JSONValues returns how many values there are in a text of JSON, names of members included, and how deep they are nested. It
// does not look whether the text is JSON.
func JSONValues(text []byte) (values, nesting int) {
	depth, before := 0, byte(jsonSpace)
	for i := 0; i < len(text); i++ {
		kind := jsonBytes[text[i]]
		switch kind {
		case jsonQuote:
			values++
			i = endOfString(text, i+1)
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

// endOfString returns where the quote is that ends a string, of which the text begins at i.
func endOfString(text []byte, i int) int {
	for i < len(text) && text[i] != '"' {
		if text[i] == '\\' {
			i++
		}
		i++
	}
	return i
}
