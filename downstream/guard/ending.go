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
	EndedCold                   // nothing is cached and the origin is unreachable
	EndedRefused                // a limit was reached: see Counters.Causes
	EndedInvalid                // the request was invalid: see Counters.Causes
	EndedReturn                 // the client must connect again: it fell too far behind, or its node changed
	EndedDenied                 // the client is not authorized: see Counters.Causes
	EndedChain                  // the client is a relay in a cycle, or the chain of relays is too long
	EndedOther                  // any other reason, such as the end of the upstream load report stream
	endings
)

var endingNames = [endings]string{
	"client", "drained", "aged", "stalled", "silent", "cold", "refused", "invalid", "return", "denied", "chain", "other",
}

// String returns the value of the reason in metrics.
func (e Ending) String() string { return endingNames[e] }

// An endError ends a stream with a gRPC status.
type endError struct {
	reason Ending
	cause  Cause // if reason is EndedRefused, EndedDenied or EndedInvalid
	lost   bool  // the client ended the stream, or its connection was lost
	status *status.Status
}

func (e *endError) Error() string { return e.status.String() }

func (e *endError) GRPCStatus() *status.Status { return e.status }

// Ended returns an error that ends a stream for a reason.
func Ended(reason Ending, code codes.Code, format string, args ...any) error {
	return &endError{reason: reason, status: status.Newf(code, format, args...)}
}

// Exceeds returns a RESOURCE_EXHAUSTED error for a client that exceeds a limit. Its message ends with the
// limit.
func Exceeds(l Limit, format string, args ...any) error {
	return ExceedsAs(l, codes.ResourceExhausted, format, args...)
}

// ExceedsAs is [Exceeds] with another code.
func ExceedsAs(l Limit, code codes.Code, format string, args ...any) error {
	message := fmt.Sprintf(format, args...) + " (" + l.String() + ")"
	return &endError{reason: EndedRefused, cause: l, status: status.New(code, message)}
}

// LimitOf returns the limit of an error from [Exceeds], and whether err is one.
func LimitOf(err error) (l Limit, is bool) {
	if e, own := errors.AsType[*endError](err); own {
		l, is = e.cause.(Limit)
	}
	return l, is
}

// Denies returns a PERMISSION_DENIED error for a client that is not authorized.
func Denies(d Denial, format string, args ...any) error {
	return &endError{reason: EndedDenied, cause: d, status: status.Newf(codes.PermissionDenied, format, args...)}
}

// DenialOf returns the denied action of an error from [Denies], and whether err is one.
func DenialOf(err error) (d Denial, is bool) {
	if e, own := errors.AsType[*endError](err); own {
		d, is = e.cause.(Denial)
	}
	return d, is
}

// Refuses returns an INVALID_ARGUMENT error for an invalid request.
func Refuses(i Invalid, format string, args ...any) error {
	return &endError{reason: EndedInvalid, cause: i, status: status.Newf(codes.InvalidArgument, format, args...)}
}

// CauseOf returns why the relay refused a client with an error, and whether it did.
func CauseOf(err error) (Cause, bool) {
	if e, own := errors.AsType[*endError](err); own {
		return e.cause, e.cause != nil
	}
	return InvalidOther, err != nil && endingOf(err) == EndedInvalid
}

// Status returns the status error to send to a client for the error that ended its stream.
func Status(err error) error {
	if e, ok := errors.AsType[*endError](err); ok {
		return e.status.Err()
	}
	return err
}

// Lost returns the error that ends a stream because of a transport error. If the client ended the stream or the
// connection was lost, [ByClient] reports true for it.
func Lost(err error) error {
	if _, own := errors.AsType[*endError](err); own {
		return err
	}
	reason, code := endingOf(err), status.Code(err)
	// A DeadlineExceeded is the client's deadline.
	if err != nil && (reason == EndedByClient || code == codes.Unavailable || code == codes.DeadlineExceeded) {
		return &endError{reason: reason, lost: true, status: status.Convert(err)}
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
		return Exceeds(LimitRequest, "%s", status.Convert(err).Message()) // for the counters: gRPC has answered the client
	default:
		return err
	}
}

// endingOf returns the reason of an error that ended a stream.
func endingOf(err error) Ending {
	if e, ok := errors.AsType[*endError](err); ok {
		return e.reason
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
