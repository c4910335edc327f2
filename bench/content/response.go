package content

import "google.golang.org/protobuf/encoding/protowire"

// Field numbers of the discovery messages. DiscoveryResponse and DeltaDiscoveryResponse use the same ones.
const (
	responseVersion = 1
	responseTypeURL = 4
	responseNonce   = 5
	responseRemoved = 6 // Delta only

	resourceVersion = 1
	resourceName    = 3

	anyTypeURL = 1
)

// AppendDelta appends a resource to the body of a DeltaDiscoveryResponse.
func (k Kind) AppendDelta(body []byte, s Stamp) []byte {
	var resource []byte
	resource = appendString(resource, resourceVersion, Version(s))
	resource = appendBytes(resource, k.any(s))
	resource = appendString(resource, resourceName, Name(k.TypeURL, s.Index))
	return appendBytes(body, resource)
}

// AppendSotW appends a resource to the body of a DiscoveryResponse.
func (k Kind) AppendSotW(body []byte, s Stamp) []byte {
	return appendBytes(body, k.any(s))
}

// any returns a resource as field 2 of an enclosing message: an encoded google.protobuf.Any.
func (k Kind) any(s Stamp) []byte {
	return appendBytes(appendString(nil, anyTypeURL, k.TypeURL), k.Encode(s))
}

// AppendRemoved appends the removal of a resource to the body of a DeltaDiscoveryResponse.
func (k Kind) AppendRemoved(body []byte, index int) []byte {
	return appendString(body, responseRemoved, Name(k.TypeURL, index))
}

// Finish appends the version, the type URL and the nonce to the body of a response of either variant.
func Finish(body []byte, typeURL, version, nonce string) []byte {
	body = appendString(body, responseVersion, version)
	body = appendString(body, responseTypeURL, typeURL)
	return appendString(body, responseNonce, nonce)
}

func appendString(b []byte, field protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), v)
}

// appendBytes appends v as field 2, the number of every bytes field in this file.
func appendBytes(b, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), v)
}
