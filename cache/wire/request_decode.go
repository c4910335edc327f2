package wire

import (
	"fmt"
	"hash/maphash"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire/schema"
)

// namesSeed makes Request.NamesSum a function of the names within a process, and
// unpredictable for clients.
var namesSeed = maphash.MakeSeed()

// A requestField is a field of a request, independent of its number in the two messages.
type requestField int

const (
	_ requestField = iota
	fieldNode
	fieldTypeURL
	fieldNonce
	fieldVersion
	fieldSubscribe
	fieldSubscribeLocator
	fieldUnsubscribe
	fieldUnsubscribeLocator
	fieldInitialVersions
	fieldError
)

// Field numbers of DiscoveryRequest and DeltaDiscoveryRequest.
var (
	sotwFields = [...]requestField{
		1: fieldVersion, 2: fieldNode, 3: fieldSubscribe, 4: fieldTypeURL, 5: fieldNonce, 6: fieldError,
		7: fieldSubscribeLocator,
	}
	deltaFields = [...]requestField{
		1: fieldNode, 2: fieldTypeURL, 3: fieldSubscribe, 4: fieldUnsubscribe, 5: fieldInitialVersions,
		6: fieldNonce, 7: fieldError, 8: fieldSubscribeLocator, 9: fieldUnsubscribeLocator,
	}
)

// requestReport is the field of requests, in both variants, with which a relay reports to the relay above it what its
// clients have (package tier). xDS defines no such field, and no other server is sent it.
const requestReport protowire.Number = 19_872

// ReportRequest returns an encoded request with a report, and nothing else.
func ReportRequest(report []byte) []byte { return appendBytes(nil, requestReport, report) }

// setReport reads a report. A fault in it is no fault of the request: whoever uses it checks it.
func (r *Request) setReport(val []byte) {
	if r.MaxReportBytes == 0 {
		return
	}
	if r.HasReport = true; len(val) <= r.MaxReportBytes {
		r.Report = append(r.Report[:0], val...)
	}
}

// Decode decodes msg into r and keeps r.Delta, r.Size and the limits. The request shares no memory with
// msg. Errors: [ErrRequest], [ErrTooLong], those of r.Memory.
func (r *Request) Decode(msg []byte) error {
	fields := sotwFields[:]
	if r.Delta {
		fields = deltaFields[:]
	}
	size := r.Size
	r.Clear()
	r.Size = size
	found := countFields(fields, msg)
	r.NamesSum = found.sum
	names := found.count[fieldSubscribe] + found.count[fieldSubscribeLocator]
	r.Repeated = !r.Delta && r.Latest != nil && r.Latest.repeats(found.typeURL, names, found.sum, found.adjacent)
	if err := r.reserve(&found.count, len(msg)); err != nil {
		return err
	}
	return r.readFields(fields, msg)
}

// readFields decodes the fields of a message.
func (r *Request) readFields(fields []requestField, msg []byte) error {
	f := fieldReader{msg: msg}
	for f.next() {
		if f.isBytes(requestReport) {
			r.setReport(f.value)
		}
		if f.typ != protowire.BytesType || int(f.num) >= len(fields) {
			continue
		}
		if err := r.readField(&f, fields[f.num]); err != nil {
			return fmt.Errorf("%w: %w", ErrRequest, err)
		}
	}
	if f.malformed {
		return fmt.Errorf("%w at byte %d of %d", ErrRequest, f.offset, len(msg))
	}
	return nil
}

// fieldCounts counts the fields of an encoded request up to the first malformed one.
type fieldCounts struct {
	count   [fieldError + 1]int
	sum     uint64 // hash of the names to subscribe to, zero if there are none
	typeURL []byte

	lists    int // number of places in the message where names to subscribe to are
	adjacent int // size of these names in bytes if they are in one place, zero otherwise
}

// sumFactor makes the hash depend on the order of the names. It is odd, so multiplication loses no information.
const sumFactor = 0x9e3779b97f4a7c15

// countFields counts the fields of a message before memory is allocated for them. It hashes nothing in a request
// without names, such as a Delta ACK.
func countFields(fields []requestField, msg []byte) (found fieldCounts) {
	for f := (fieldReader{msg: msg}); f.next(); {
		if f.typ != protowire.BytesType || int(f.num) >= len(fields) {
			continue
		}
		field := fields[f.num]
		found.count[field]++
		switch field {
		case fieldSubscribe, fieldSubscribeLocator:
			found.count[field] += f.run()
			found.sum = found.sum*sumFactor + maphash.Bytes(namesSeed, f.raw())
			if found.lists++; found.lists == 1 {
				found.adjacent = len(f.raw())
			} else {
				found.adjacent = 0
			}
		case fieldTypeURL:
			found.typeURL = f.value
		}
	}
	return found
}

// smallList is the maximum length of a list for which no memory is allocated in advance.
const smallList = 16

// The memory of one entry of a list or of a map, in addition to its text, in bytes.
const (
	entryBytes   = 16
	versionBytes = 80
)

// reserve charges and allocates memory for the lists of a request. size is the size of its message in bytes.
func (r *Request) reserve(count *[fieldError + 1]int, size int) error {
	subscribed, versions := count[fieldSubscribe]+count[fieldSubscribeLocator], count[fieldInitialVersions]
	unsubscribed := count[fieldUnsubscribe] + count[fieldUnsubscribeLocator]
	if r.Repeated {
		subscribed = 0
	}
	if most := r.MaxNames; most > 0 {
		subscribed, unsubscribed, versions = min(subscribed, most), min(unsubscribed, most), min(versions, most)
	}
	// The message is charged already. The overhead of most names is less than half of their text.
	if err := r.Hold(entryBytes*(subscribed+unsubscribed) + versionBytes*versions - size/2); err != nil {
		return err
	}
	if subscribed > smallList {
		r.Subscribe = slices.Grow(r.Subscribe, subscribed)
	}
	if unsubscribed > smallList {
		r.Unsubscribe = slices.Grow(r.Unsubscribe, unsubscribed)
	}
	if versions > 0 {
		const most = 10_000 // the entries may all have the same name
		r.InitialVersions = make(map[string]string, min(versions, most))
	}
	return nil
}

