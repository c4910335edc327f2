package tier

import (
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// MaxBytes is the maximum size of an encoded report.
const MaxBytes = 16 << 10

// maxCount is the largest number in a report, so that sums do not overflow.
const maxCount = 1 << 30

// maxLag is the longest lag in a report.
const maxLag = 365 * 24 * time.Hour

// Fields of an encoded report, of its counts, and of a client.
const (
	reportNonce  protowire.Number = 1
	reportCounts protowire.Number = 2 // a message; those of all types have no type URL

	countsType      protowire.Number = 1
	countsInSync    protowire.Number = 2
	countsBehind    protowire.Number = 3
	countsRejecting protowire.Number = 4
	countsUnknown   protowire.Number = 5
	countsPending   protowire.Number = 6
	countsClient    protowire.Number = 7 // a message

	clientNode   protowire.Number = 1
	clientVia    protowire.Number = 2
	clientType   protowire.Number = 3
	clientSync   protowire.Number = 4 // index in severity
	clientLag    protowire.Number = 5 // milliseconds
	clientDetail protowire.Number = 6
)

// Encode returns the report in at most MaxBytes. If it has more, it omits errors, and then clients.
func (r *Report) Encode() []byte {
	for _, details := range []bool{true, false} {
		if b := r.encode(MaxWorst, details); len(b) <= MaxBytes {
			return b
		}
	}
	for clients := MaxWorst - 1; clients > 0; clients-- {
		if b := r.encode(clients, false); len(b) <= MaxBytes {
			return b
		}
	}
	return r.encode(0, false)
}

// encode encodes the report with at most so many clients of a type.
func (r *Report) encode(clients int, details bool) (b []byte) {
	b = appendText(b, reportNonce, r.Nonce)
	b = appendMessage(b, reportCounts, r.All.encode(clients, details))
	for i := range r.Types {
		b = appendMessage(b, reportCounts, r.Types[i].encode(clients, details))
	}
	return b
}

func (c *Counts) encode(clients int, details bool) (b []byte) {
	b = appendText(b, countsType, c.TypeURL)
	b = appendNumber(b, countsInSync, min(c.InSync, maxCount))
	b = appendNumber(b, countsBehind, min(c.Behind, maxCount))
	b = appendNumber(b, countsRejecting, min(c.Rejecting, maxCount))
	b = appendNumber(b, countsUnknown, min(c.Unknown, maxCount))
	b = appendNumber(b, countsPending, min(c.Pending, maxCount))
	for i := range c.Worst[:min(len(c.Worst), clients)] {
		b = appendMessage(b, countsClient, c.Worst[i].encode(details))
	}
	return b
}

func (c *Client) encode(details bool) (b []byte) {
	b = appendText(b, clientNode, c.Node)
	for _, relay := range c.Via {
		b = appendText(b, clientVia, cut(relay))
	}
	b = appendText(b, clientType, c.TypeURL)
	b = appendNumber(b, clientSync, slices.Index(severity, c.Sync))
	b = appendNumber(b, clientLag, int(min(max(c.Lag, 0), maxLag)/time.Millisecond))
	if details {
		b = appendText(b, clientDetail, c.Detail)
	}
	return b
}

func appendText(b []byte, num protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), text)
}

func appendNumber(b []byte, num protowire.Number, n int) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), uint64(n))
}

func appendMessage(b []byte, num protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), message)
}
