// Package wire holds xDS messages in the form they travel: bytes.
//
// The relay parses the envelope of a response (type URL, nonce, resource names and
// versions) and never the resources inside it, but for the name that a SotW origin
// gives in no other place. A [Resource] keeps the origin's own field bytes, so what
// a client below receives is byte for byte what the origin sent, unknown fields
// included (R004, R127).
//
// The way down uses the same bytes. A Delta response is a sequence of protobuf
// fields, and protobuf fields may be concatenated: a [Body] is the shared part
// (header, resources, removals), encoded once; a [Response] adds the few bytes
// that belong to one stream, its nonce. [Codec] hands both to gRPC as a list of
// shared pieces, so no client costs a marshal of its own.
//
// # Reading order
//
// Each file uses those before it, except for errors: types, field, xdstp, variant, error, node; resource, content, resource_parse,
// update, stored; response; inflate, request, codec; relay.
//
// # Concurrency properties
//
// A Resource and a finished Body are immutable and safe to share between any
// number of goroutines. Builders and requests belong to one goroutine.
//
// It is no stable API: programs that embed Tender use package relay.
package wire
