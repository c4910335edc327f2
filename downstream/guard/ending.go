package guard

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An Ending is the reason for the end of a stream.
type Ending int

// The reasons for the end of a stream.
const (
	EndedByClient Ending = iota // the client closed it, or its connection broke
	EndedDrained                // the server drains
	EndedAged                   // the connection reached its maximum age
	EndedStalled                // the client did not read for SendStall
	EndedSilent                 // no request came within FirstRequestTimeout
	EndedCold                   // nothing is cached, and the origin is unreachable
	EndedRefused                // a limit was reached: see Counters.Rejected
	EndedInvalid                // an invalid request
	EndedReturn                 // the client was told to connect again: it fell too far behind, or its node changed
	EndedDenied                 // the client is not authorized: see Counters.Rejected
	EndedChain                  // the client is a relay in a cycle, or the chain of relays is too long
	EndedOther                  // anything else, such as the end of a load report's stream to the origin
	endings
)

var endingNames = [endings]string{
	"client", "drained", "aged", "stalled", "silent", "cold", "refused", "invalid", "return", "denied", "chain", "other",
}

// String returns the value of the reason in metrics.
func (e Ending) String() string { return endingNames[e] }

// A Denial is an action that a client is not authorized for.
type Denial int

// The denied actions.
const (
	DeniedIdentity Denial = iota // to be a client: no rule is about its identity
	DeniedNode                   // to be the node that it says it is
	DeniedType                   // to ask for a type
	DeniedName                   // to ask for a name
	DeniedSecret                 // to ask for a Secret

	// DeniedTrustDomain is to be of a trust domain that the CA of its certificate may not vouch for. The handshake
	// denies that, so the server does not count it.
	DeniedTrustDomain
	denials
)

var denialNames = [denials]string{"identity", "node", "type", "name", "secret", "trust_domain"}

// String returns the value of the denial in metrics.
func (d Denial) String() string { return denialNames[d] }

// An endError ends a stream with the gRPC status that the client is sent.
type endError struct {
	why    Ending
	limit  Limit  // of EndedRefused
	denial Denial // of EndedDenied
	lost   bool   // the client ended the stream, or its connection was lost
	status *status.Status
}

func (e *endError) Error() string { return e.status.String() }

func (e *endError) GRPCStatus() *status.Status { return e.status }

// Ended returns an error that ends a stream for a reason.
func Ended(why Ending, code codes.Code, format string, args ...any) error {
	return &endError{why: why, status: status.Newf(code, format, args...)}
}

// Exceeds returns a RESOURCE_EXHAUSTED error of a client that exceeds a limit. Its message ends with the name of the
// variable.
func Exceeds(l Limit, format string, args ...any) error {
	return ExceedsAs(l, codes.ResourceExhausted, format, args...)
}

// ExceedsAs is [Exceeds] with another code.
func ExceedsAs(l Limit, code codes.Code, format string, args ...any) error {
	return &endError{why: EndedRefused, limit: l, status: status.New(code, fmt.Sprintf(format, args...)+" ("+l.String()+")")}
}

// LimitOf returns the limit that an error of [Exceeds] is about, and whether it is one.
func LimitOf(err error) (Limit, bool) {
	e, ok := errors.AsType[*endError](err)
	if !ok || e.why != EndedRefused {
		return 0, false
	}
	return e.limit, true
}

// Denies returns a PERMISSION_DENIED error of a client that is not authorized.
func Denies(d Denial, format string, args ...any) error {
	return &endError{why: EndedDenied, denial: d, status: status.Newf(codes.PermissionDenied, format, args...)}
}

// DenialOf returns what an error of [Denies] is about, and whether it is one.
func DenialOf(err error) (Denial, bool) {
	e, ok := errors.AsType[*endError](err)
	if !ok || e.why != EndedDenied {
		return 0, false
	}
	return e.denial, true
}

// Status returns the status error that a client is sent for the error that ended its stream.
func Status(err error) error {
	if e, ok := errors.AsType[*endError](err); ok {
		return e.status.Err()
	}
	return err
}

// Lost returns the error that ends a stream for an error of its transport. If that shows that the client ended the stream or
// that the connection was lost, [ByClient] reports so.
func Lost(err error) error {
	if _, own := errors.AsType[*endError](err); own {
		return err
	}
	why, code := endingOf(err), status.Code(err)
	if err != nil && (why == EndedByClient || code == codes.Unavailable || code == codes.DeadlineExceeded) { // the deadline is the client's
		return &endError{why: why, lost: true, status: status.Convert(err)}
	}
	return err
}

// ByClient reports whether a stream ended with err because the client ended it, or because its connection was lost.
func ByClient(err error) bool {
	e, ok := errors.AsType[*endError](err)
	return err == nil || ok && e.lost
}

// ReceiveStatus returns the error that ends a stream whose receiver failed.
func ReceiveStatus(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case status.Code(err) == codes.ResourceExhausted:
		return Exceeds(LimitRequest, "%s", status.Convert(err).Message()) // for the counters: gRPC has told the client
	default:
		return err
	}
}

// endingOf returns the reason in an error that ended a stream.
func endingOf(err error) Ending {
	if e, ok := errors.AsType[*endError](err); ok {
		return e.why
	}
	switch code := status.Code(err); {
	case err == nil, code == codes.Canceled, errors.Is(err, context.Canceled):
		return EndedByClient
	case code == codes.InvalidArgument:
		return EndedInvalid
	case code == codes.FailedPrecondition:
		return EndedChain
	default:
		return EndedOther
	}
}
