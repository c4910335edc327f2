package wire

import (
	"fmt"
	"strings"
)

// dumps are how what a message quotes of a resource begins: Envoy adds the whole of it, as
// protobuf text, to what does not validate, and as JSON to what it cannot read.
var dumps = []string{"): ", "{", "-----BEGIN "}

// withoutDump returns the part of a NACK's message that quotes no resource, in which there may
// be private keys (B.36). What a client says in words of its own is its affair.
func withoutDump(message string) string {
	end := len(message)
	for _, dump := range dumps {
		if i := strings.Index(message, dump); i >= 0 {
			end = min(end, i+len(dump)-len(strings.TrimPrefix(dump, ")")))
		}
	}
	if end == len(message) {
		return message
	}
	return fmt.Sprintf("%s … (%d bytes more may have secrets in them)", message[:end], len(message)-end)
}
