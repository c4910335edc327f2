package serve

import "google.golang.org/protobuf/encoding/protowire"

// A request is what the servers of bytes read of a discovery request.
type request struct {
	typeURL   string
	answer    bool // it has a nonce
	returning bool // it says what the client has
	subscribe []string
}

// readRequest reads a request shallowly. What is malformed reads as its start.
func readRequest(b []byte, sotw bool) (r request) {
	typeURL, nonce := protowire.Number(2), protowire.Number(6)
	if sotw {
		typeURL, nonce = 4, 5
	}
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.BytesType {
			return r // no request has other fields
		}
		value, m := protowire.ConsumeBytes(b[n:])
		if m < 0 {
			return r
		}
		b = b[n+m:]
		switch {
		case field == typeURL:
			r.typeURL = string(value)
		case field == nonce:
			r.answer = true
		case field == 3:
			r.subscribe = append(r.subscribe, string(value))
		case field == 5 && !sotw:
			r.returning = true
		}
	}
	return r
}
