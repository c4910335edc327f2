package wire

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Errors about a client's request: it is malformed, or exceeds what its reader
// allows. The stream that sent it ends; no other is touched.
var (
	ErrRequest = errors.New("malformed request")
	ErrTooLong = errors.New("dynamic parameters of a name too long")
)

// namesSeed makes Request.NamesSum a function of the names alone within one
// process, and unpredictable outside it.
var namesSeed = maphash.MakeSeed()

// Limits are what a [Request] is read with. The zero value bounds nothing.
type Limits struct {
	// MaxBytes bounds a message, in bytes, once it is decompressed; see Gzip. Of one that is not compressed, gRPC sees to it.
	MaxBytes int

	// MaxNames bounds each of the lists of names, before memory is taken for them: a few bytes of
	// a message become a string. What a list has beyond is skipped. MaxNameBytes bounds the parameters that come with a name in a
	// locator, all together. Zero means no bound.
	MaxNames, MaxNameBytes int

	// MaxNodeBytes bounds the Node as received: of a larger one only NodeBytes is set. Zero means no bound.
	MaxNodeBytes int

	// Parameters has the dynamic parameters of locators joined with their names (R120), as [WithParameters] does. Without it
	// they are not looked at.
	Parameters bool

	// Gzip accepts compressed messages.
	Gzip bool

	// Latest has the names of a SotW request left out that repeats those of the one before of its type; see Repeated. Nil has them all
	// decoded.
	Latest *LatestNames

	// Memory is charged for what a message takes beyond its own bytes, before that is taken. Nil charges nobody.
	Memory Memory
}

// A Request is a DiscoveryRequest or a DeltaDiscoveryRequest: the few fields
// that a relay acts on. Set Delta, and the limits if any, before it is received.
type Request struct {
	Limits

	Delta bool

	// Size is what the request is charged with, in bytes: its message as it came, with what frames it, and what Memory was
	// asked for. Set by [Codec].
	Size int

	TypeURL string
	Nonce   string
	Version string // SotW: version_info

	// Node is the encoded Node without its extensions, nil if the request had none, and NodeBytes is how large it was with them. Only the
	// first of a stream is looked at (R017).
	Node      []byte
	NodeBytes int

	// Subscribe holds what a Delta request subscribes to, or the complete list of
	// names of a SotW one. A name may be listed twice.
	Subscribe   []string
	Unsubscribe []string // Delta

	// InitialVersions are the resources that a reconnecting Delta client reports to hold: name to
	// version (R085).
	InitialVersions map[string]string

	// Skipped is how many entries of all lists were left out for MaxNames.
	Skipped int

	versions int // entries of InitialVersions that were read; some may be for one name

	// Refused is set by a NACK; ErrorCode and ErrorMessage say why (R029), the latter
	// as far as people may see it.
	Refused      bool
	ErrorCode    int32
	ErrorMessage string

	// NamesSum identifies the encoded list of names of a SotW request. An Envoy
	// repeats all its names in each ACK; equal sums need no second look. Repeated says that Subscribe was left out for that.
	NamesSum uint64
	Repeated bool

	// Err is set by [Codec] if the message was not a request. It is kept here, since
	// an error of a codec would reach the client as an internal one.
	Err error
}

// The fields of the two requests, by what the relay makes of them.
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

// receive reads a message as it came.
func (r *Request) receive(msg []byte) error {
	if r.Gzip {
		var err error
		if msg, err = Inflate(msg, r.MaxBytes, r); err != nil {
			return err
		}
	}
	return r.Decode(msg)
}

// Clear makes r what it was before a message was received: all but r.Delta and the limits is zero.
func (r *Request) Clear() {
	limits, delta := r.Limits, r.Delta
	*r = Request{} // a literal with fields would be copied from the stack of every stream's receiver
	r.Limits, r.Delta = limits, delta
}

// Hold implements Memory: it charges r.Memory, and notes that in r.Size.
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

