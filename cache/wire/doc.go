// Package wire reads and writes xDS messages as encoded bytes.
//
// The relay decodes the envelope of a response (type URL, nonce, resource names and
// versions). It does not decode the resources, except where a SotW resource holds the
// only copy of its name. A [Resource] keeps the bytes of the origin's field, so clients
// receive the same bytes, including unknown fields (R004, R127).
//
// Responses to clients share these bytes. A Delta response is a sequence of protobuf
// fields, and encoded protobuf fields can be concatenated: a [Body] is the shared part
// (header, resources, removals), which is encoded once; a [Response] adds the bytes
// that differ between streams, such as the nonce. [Codec] passes both to gRPC as a list
// of shared buffers, so the relay does not marshal a response for each client.
//
// # Reading order
//
// Each file uses only the files before it, except for errors: types, field, xdstp,
// variant, error, node; resource, content, resource_parse, update, stored; response;
// inflate, latest_names, request, request_decode, names, codec; relay.
//
// # Concurrency
//
// A Resource and a complete Body are immutable and can be shared between goroutines.
// A Body that is being built and a Request belong to one goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package wire
