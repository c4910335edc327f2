package cache

import (
	"encoding/base64"
	"encoding/binary"
	"iter"
	"slices"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

const (
	acme  = "type.googleapis.com/acme.Thing"
	other = "type.googleapis.com/acme.Other"
)

// A tester is the part of testing.TB that rapid.T has, too.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// An origin writes to a view as an upstream session does.
type origin struct {
	tester
	*Writer
	view    *View
	typeURL string
}

func newOrigin(t tester, cfg Config) *origin {
	v, w := New(cfg)
	w.SetConnected(true)
	return &origin{tester: t, Writer: w, view: v, typeURL: acme}
}

// resource returns a resource of the origin's type.
func (o *origin) resource(name, version, content string, aliases ...string) *wire.Resource {
	o.Helper()
	return newResource(o, resourceType(o.typeURL), name, version, content, aliases...)
}

// put has the origin send one resource.
func (o *origin) put(k Kind, name, version, content string, aliases ...string) Change {
	o.Helper()
	return o.Apply(k, updateOf(o.typeURL, o.resource(name, version, content, aliases...)))
}

// updateOf returns a response with these resources.
func updateOf(typeURL string, resources ...*wire.Resource) wire.Update {
	return wire.Update{TypeURL: typeURL, Resources: resources}
}

// remove has the origin remove names.
func (o *origin) remove(k Kind, names ...string) Change {
	o.Helper()
	return o.Apply(k, wire.Update{TypeURL: o.typeURL, Removed: names})
}

// subscribe subscribes a stream to names. The session takes the demand.
func (o *origin) subscribe(w *Watch, names ...string) []*Name {
	o.Helper()
	out := w.Subscribe(o.typeURL, names)
	o.TakeDemand()
	return out
}

func (o *origin) typ() *Type { return o.view.Generation().Type(o.typeURL) }

// name returns the Name of a text, which must be in the index.
func (o *origin) name(text string) *Name {
	o.Helper()
	n := o.view.Find(o.typeURL, []string{text})[0]
	if n == nil {
		o.Fatalf("name %q is not in the index", text)
	}
	return n
}

// hasName reports whether the index has a name.
func (o *origin) hasName(text string) bool { return o.view.Find(o.typeURL, []string{text})[0] != nil }

func newResource(t tester, typeURL, name, version, content string, aliases ...string) *wire.Resource {
	t.Helper()
	r, err := wire.NewResource(typeURL, name, version, []byte(content), aliases...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// decoded returns a resource that is decoded from its encoding, with fields that newResource cannot set.
func decoded(t tester, typeURL string, r *discoverypb.Resource) *wire.Resource {
	t.Helper()
	msg, err := proto.Marshal(&discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURL, Resources: []*discoverypb.Resource{r}})
	if err != nil {
		t.Fatal(err)
	}
	u, err := wire.Decoder{}.Decode(msg)
	if err != nil {
		t.Fatal(err)
	}
	return u.Resources[0]
}

// expiring returns a resource with a TTL.
func expiring(t tester, name, version, content string) *wire.Resource {
	t.Helper()
	return decoded(t, acme, &discoverypb.Resource{
		Name: name, Version: version, Ttl: durationpb.New(time.Minute),
		Resource: &anypb.Any{TypeUrl: acme, Value: []byte(content)},
	})
}

// woken reports whether a watch was woken, and clears the wake-up.
func woken(w *Watch) bool {
	select {
	case <-w.C:
		return true
	default:
		return false
	}
}

// changedNames returns the names in a log, with the prefix "-" for absent resources.
func changedNames(entries iter.Seq[*Entry]) []string {
	var out []string
	for e := range entries {
		if e.Present() {
			out = append(out, e.Name.String())
		} else {
			out = append(out, "-"+e.Name.String())
		}
	}
	return out
}

func wantLog(t tester, entries iter.Seq[*Entry], want ...string) {
	t.Helper()
	if got := changedNames(entries); !slices.Equal(got, want) {
		t.Errorf("log: got %q, want %q", got, want)
	}
}

// contentOf returns the content of an entry for messages: "" for nil, "-" for an absent resource.
func contentOf(e *Entry) string {
	switch {
	case e == nil:
		return ""
	case !e.Present():
		return "-"
	default:
		return string(e.Resource.Value())
	}
}

func wantChange(t *testing.T, got, want Change) {
	t.Helper()
	if got.Seen != want.Seen || got.Changed != want.Changed || got.New != want.New || got.Removed != want.Removed ||
		got.Ignored != want.Ignored || got.Same != want.Same || !slices.Equal(got.Reused, want.Reused) {
		t.Errorf("change: got %+v, want %+v", got, want)
	}
}

// newSubscribed returns an origin, and a watch that subscribes to names.
func newSubscribed(t tester, names ...string) (*origin, *Watch) {
	o := newOrigin(t, Config{})
	watch := o.view.Watch()
	o.subscribe(watch, names...)
	return o, watch
}

// sum returns a fingerprint with these two words.
func sum(hi, lo uint64) fingerprint.Sum {
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, hi), lo)
	s, _ := fingerprint.Parse("r1." + base64.RawURLEncoding.EncodeToString(b))
	return s
}
