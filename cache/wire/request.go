package wire

import "errors"

// Errors of a client's request: it is malformed or exceeds a limit. Only the stream of the client ends.
var (
	ErrRequest = errors.New("malformed request")
	ErrTooLong = errors.New("dynamic parameters of a name too long")
)

// Limits are the limits on a [Request] and options for decoding it. The zero value has no limits.
type Limits struct {
	// MaxNames limits the length of each list of names, before memory is allocated for the list: each entry takes more
	// memory than it has encoded bytes. Further entries are skipped. MaxNameBytes limits the total size of the dynamic
	// parameters of one resource locator, in bytes. Zero means no limit.
	MaxNames, MaxNameBytes int

	// MaxNodeBytes limits the size of the Node as received: for a larger Node, only NodeBytes is set. Zero means no
	// limit.
	MaxNodeBytes int

	// Parameters adds the dynamic parameters of resource locators to their names, as [WithParameters] does (R120).
	// Otherwise they are ignored.
	Parameters bool

	// Latest skips the names of a SotW request that are equal to those of the previous request for the type; see
	// Repeated. If nil, all names are decoded.
	Latest *LatestNames

	// MaxReportBytes limits the size of a report of the clients of a relay: of a larger one, only HasReport is set. Zero
	// ignores reports.
	MaxReportBytes int

	// Memory is charged for the memory that a request takes in addition to its encoded bytes, before the memory is
	// allocated. If nil, nothing is charged.
	Memory Memory
}

// Memory is a limit on memory.
type Memory interface {
	// Hold charges the bytes, or returns an error that explains why they may not be allocated.
	Hold(bytes int) error
}

// A Request has the fields of a DiscoveryRequest or DeltaDiscoveryRequest that the relay uses. The caller sets Delta
// and the limits before it receives a message.
type Request struct {
	Limits

	Delta bool

	// Size is the number of bytes charged for the request: the size of its gRPC frame plus the bytes charged to Memory.
	// [Codec] sets it.
	Size int

	TypeURL string
	Nonce   string
	Version string // SotW: version_info

	// Node is the encoded Node without its extensions, nil if the request has none. NodeBytes is its size with the
	// extensions. Only the first request of a stream needs it (R017).
	Node      []byte
	NodeBytes int

	// Subscribe has the names to subscribe to (Delta), or all names of the subscription (SotW). It may contain
	// duplicates. Names may be parts of larger strings: clone a name before storing it.
	Subscribe   []string
	Unsubscribe []string // Delta

	// InitialVersions are the resources that a reconnecting Delta client already has: name to version (R085).
	InitialVersions map[string]string

	// Skipped is the number of entries of all lists that were skipped because of MaxNames.
	Skipped int

	versions int // entries read into InitialVersions; several may have the same name

	// Rejected reports a NACK. ErrorCode and ErrorMessage are its error (R029); quoted resources are cut from the
	// message.
	Rejected     bool
	ErrorCode    int32
	ErrorMessage string

	// HasReport reports that the request has a report of the clients of a relay (package tier), and nothing else counts.
	// Report is nil if it is too large.
	HasReport bool
	Report    []byte

	// NamesSum is a hash of the encoded names of a SotW request, zero if there are none. Envoy repeats all names in each
	// ACK: if the sums are equal, the names are too. Repeated reports that Subscribe was left empty for that reason.
	NamesSum uint64
	Repeated bool

	// Err is set by [Codec] if the message was not a valid request. It is not returned by the codec, because gRPC would
	// report it to the client as an internal error.
	Err error
}

// Clear resets r to its state before a message was received: Delta and the limits remain.
func (r *Request) Clear() {
	limits, delta := r.Limits, r.Delta
	*r = Request{} // a literal with fields would need space on the stack of the receiving goroutine of each stream
	r.Limits, r.Delta = limits, delta
}

// Hold implements [Memory]: it charges r.Memory and adds the bytes to r.Size.
func (r *Request) Hold(bytes int) error {
	if r.Memory == nil || bytes <= 0 {
		return nil
	}
	if err := r.Memory.Hold(bytes); err != nil {
		return err
	}
	r.Size += bytes
	return nil
}
