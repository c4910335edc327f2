package transport

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// responseFields are the header fields at the start of each response stream, and responseHeaders their encoding.
var (
	responseFields  = []string{":status", "200", "content-type", "application/grpc"}
	responseHeaders = encode(responseFields...)
)

// encode encodes header fields without the dynamic table, so that all connections can share a block. pairs alternates
// names and values.
func encode(pairs ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSizeLimit(0)
	for i := 0; i < len(pairs); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}) // writes to memory do not fail
	}
	return b.Bytes()
}

// trailers returns the header block that ends a stream: others, followed by the status.
func trailers(e Error, others ...string) []byte {
	fields := append(slices.Clone(others), "grpc-status", strconv.Itoa(e.Code))
	if e.Message != "" {
		fields = append(fields, "grpc-message", percent(e.Message))
	}
	return encode(fields...)
}

// percent percent-encodes a status message as gRPC requires.
func percent(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// isGRPC reports whether a content type is application/grpc, with any suffix or parameters.
func isGRPC(contentType string) bool {
	rest, found := strings.CutPrefix(contentType, "application/grpc")
	return found && (rest == "" || rest[0] == '+' || rest[0] == ';')
}
