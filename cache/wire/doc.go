// Package wire reads and writes xDS messages as encoded bytes.
//
// The relay decodes the envelope of a response (type URL, nonce, resource names and
// versions). It does not decode the resources. It reads single fields of some: the name
// of a SotW resource, the endpoints of an assignment, and the references of clusters and
// listeners. A [Resource] keeps the bytes of the origin's field, so clients receive the same
// bytes, including unknown fields (R004, R127).
//
// Responses to clients share these bytes. A Delta response is a sequence of protobuf
// fields, and encoded protobuf fields can be concatenated: a [Body] is the shared part
// (header, resources, removals), which is encoded once; a [Response] adds the bytes
// that differ between streams, such as the nonce. [Codec] passes both to gRPC as a list
// of shared buffers, so the relay does not marshal a response for each client.
//
// # Reading order
//
// A file uses only identifiers that it or a file before it declares:
//
//	types.go           types of resources, and questions about their rows in package schema
//	field.go           fields of encoded messages, and errors of malformed ones
//	xdstp.go           names and authorities of xdstp
//	variant.go         names with dynamic parameters, and variants of resources
//	error.go           errors that an origin sends for resources
//	node.go            Nodes
//	deflate.go         pieces of responses, which are compressed once
//	resource.go        resources
//	references.go      what resources refer to
//	content.go         content of resources: JSON, secrets, endpoints
//	keys.go            what only one resource of a set can have
//	resource_parse.go  decodes a resource
//	update.go          decodes a response of an origin
//	stored.go          resources on disk
//	response.go        encodes responses to clients
//	gzip.go            compressed responses, and gRPC's compressor
//	latest_names.go    detects lists of names that a client sends again
//	request.go         requests of clients
//	request_decode.go  decodes a request
//	request_repeated.go decodes a request that repeats its names
//	names.go           canonical names in requests, and their parameters
//	codec.go           the codec of gRPC
//	relay.go           gRPC metadata between relays
//
// # Concurrency
//
// A Resource and a complete Body are immutable and can be shared between goroutines.
// A Body that is being built and a Request belong to one goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package wire