// Decode reads msg into r, all but r.Delta, r.Size and the limits. The request shares no memory with
// msg. Errors: [ErrRequest], [ErrTooLong], those of r.Memory.
func (r *Request) Decode(msg []byte) error {
	fields := sotwFields[:]
	if r.Delta {
		fields = deltaFields[:]
	}
	size := r.Size
	r.Clear()
	r.Size = size
	found := survey(fields, msg)
	r.NamesSum = found.sum
	r.Repeated = !r.Delta && r.Latest != nil && r.Latest.repeats(found)
	if err := r.reserve(&found.count, len(msg)); err != nil {
		return err
	}
	f := fieldReader{msg: msg}
	for f.next() {
		if f.typ != protowire.BytesType || int(f.num) >= len(fields) {
			continue
		}
		if err := r.read(&f, fields[f.num]); err != nil {
			return fmt.Errorf("%w: %w", ErrRequest, err)
		}
	}
	if f.bad {
		return fmt.Errorf("%w at byte %d of %d", ErrRequest, f.at, len(msg))
	}
	return nil
}

// What a message of a request holds, as far as its fields are well formed.
type surveyed struct {
	count   [fieldError + 1]int // of each field
	sum     uint64              // of the names subscribed to, zero if there are none
	typeURL []byte
}

// sumFactor makes the sum of names depend on the order of their runs. It is odd, so no bit is lost.
const sumFactor = 0x9e3779b97f4a7c15

// survey looks through a message without hashing anything in a request that has no names, as nearly all ACKs are.
func survey(fields []requestField, msg []byte) (found surveyed) {
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
		case fieldTypeURL:
			found.typeURL = f.val
		}
	}
	return found
}

// manyNames is the least number of names for which [LatestNames] are kept: fewer are cheap to decode.
const manyNames = 32

// LatestNames are the sums of the names that the latest SotW requests of a stream had, by type, so that names which are repeated need not be
// decoded: an Envoy repeats all that it has in each ACK. It belongs to who receives the requests.
type LatestNames struct{ of []namesOfType }

type namesOfType struct {
	typeURL string
	sum     uint64
}

// repeats reports whether a request has the names that the one before of its type had, and remembers them.
func (l *LatestNames) repeats(found surveyed) bool {
	at := slices.IndexFunc(l.of, func(n namesOfType) bool { return n.typeURL == string(found.typeURL) })
	many := found.count[fieldSubscribe]+found.count[fieldSubscribeLocator] >= manyNames
	switch {
	case at < 0 && many:
		l.of = append(l.of, namesOfType{string(found.typeURL), found.sum})
	case at >= 0 && many:
		again := l.of[at].sum == found.sum
		l.of[at].sum = found.sum
		return again
	case at >= 0:
		l.of = slices.Delete(l.of, at, at+1)
	}
	return false
}

// What an entry of a list takes beside its text, in bytes: a string, or an entry of a map.
const (
	entryBytes   = 16
	versionBytes = 80
)

// reserve makes room for what a request lists in a message of so many bytes, for which it charges.
func (r *Request) reserve(count *[fieldError + 1]int, size int) error {
	subscribed, held := count[fieldSubscribe]+count[fieldSubscribeLocator], count[fieldInitialVersions]
	unsubscribed := count[fieldUnsubscribe] + count[fieldUnsubscribeLocator]
	if r.Repeated {
		subscribed = 0
	}
	if r.MaxNames > 0 {
		subscribed, unsubscribed, held = min(subscribed, r.MaxNames), min(unsubscribed, r.MaxNames), min(held, r.MaxNames)
	}
	// The bytes that came are charged already, and most names are so long that what they take beside their text is less than half of it.
	if err := r.Hold(entryBytes*(subscribed+unsubscribed) + versionBytes*held - size/2); err != nil {
		return err
	}
	const few = 16 // grow by themselves
	if subscribed > few {
		r.Subscribe = slices.Grow(r.Subscribe, subscribed)
	}
	if unsubscribed > few {
		r.Unsubscribe = slices.Grow(r.Unsubscribe, unsubscribed)
	}
	if held > 0 {
		const most = 10_000 // the entries may all be the same
		r.InitialVersions = make(map[string]string, min(held, most))
	}
	return nil
}

// skips reports whether an entry of a list is left out, and counts it.
func (r *Request) skips(listed int) bool {
	if r.MaxNames == 0 || listed < r.MaxNames {
		return false
	}
	r.Skipped++
	return true
}

