package wire

import (
	"cmp"
	"slices"
	"unicode/utf8"
)

// Referenced are the types of which clients are sent resources again after resources that refer to them (B.16).
var Referenced = [...]string{EndpointType, SecretType, ExtensionConfigType}

// References has the names of resources, by the index of their type in Referenced.
type References [len(Referenced)][]string

// With returns the references and those of a resource. It may modify r, which may be nil, as may the result if there are none.
func (r *References) With(of *Resource) *References {
	for _, ref := range of.References() {
		if r == nil {
			r = new(References)
		}
		at := slices.Index(Referenced[:], ref.TypeURL)
		r[at] = append(r[at], ref.Name)
	}
	return r
}

// Of returns the names of a type.
func (r *References) Of(typeURL string) []string {
	if r == nil {
		return nil
	}
	return r[slices.Index(Referenced[:], typeURL)]
}

// references finds what the resources of a type refer to. A type without an entry refers to nothing that has to be sent again.
var references = map[string]func(r *Resource) []Reference{
	ClusterType:  func(r *Resource) []Reference { return append(discovered(r), endpointsOf(r)...) },
	ListenerType: discovered,
}

// References returns what the resource refers to, without duplicates. It is searched for once. Callers must not modify it.
func (r *Resource) References() []Reference {
	find := references[r.TypeURL]
	if find == nil || r.body == nil {
		return nil
	}
	if found := r.references.Load(); found != nil {
		return *found
	}
	found := &noReferences
	if all := find(r); len(all) > 0 {
		found = &all
	}
	r.references.Store(found)
	return *found
}

// noReferences are the references of a resource without any.
var noReferences []Reference

// endpointsOf returns the reference to the ClusterLoadAssignment of a Cluster that gets its endpoints by EDS.
func endpointsOf(cluster *Resource) []Reference {
	return appendReference(nil, EndpointType, edsName(cluster.Value(), cluster.Name))
}

// appendReference adds a reference, unless it is there already. No client can subscribe to a name without a canonical form.
func appendReference(all []Reference, typeURL, name string) []Reference {
	name, err := CanonicalName(name)
	if r := (Reference{typeURL, name}); err == nil && name != "" && !slices.Contains(all, r) {
		return append(all, r)
	}
	return all
}

// discovered returns the Secrets and extension configurations that a resource refers to. References may be in extensions of any type,
// also of types that the relay does not know, so they are recognised by their form instead of the type of the message:
//
//   - a Secret by an SdsSecretConfig: name=1, sds_config=2;
//   - an extension configuration by a message with a name=1 and an ExtensionConfigSource: config_source=1, type_urls=4.
//
// What only looks like one does no harm: the client does not subscribe to the name.
func discovered(r *Resource) []Reference {
	var s referenceScan
	s.message(r.Value(), maxReferenceDepth)
	return s.found
}

// maxReferenceDepth limits how deeply nested a reference may be, since a message is read once for each level above it.
const maxReferenceDepth = 40

// A referenceScan collects references.
type referenceScan struct{ found []Reference }

// message scans bytes that may be an encoded message.
func (s *referenceScan) message(b []byte, depth int) {
	if depth == 0 || !wellFormed(b) {
		return
	}
	var name []byte
	secret, extension := false, false
	for f := (fieldReader{msg: b}); f.next(); {
		if !f.isBytes(f.num) {
			continue
		}
		if f.num == 1 {
			name = f.value
		}
		secret = secret || f.num == 2 && sameStream(f.value) == fromSameStream
		extension = extension || isExtensionSource(f.value)
		s.message(f.value, depth-1)
	}
	if secret {
		s.add(SecretType, name)
	}
	if extension {
		s.add(ExtensionConfigType, name)
	}
}

// add adds a reference, unless its name is invalid.
func (s *referenceScan) add(typeURL string, name []byte) {
	if utf8.Valid(name) {
		s.found = appendReference(s.found, typeURL, string(name))
	}
}

// isExtensionSource reports whether a message is an ExtensionConfigSource that names the stream itself.
func isExtensionSource(b []byte) bool {
	from, typed := sourceUnknown, false
	f := fieldReader{msg: b}
	for f.next() {
		if typed = typed || f.isBytes(4); f.isBytes(1) {
			from = sameStream(f.value)
		}
	}
	return !f.malformed && typed && from == fromSameStream
}

// A sourceKind says where clients request a resource.
type sourceKind int

const (
	sourceUnknown sourceKind = iota
	fromSameStream
	fromElsewhere
)

// sameStream returns what a ConfigSource names: path=1, api_config_source=2, ads=3 (an empty message), self=5
// (transport_api_version=1), path_config_source=8, all in one oneof.
func sameStream(source []byte) (kind sourceKind) {
	f := fieldReader{msg: source}
	for f.next() {
		switch {
		case f.isBytes(1), f.isBytes(2), f.isBytes(8):
			kind = fromElsewhere
		case f.isBytes(3) && len(f.value) == 0, f.isBytes(5) && len(f.value) <= 2:
			kind = fromSameStream
		}
	}
	if f.malformed {
		return sourceUnknown
	}
	return kind
}

// edsName returns the name of the ClusterLoadAssignment of an encoded Cluster. It returns
// "" if the message is no EDS cluster or is malformed, or if its eds_config names another
// source than the stream of the cluster (ADS or self). Cluster: name=1, type=2 (EDS=3),
// eds_cluster_config=3, cluster_type=38 (in a oneof with type).
func edsName(cluster []byte, name string) string {
	const eds = 3
	isEDS, config := false, edsConfig{}
	f := fieldReader{msg: cluster}
	for f.next() {
		switch {
		case f.isVarint(2):
			isEDS = f.varint() == eds
		case f.isBytes(38):
			isEDS = false
		case f.isBytes(3):
			config.merge(f.value)
		}
	}
	if f.malformed || !isEDS || config.malformed || config.source == fromElsewhere {
		return ""
	}
	return cmp.Or(config.service, name)
}

// An edsConfig holds the decoded fields of an eds_cluster_config.
type edsConfig struct {
	service   string
	source    sourceKind
	malformed bool
}

// merge reads one occurrence of the field: eds_config=1, service_name=2.
func (c *edsConfig) merge(msg []byte) {
	f := fieldReader{msg: msg}
	for f.next() {
		switch {
		case f.isBytes(1):
			c.source = cmp.Or(sameStream(f.value), c.source)
		case f.isBytes(2):
			c.service = string(f.value)
			c.malformed = c.malformed || !utf8.Valid(f.value)
		}
	}
	c.malformed = c.malformed || f.malformed
}