// skips reports whether a list with that number of entries is full. If it is, skips counts one skipped entry.
func (r *Request) skips(entries int) bool {
	if r.MaxNames == 0 || entries < r.MaxNames {
		return false
	}
	r.Skipped++
	return true
}

// readField decodes a field. It skips repeated names.
func (r *Request) readField(f *fieldReader, field requestField) error {
	if r.Repeated && (field == fieldSubscribe || field == fieldSubscribeLocator) {
		f.run()
		return nil
	}
	many := field == fieldSubscribe && cap(r.Subscribe) > smallList ||
		field == fieldUnsubscribe && cap(r.Unsubscribe) > smallList
	if many {
		return r.addChunkName(f, field)
	}
	return r.setField(field, f.value)
}

// addChunkName reads one of many names into a list.
func (r *Request) addChunkName(f *fieldReader, field requestField) error {
	to := &r.Subscribe
	if field == fieldUnsubscribe {
		to = &r.Unsubscribe
	}
	if r.skips(len(*to)) {
		return nil
	}
	name, err := f.chunkText("resource name")
	*to = append(*to, name)
	return err
}

func (r *Request) setField(f requestField, val []byte) (err error) {
	switch f {
	case fieldNode:
		err = r.addNode(val)
	case fieldTypeURL:
		r.TypeURL, err = typeURLOf(val)
	case fieldNonce:
		r.Nonce, err = text(val, "nonce")
	case fieldVersion:
		r.Version, err = text(val, "version")
	case fieldSubscribe, fieldSubscribeLocator:
		err = r.addName(&r.Subscribe, f == fieldSubscribeLocator, val)
	case fieldUnsubscribe, fieldUnsubscribeLocator:
		err = r.addName(&r.Unsubscribe, f == fieldUnsubscribeLocator, val)
	case fieldInitialVersions:
		err = r.addInitialVersion(val)
	case fieldError:
		err = r.setError(val)
	}
	return err
}

// addNode reads a Node. Several occurrences of the field are merged.
func (r *Request) addNode(val []byte) (err error) {
	if r.Node == nil {
		r.Node = []byte{}
	}
	if r.NodeBytes += len(val); r.MaxNodeBytes > 0 && r.NodeBytes > r.MaxNodeBytes {
		r.Node = r.Node[:0]
		return nil
	}
	r.Node, err = appendNode(r.Node, val)
	return err
}

// addName reads a name or a ResourceLocator into a list.
func (r *Request) addName(to *[]string, locator bool, val []byte) (err error) {
	if r.skips(len(*to)) {
		return nil
	}
	var name string
	if locator {
		name, err = r.locator(val)
	} else {
		name, err = text(val, "resource name")
	}
	*to = append(*to, name)
	return err
}

// typeURLOf returns a type URL. It allocates no string for those that the protocol defines.
func typeURLOf(val []byte) (string, error) {
	if t, _ := schema.TypeOf(string(val)); t.URL != "" {
		return t.URL, nil
	}
	return text(val, "type URL")
}

// addInitialVersion reads one entry of the map of initial_resource_versions.
func (r *Request) addInitialVersion(entry []byte) error {
	if r.skips(r.versions) {
		return nil
	}
	name, version, err := mapEntry(entry, "initial resource version")
	if err != nil {
		return err
	}
	if r.InitialVersions == nil {
		r.InitialVersions = make(map[string]string)
	}
	r.InitialVersions[name] = version
	r.versions++
	return nil
}

// setError reads a google.rpc.Status: code=1, message=2.
func (r *Request) setError(status []byte) error {
	r.Rejected = true
	f := fieldReader{msg: status}
	for f.next() {
		switch {
		case f.isVarint(1):
			r.ErrorCode = int32(f.varint())
		case f.isBytes(2):
			r.ErrorMessage = cutDump(proseText(f.value))
		}
	}
	return f.err("error detail")
}

// locator returns the name of a ResourceLocator, with its dynamic parameters if they are enabled (R120): name=1,
// dynamic_parameters=2, a map.
func (r *Request) locator(val []byte) (string, error) {
	raw, _ := stringField(val, 1)
	if n := len(val) - len(raw); r.MaxNameBytes > 0 && n > r.MaxNameBytes {
		return "", fmt.Errorf("%w: %d bytes", ErrTooLong, n)
	}
	name, err := text([]byte(raw), "resource name")
	if err != nil {
		return "", err
	}
	parameters := make(map[string]string)
	f := fieldReader{msg: val}
	for f.next() {
		if !f.isBytes(2) {
			continue
		}
		key, value, err := mapEntry(f.value, "dynamic parameter")
		if err != nil {
			return "", err
		}
		if r.Parameters {
			parameters[key] = value
		}
	}
	return parameterised(name, parameters), f.err("resource locator")
}

// mapEntry reads an entry of a map from strings to strings: key=1, value=2.
func mapEntry(entry []byte, field string) (key, value string, err error) {
	var raw [3][]byte // by field number
	f := fieldReader{msg: entry}
	for f.next() {
		if f.typ == protowire.BytesType && int(f.num) < len(raw) {
			raw[f.num] = f.value
		}
	}
	if f.malformed {
		return "", "", f.err(field)
	}
	if key, err = text(raw[1], field); err != nil {
		return "", "", err
	}
	value, err = text(raw[2], field)
	return key, value, err
}