// read takes a field, and leaves out names that are repeated: only SotW requests repeat them, which have one list.
func (r *Request) read(f *fieldReader, field requestField) error {
	if r.Repeated && (field == fieldSubscribe || field == fieldSubscribeLocator) {
		f.run()
		return nil
	}
	return r.set(field, f.val)
}

func (r *Request) set(f requestField, val []byte) (err error) {
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

// addNode takes a Node, or more of it: occurrences of a message merge.
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

// addName reads a name, or a ResourceLocator, that is subscribed to or unsubscribed from.
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

// typeURLOf is text for a type URL: those that the protocol defines need no memory.
func typeURLOf(val []byte) (string, error) {
	if r, known := rank[string(val)]; known {
		return order[r], nil
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

// setError reads a google.rpc.Status: code is 1, message is 2.
func (r *Request) setError(status []byte) error {
	r.Refused = true
	f := fieldReader{msg: status}
	for f.next() {
		switch {
		case f.isNumber(1):
			r.ErrorCode = int32(f.number())
		case f.is(2):
			message, err := text(f.val, "error message")
			if err != nil {
				return err
			}
			r.ErrorMessage = withoutDump(message)
		}
	}
	return f.err("error detail")
}

// locator returns the name of a ResourceLocator, with its parameters if they are enabled (R120): name=1,
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
		if !f.is(2) {
			continue
		}
		key, value, err := mapEntry(f.val, "dynamic parameter")
		if err != nil {
			return "", err
		}
		if r.Parameters {
			parameters[key] = value
		}
	}
	return withOwn(name, parameters), f.err("resource locator")
}

// mapEntry reads an entry of a map of strings: key is 1, value is 2.
func mapEntry(entry []byte, what string) (key, value string, err error) {
	var raw [3][]byte // by field
	f := fieldReader{msg: entry}
	for f.next() {
		if f.typ == protowire.BytesType && int(f.num) < len(raw) {
			raw[f.num] = f.val
		}
	}
	if f.bad {
		return "", "", f.err(what)
	}
	if key, err = text(raw[1], what); err != nil {
		return "", "", err
	}
	value, err = text(raw[2], what)
	return key, value, err
}

// A BadName is a name that a client asked for and that no resource can have.
type BadName struct {
	Name string
	Err  error
}

// Canonicalise brings the xdstp names of the request into the one spelling that equal
// names have in common (R128). Of those that have none, the ones that are asked for
// are taken out and returned, and those that are unsubscribed from stay: they match nothing.
func (r *Request) Canonicalise() (bad []BadName) {
	r.Subscribe, bad = canonicalNames(r.Subscribe)
	for i, text := range r.Unsubscribe {
		if canonical, err := canonicalText(text); err == nil {
			r.Unsubscribe[i] = canonical
		}
	}
	for name, version := range r.InitialVersions {
		canonical, err := CanonicalName(name)
		if err == nil && canonical == name {
			continue
		}
		delete(r.InitialVersions, name)
		if err == nil {
			r.InitialVersions[canonical] = version
		}
	}
	return bad
}

func canonicalNames(names []string) (out []string, bad []BadName) {
	out = names[:0]
	for _, text := range names {
		if canonical, err := canonicalText(text); err != nil {
			bad = append(bad, BadName{PlainName(text), err})
		} else {
			out = append(out, canonical)
		}
	}
	return out, bad
}

// canonicalText is CanonicalName for a name with dynamic parameters, if it has any.
func canonicalText(text string) (string, error) {
	name, parameters, has := strings.Cut(text, Separator)
	canonical, err := CanonicalName(name)
	if err != nil || !has {
		return canonical, err
	}
	return canonical + Separator + parameters, nil
}

// Parameterise joins names with dynamic parameters, but for those that came with their own. Call it before Canonicalise.
func (r *Request) Parameterise(parameters map[string]string) {
	if len(parameters) == 0 {
		return
	}
	for _, names := range [][]string{r.Subscribe, r.Unsubscribe} {
		for i, name := range names {
			if !strings.Contains(name, Separator) {
				names[i] = withOwn(name, parameters)
			}
		}
	}
}
