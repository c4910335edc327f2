package content

import "google.golang.org/protobuf/encoding/protowire"

// Field numbers of the discovery messages.
const (
	deltaSystemVersion = 1
	deltaResources     = 2
	deltaTypeURL       = 4
	deltaNonce         = 5

	sotwVersion   = 1
	sotwResources = 2
	sotwTypeURL   = 4
	sotwNonce     = 5

	resourceVersion = 1
	resourceAny     = 2
	resourceName    = 3

	anyTypeURL = 1
	anyValue   = 2
)

// AppendDelta appends a resource to the body of a DeltaDiscoveryResponse.
func (k Kind) AppendDelta(body []byte, s Stamp) []byte {
	var resource []byte
	resource = appendString(resource, resourceVersion, Version(s))
	resource = appendBytes(resource, resourceAny, k.any(s))
	resource = appendString(resource, resourceName, Name(k.TypeURL, s.Index))
	return appendBytes(body, deltaResources, resource)
}

// AppendSotW appends a resource to the body of a DiscoveryResponse.
func (k Kind) AppendSotW(body []byte, s Stamp) []byte {
	return appendBytes(body, sotwResources, k.any(s))
}

func (k Kind) any(s Stamp) []byte {
	return appendBytes(appendString(nil, anyTypeURL, k.TypeURL), anyValue, k.Encode(s))
}

// FinishDelta appends what stands beside the resources in a
// DeltaDiscoveryResponse, and FinishSotW in a DiscoveryResponse.
func FinishDelta(body []byte, typeURL, version, nonce string) []byte {
	body = appendString(body, deltaSystemVersion, version)
	body = appendString(body, deltaTypeURL, typeURL)
	return appendString(body, deltaNonce, nonce)
}

// FinishSotW is described with [FinishDelta].
func FinishSotW(body []byte, typeURL, version, nonce string) []byte {
	body = appendString(body, sotwVersion, version)
	body = appendString(body, sotwTypeURL, typeURL)
	return appendString(body, sotwNonce, nonce)
}

func appendString(b []byte, field protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}
