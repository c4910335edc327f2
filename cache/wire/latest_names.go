package wire

import "slices"

// manyNames is the smallest number of names for which [LatestNames] keeps a hash: fewer names are cheap to decode.
const manyNames = 32

// LatestNames holds a hash of the names in the latest SotW request of a stream for each type, so that repeated names
// are not decoded again: Envoy repeats all names in each ACK. Only the goroutine that receives the requests may use it.
type LatestNames struct{ types []typeNames }

type typeNames struct {
	typeURL string
	sum     uint64
	size    int // of the encoded names, if they follow each other in the request; zero otherwise
}

// repeats reports whether a request for a type has the same names as the previous one, and keeps their hash and size.
func (l *LatestNames) repeats(typeURL []byte, names int, sum uint64, size int) bool {
	at := slices.IndexFunc(l.types, func(n typeNames) bool { return n.typeURL == string(typeURL) })
	many := names >= manyNames
	switch {
	case at < 0 && many:
		l.types = append(l.types, typeNames{string(typeURL), sum, size})
	case at >= 0 && many:
		repeated := l.types[at].sum == sum
		l.types[at].sum, l.types[at].size = sum, size
		return repeated
	case at >= 0:
		l.types = slices.Delete(l.types, at, at+1)
	}
	return false
}
