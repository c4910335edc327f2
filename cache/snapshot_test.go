package cache

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/wire"
)

// aCluster is the encoded Cluster{name: "c"}: its type is embedded, and it contains no sensitive fields.
const aCluster = "\n\x01c"

// restart returns an origin of another process, without a connection, whose view is restored from a snapshot of o at
// some time.
func (o *origin) restart(sensitive bool, at time.Time) *origin {
	o.Helper()
	s, _ := o.Snapshot(sensitive)
	return o.restoreFrom(roundTrip(o, s), at)
}

// restoreFrom returns an origin of another process whose view is restored from a snapshot.
func (o *origin) restoreFrom(s *Snapshot, at time.Time) *origin {
	v, w := New(o.view.cfg)
	w.Restore(s, at)
	return &origin{tester: o.tester, Writer: w, view: v, typeURL: o.typeURL}
}

// roundTrip encodes and decodes a snapshot.
func roundTrip(t tester, s *Snapshot) *Snapshot {
	t.Helper()
	read, err := DecodeSnapshot(encodeSnapshot(t, s))
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func encodeSnapshot(t tester, s *Snapshot) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.Encode(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// newClusterOrigin returns an origin of clusters whose wildcard set is confirmed.
func newClusterOrigin(t tester) *origin {
	o := newOrigin(t, Config{})
	o.typeURL = wire.ClusterType
	o.SetPhase(o.typeURL, Confirmed)
	return o
}

// TestB42_H12_ConfirmationStateIsRestored: a confirmed set, which may be empty, is restored as settled and Restored, a
// settled one as settled, and an unknown one as unknown and empty.
func TestB42_H12_ConfirmationStateIsRestored(t *testing.T) {
	for _, tt := range []struct {
		was, want Phase
		restored  bool
		had, has  int // members
	}{
		{Unknown, Unknown, false, 1, 0},
		{Settled, Settled, false, 1, 1},
		{Confirmed, Settled, true, 1, 1},
		{Confirmed, Settled, true, 0, 0},
	} {
		o := newOrigin(t, Config{})
		o.typeURL = wire.ClusterType
		for i := range tt.had {
			o.put(Wildcard, fmt.Sprint(i), "1", aCluster)
		}
		o.SetPhase(o.typeURL, tt.was)
		for range 2 { // restoring a restored view gives the same
			if o = o.restart(false, time.Now()); o.typ().Phase != tt.want || o.typ().Restored != tt.restored ||
				o.typ().Wildcard.Count() != tt.has {
				t.Errorf("%v with %d members is restored as %v, Restored %v, with %d members; want %v, %v, %d",
					tt.was, tt.had, o.typ().Phase, o.typ().Restored, o.typ().Wildcard.Count(), tt.want, tt.restored, tt.has)
			}
		}
	}
}

// TestR026_VersionsAreTheSameAfterARestart, including other versions of the same content that clients may have.
func TestR026_VersionsAreTheSameAfterARestart(t *testing.T) {
	o := newClusterOrigin(t)
	o.put(Wildcard, "a", "1", aCluster)
	o.put(Wildcard, "a", "2", aCluster) // another version, same content
	o.put(Wildcard, "b", "", aCluster)
	was := &o.typ().Wildcard
	is := &o.restart(false, time.Now()).typ().Wildcard
	if is.Sum() != was.Sum() || is.Count() != 2 {
		t.Errorf("after the restart: %d resources with the sum %v, want 2 with %v", is.Count(), is.Sum(), was.Sum())
	}
	wantLog(t, is.Since(0), "a", "b")
	for e := range is.Since(0) {
		old := was.Get(o.name(e.Name.String()))
		if e.Resource.Version != old.Resource.Version || !bytes.Equal(e.Resource.Field(), old.Resource.Field()) {
			t.Errorf("%s: %s %x, want %s %x", e.Name, e.Resource.Version, e.Resource.Field(), old.Resource.Version,
				old.Resource.Field())
		}
		if e.Name.String() == "a" && (!e.HasVersion("1") || !e.HasVersion("2")) {
			t.Error("a version of a is missing")
		}
	}
}

// TestB42_RestoredIsStaleSinceTheSnapshot: a restored view is stale since the snapshot until the origin connects, and
// then since the connection was lost.
func TestB42_RestoredIsStaleSinceTheSnapshot(t *testing.T) {
	s := smallSnapshot(t)
	o := newOrigin(t, Config{}).restoreFrom(s, s.Created.Add(time.Minute))
	from := func() *Source { return o.view.Generation().First() }
	if got := from().Stale(s.Created.Add(time.Hour)); got != time.Hour {
		t.Errorf("an hour after the snapshot: stale for %v", got)
	}
	o.SetConnected(true)
	if got := from().Stale(s.Created.Add(time.Hour)); got != 0 {
		t.Errorf("connected: stale for %v", got)
	}
	o.SetConnected(false)
	if got, want := from().Stale(from().Lost.Add(time.Second)), time.Second; got != want {
		t.Errorf("a second after the disconnect: stale for %v", got)
	}
	if got := newOrigin(t, Config{}).view.Generation().First().Stale(time.Now()); got > time.Second {
		t.Errorf("reconnected: stale for %v", got)
	}
}

// TestB42_SnapshotHasTheTimeOfItsState: a snapshot is as old as what the origin said last, also that of a copy.
func TestB42_SnapshotHasTheTimeOfItsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newClusterOrigin(t)
		o.SetConnected(true)
		age := func(of *origin) time.Duration {
			s, _ := of.Snapshot(false)
			return time.Since(s.Created)
		}
		time.Sleep(time.Hour)
		if got := age(o); got != 0 {
			t.Errorf("the state is %v old while the origin is connected, want 0", got)
		}
		o.SetConnected(false)
		time.Sleep(time.Hour)
		other := o.restart(false, time.Now())
		time.Sleep(time.Hour)
		if got, copied := age(o), age(other); got != 2*time.Hour || copied != 2*time.Hour {
			t.Errorf("the state is %v old, and a copy of it %v; want 2h", got, copied)
		}
	})
}

// TestB7_AbsenceIsUnknownAfterARestart: the origin must report an absence again.
func TestB7_AbsenceIsUnknownAfterARestart(t *testing.T) {
	o, _ := newSubscribed(t, "a", "b")
	o.put(ByName, "a", "1", "x")
	o.remove(ByName, "a")
	o.remove(ByName, "b")
	again := o.restart(true, time.Now())
	for _, name := range []string{"a", "b"} {
		if n := again.view.Watch().Subscribe(acme, []string{name})[0]; again.typ().ByName.Get(n) != nil {
			t.Errorf("%s is in the index after the restart", name)
		}
	}
}

// newAbsentOrigin returns an origin of routes with a cohort. A watch subscribes to names whose resources are absent.
func newAbsentOrigin(t tester, waits string, names ...string) *origin {
	o := newCohort(t, waits)
	o.typeURL = wire.RouteType
	o.subscribe(o.view.Watch(), names...)
	return o
}

// TestI10_AbsenceIsNotStored for types that do not wait, without rollouts, and for more than maxAbsent names.
func TestI10_AbsenceIsNotStored(t *testing.T) {
	o := newAbsentOrigin(t, wire.RouteType, "a")
	o.remove(ByName, "a")
	with, _ := o.Snapshot(true)
	o.view.cfg.Cohorts = 0
	if s, _ := o.Snapshot(true); len(s.Types) != 0 {
		t.Errorf("without rollouts: snapshot has %+v", s.Types)
	}
	if again := o.restoreFrom(with, time.Now()); again.hasName("a") {
		t.Error("without rollouts: absence was restored")
	}
	o = newAbsentOrigin(t, wire.ClusterType, "a")
	o.remove(ByName, "a")
	if s, _ := o.Snapshot(true); len(s.Types) != 0 {
		t.Errorf("type that does not wait: snapshot has %+v", s.Types)
	}
	var names []string
	for i := range maxAbsent + 1 {
		names = append(names, fmt.Sprint(i))
	}
	o = newAbsentOrigin(t, wire.RouteType, names...)
	o.remove(ByName, names...)
	if s, _ := o.Snapshot(true); !slices.Equal(s.Types[0].Absent, names[:maxAbsent]) {
		t.Errorf("%d absent names, %d of them stored", len(names), len(s.Types[0].Absent))
	}
}

// TestB42_RestoredNamesAreTrackedUntilForgotten: restored names linger without a subscriber.
func TestB42_RestoredNamesAreTrackedUntilForgotten(t *testing.T) {
	o, _ := newSubscribed(t, "alias", "b")
	o.put(ByName, "a", "1", "x", "alias")
	o.put(ByName, "b", "1", "y")
	again := o.restart(true, time.Now())
	<-again.Demand()
	var names []*Name
	for _, d := range again.TakeDemand() {
		if d.Wanted || d.Name == nil {
			t.Errorf("demand %+v, want the names, not wanted", d)
		}
		names = append(names, d.Name)
	}
	if len(names) != 2 {
		t.Fatalf("names %v, want alias and b", names)
	}
	again.SetConnected(true)
	if c := again.put(ByName, "a", "2", "z", "alias"); c.Changed != 1 {
		t.Errorf("%+v: resource of a restored alias was ignored", c)
	}
	again.Forget(acme, names)
	if again.hasName("alias") || again.hasName("b") {
		t.Error("forgotten names are still in the index")
	}
}

// TestB42_WildcardSetsAreRestoredAsCeasedDemand: as not wanted, or as wanted if a client has subscribed before.
func TestB42_WildcardSetsAreRestoredAsCeasedDemand(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		again := newClusterOrigin(t).restart(false, time.Now())
		if wanted {
			again.view.Watch().SubscribeAll(again.typeURL)
		}
		got := again.TakeDemand()
		if len(got) != 1 || got[0] != (Demand{TypeURL: again.typeURL, Wanted: wanted, Restored: true}) {
			t.Errorf("demand %+v, want the wildcard as restored, wanted %v", got, wanted)
		}
		if got := again.TakeDemand(); len(got) != 0 {
			t.Errorf("second demand: %+v", got)
		}
	}
}

// TestB36_SecretsAreNotStored: a snapshot has no Secrets, not even their names. Of content that may not be cached or
// may be sensitive, it has the names and versions, so that sets stay complete.
func TestB36_SecretsAreNotStored(t *testing.T) {
	const hush = "hush-hush"
	o := newOrigin(t, Config{})
	o.typeURL = wire.SecretType
	o.subscribe(o.view.Watch(), "key-"+hush)
	o.put(ByName, "key-"+hush, "1", hush)
	o.typeURL = acme // an unknown type
	o.put(Wildcard, "opaque", "1", hush)
	o.put(Wildcard, "other", "1", hush+"!")
	o.SetPhase(acme, Confirmed)
	o.Apply(Wildcard, updateOf(acme, decoded(t, acme, &discoverypb.Resource{
		Name: "fleeting", Version: "1", CacheControl: &discoverypb.Resource_CacheControl{DoNotCache: true},
		Resource: &anypb.Any{TypeUrl: acme, Value: []byte(hush)},
	})))
	s, withheld := o.Snapshot(false)
	if b := encodeSnapshot(t, s); bytes.Contains(b, []byte(hush)) {
		t.Errorf("snapshot contains a secret: %q", b)
	}
	if len(withheld) != 1 || withheld[acme] != 2 {
		t.Errorf("omitted %v, want 2 of %s", withheld, acme)
	}
	again := o.restoreFrom(roundTrip(t, s), time.Now())
	if m := &again.typ().Wildcard; m.Count() != 3 || m.ContentDropped() != 3 || m.Sum() != o.typ().Wildcard.Sum() {
		t.Errorf("%d resources, %d of them without content, want 3 and 3, and an equal sum", m.Count(), m.ContentDropped())
	}
	s, withheld = o.Snapshot(true)
	if b := encodeSnapshot(t, s); bytes.Count(b, []byte(hush)) != 2 || len(withheld) != 0 {
		t.Errorf("with sensitive content: %d contents, want 2; omitted %v: %q", bytes.Count(b, []byte(hush)), withheld, b)
	}
}

// TestB42_OmittedContentIsRequestedAgain: receiving the same content is no change.
func TestB42_OmittedContentIsRequestedAgain(t *testing.T) {
	o, _ := newSubscribed(t, "a")
	o.put(ByName, "a", "1", "x")
	again := o.restart(false, time.Now())
	again.TakeDemand()
	again.SetConnected(true)
	w := again.view.Watch()
	n := w.Subscribe(acme, []string{"a"})[0]
	if got := again.TakeDemand(); len(got) != 1 || !got[0].Refetch {
		t.Errorf("demand %+v, want a new request for the name", got)
	}
	was := again.typ().ByName.Get(n)
	if c := again.put(ByName, "a", "1", "x"); c.Changed != 0 || again.typ().ByName.Get(n).Seq != was.Seq {
		t.Errorf("%+v: equal content counts as a change", c)
	}
	if !woken(w) || again.typ().ByName.Get(n).Resource.ContentDropped() {
		t.Error("received content caused no wake-up")
	}
}

// TestB42_DeniedResourcesAreNotServedAfterARestart: the error is not stored, and the resource must not be served
// instead.
func TestB42_DeniedResourcesAreNotServedAfterARestart(t *testing.T) {
	o, _ := newSubscribed(t, "a")
	o.put(ByName, "a", "1", "x")
	o.Apply(ByName,
		wire.Update{TypeURL: acme, Errors: []*wire.ResourceError{wire.NewResourceError("a", codes.PermissionDenied, "no")}})
	if e := o.restart(true, time.Now()).typ().ByName; e.ContentDropped() != 1 {
		t.Errorf("%d resources without content, want 1", e.ContentDropped())
	}
}

// TestB18_DeadlinesAreRestored: neither a restart nor a clock that is set back extends a TTL.
func TestB18_DeadlinesAreRestored(t *testing.T) {
	start := time.Now()
	for _, tt := range []struct {
		name string
		at   time.Time
		left time.Duration // 0 means expired
	}{
		{"before it expires", start.Add(20 * time.Second), 40 * time.Second},
		{"after it has expired", start.Add(2 * time.Minute), 0},
		{"clock set back by an hour", start.Add(-time.Hour), time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, _ := newSubscribed(t, "a")
			for _, kind := range []Kind{Wildcard, ByName} {
				o.Apply(kind, updateOf(acme, expiring(t, "a", "1", "x")))
			}
			o.SetPhase(acme, Confirmed)
			again := o.restart(true, tt.at)
			typ, n := again.typ(), again.name("a")
			for kind, e := range map[string]*Entry{"member": typ.Wildcard.Get(n), "named": typ.ByName.Get(n)} {
				if left := e.Deadline().Sub(tt.at); e.Present() != (tt.left > 0) ||
					e.Present() && (left-tt.left).Abs() > 5*time.Second {
					t.Errorf("%s: present %v for %v, want %v", kind, e.Present(), left, tt.left)
				}
			}
			if e, _ := typ.Lookup(n); tt.left == 0 && !again.view.Generation().Absent(e) {
				t.Error("expired resource is not absent (R107)")
			}
			if !typ.Wildcard.Limited() || !typ.ByName.Limited() {
				t.Error("set is not limited (C31)")
			}
		})
	}
}

// TestB42_NamesOfOtherSourcesAreNotRestored: Config.Route may have changed.
func TestB42_NamesOfOtherSourcesAreNotRestored(t *testing.T) {
	o, _ := newSubscribed(t, "a")
	o.put(ByName, "a", "1", "x")
	o.put(Wildcard, "m", "1", "x")
	o.SetPhase(acme, Confirmed)
	s, _ := o.Snapshot(true)
	v, writers := NewRouted(Config{Sources: 2, Route: func(string, string) int { return 1 }})
	if n := writers[0].Restore(s, time.Now()); n != 0 ||
		v.Generation().Type(acme).ByName.Count()+v.Generation().Type(acme).Wildcard.Count() != 0 {
		t.Errorf("%d resources restored, want 0", n)
	}
	if taken, _ := writers[0].Snapshot(true); len(taken.Types) != 0 {
		t.Errorf("snapshot of the other source has %+v", taken.Types)
	}
}

// TestB42_CollectionsAreRestored with their globs.
func TestB42_CollectionsAreRestored(t *testing.T) {
	key := Collection(acme, "xdstp://a/acme.Thing/*")
	o, w := newSubscribed(t)
	w.SubscribeAll(key)
	o.TakeDemand()
	o.typeURL = acme
	r := o.resource("xdstp://a/acme.Thing/x", "1", "x")
	o.Apply(Wildcard, updateOf(key, r))
	o.SetPhase(key, Confirmed)
	again := o.restart(true, time.Now())
	if typ := again.view.Generation().Type(key); !typ.Restored || typ.Wildcard.Count() != 1 {
		t.Fatalf("restored %v with %d members, want 1", typ.Restored, typ.Wildcard.Count())
	}
	if got := again.TakeDemand(); len(got) != 1 || !got[0].Restored || got[0].TypeURL != key {
		t.Errorf("demand %+v, want the collection", got)
	}
	if !again.ForgetWildcard(key) {
		t.Error("ForgetWildcard failed")
	}
}

// TestB42_RandomViewsAreRestored: after random steps, a restored view equals the view of the snapshot, except for
// state that is not stored.
func TestB42_RandomViewsAreRestored(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newOrigin(t, Config{})
		o.typeURL = rapid.SampledFrom([]string{acme, wire.ClusterType}).Draw(t, "type")
		o.subscribe(o.view.Watch(), "a", "b", "c", "alias")
		for range rapid.IntRange(0, 12).Draw(t, "updates") {
			kind := Kind(rapid.IntRange(0, 1).Draw(t, "kind"))
			name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")
			if rapid.IntRange(0, 4).Draw(t, "remove") == 0 {
				o.remove(kind, name)
				continue
			}
			r := &discoverypb.Resource{
				Name: name, Version: rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "version"),
				Resource: &anypb.Any{TypeUrl: o.typeURL,
					Value: []byte(rapid.SampledFrom([]string{"", aCluster, "y"}).Draw(t, "content"))},
			}
			if rapid.Bool().Draw(t, "aliased") {
				r.Aliases = []string{"alias"}
			}
			if rapid.Bool().Draw(t, "limited") {
				r.Ttl = durationpb.New(time.Hour)
			}
			o.Apply(kind,
				wire.Update{TypeURL: o.typeURL, SystemVersion: "s", Resources: []*wire.Resource{decoded(t, o.typeURL, r)}})
		}
		o.SetPhase(o.typeURL, Confirmed)
		again := o.restart(true, time.Now())
		if got, want := describeView(again), describeView(o); got != want {
			t.Errorf("after the restart:\n%s\nwant\n%s", got, want)
		}
		for kind, set := range []*Set{&o.typ().Wildcard, &o.typ().ByName} {
			for e := range set.Since(0) {
				if e.Present() && !e.Deadline().IsZero() {
					restored := again.typ().Set(Kind(kind)).Get(again.name(e.Name.String()))
					if off := restored.Deadline().Sub(e.Deadline()).Abs(); off > time.Minute {
						t.Errorf("the deadline of %s is off by %v", e.Name, off)
					}
				}
				for _, v := range e.otherVersions() {
					if e.Present() && !again.typ().Set(Kind(kind)).Get(again.name(e.Name.String())).HasVersion(v) {
						t.Errorf("version missing: %s has also version %s", e.Name, v)
					}
				}
			}
		}
	})
}

// describeView describes the state of the origin's type in its view.
func describeView(o *origin) string {
	var lines []string
	for kind, set := range []*Set{&o.typ().Wildcard, &o.typ().ByName} {
		lines = append(lines,
			fmt.Sprintf("%d: %d %v %s %d %v", kind, set.Count(), set.Sum(), set.System(), set.TTLs(), set.Limited()))
		for e := range set.Since(0) {
			if !e.Present() {
				continue
			}
			lines = append(lines, fmt.Sprintf(" %s: %s %x %t %v %v", e.Name, e.Resource.Version, e.Resource.Field(),
				!e.Deadline().IsZero(), e.Resource.Aliases, e.Leaf))
		}
	}
	return strings.Join(lines, "\n")
}

// smallSnapshot returns a small snapshot with every kind of field.
func smallSnapshot(t tester) *Snapshot {
	o, _ := newSubscribed(t, "a", "n")
	o.put(Wildcard, "m", "1", "x")
	o.put(Wildcard, "m", "2", "x")
	o.Apply(ByName,
		wire.Update{TypeURL: acme, SystemVersion: "7",
			Resources: []*wire.Resource{expiring(t, "n", "1", "y"), o.resource("a", "", "z")}})
	o.SetPhase(acme, Confirmed)
	o.SetTarget("dns:///origin:1")
	s, _ := o.Snapshot(true)
	s.Header = Header{
		Origin: "default", Targets: []string{"dns:///origin:1", "dns:///origin:2"}, Group: "user_agent_name=envoy",
		Node: []byte{1, 2}, Options: "o", Created: time.Unix(1_800_000_000, 0),
	}
	return s
}

func TestB42_AHeaderIsReadAsItWasWritten(t *testing.T) {
	s := smallSnapshot(t)
	got := roundTrip(t, s)
	if fmt.Sprintf("%+v", got.Header) != fmt.Sprintf("%+v", s.Header) || got.Target != s.Target ||
		len(got.Types) != len(s.Types) {
		t.Errorf("got %+v, want %+v", got, s)
	}
	if again := encodeSnapshot(t, got); !bytes.Equal(again, encodeSnapshot(t, s)) {
		t.Error("encoding of the decoded snapshot differs")
	}
}

// TestB42_EveryTruncationAndFlippedByteIsRejected: no damaged snapshot is decoded, not even in part.
func TestB42_EveryTruncationAndFlippedByteIsRejected(t *testing.T) {
	b := encodeSnapshot(t, smallSnapshot(t))
	for n := range b {
		if s, err := DecodeSnapshot(b[:n]); err == nil || s != nil {
			t.Fatalf("first %d of %d bytes were accepted", n, len(b))
		}
		for _, flip := range []byte{1, 0x80, 0xff} {
			bad := slices.Clone(b)
			bad[n] ^= flip
			if s, err := DecodeSnapshot(bad); err == nil || s != nil {
				t.Fatalf("snapshot with byte %d flipped by %#x was accepted", n, flip)
			}
		}
	}
	if _, err := DecodeSnapshot(append(slices.Clone(b), 0)); err == nil {
		t.Error("snapshot with an additional byte was accepted")
	}
}

// TestB42_DeadlineOfANewerState: a resource that readers see while a newer state waits has the TTL of that state. After a
// restart, it lasts as long as it would have, also if the clock was set, and does not end at once.
func TestB42_DeadlineOfANewerState(t *testing.T) {
	created := time.Unix(1_700_000_000, 0)
	for _, tt := range []struct{ now, want time.Duration }{
		{time.Minute, 59 * time.Minute}, {-time.Hour, time.Hour},
	} {
		o := newClusterOrigin(t)
		o.put(Wildcard, "a", "1", aCluster)
		s, _ := o.Snapshot(false)
		s.Created, s.Types[0].Wildcard.Entries[0].Deadline = created, created.Add(time.Hour)
		now := created.Add(tt.now)
		o = o.restoreFrom(roundTrip(t, s), now)
		if e := o.typ().Wildcard.Get(o.name("a")); !e.Present() || e.Deadline().Sub(now) != tt.want {
			t.Errorf("restored after %v: %+v, want a resource that expires in %v", tt.now, e, tt.want)
		}
	}
}

// TestB56_SnapshotsOmitWhatMayNotBeStored: a change that waits is stored without content that is sensitive or may not be cached,
// and only for names of which the snapshot has what readers see. Changes of Secrets are for peers alone.
func TestB56_SnapshotsOmitWhatMayNotBeStored(t *testing.T) {
	o := newClusterOrigin(t)
	o.put(Wildcard, "a", "1", aCluster)
	unknown := newResource(t, acme, "a", "2", "content") // of an unknown type: may be sensitive
	o.typeURL = wire.SecretType
	o.put(Wildcard, "s", "1", "x")
	o.SetPhase(o.typeURL, Confirmed)
	waiting := []WaitingSnapshot{{Name: "a", Resource: unknown}, {Name: "b"}, {Kind: ByName, Name: "a"}}
	capture := o.Capture()
	capture.Add(wire.ClusterType, [2]string{"v", ""}, waiting)
	capture.Add(wire.SecretType, [2]string{}, []WaitingSnapshot{{Name: "s"}})
	s, omitted := capture.Snapshot(false)
	if len(s.Types) != 1 || len(s.Types[0].Waiting) != 2 || omitted[wire.ClusterType] != 1 {
		t.Fatalf("stored %+v, omitted %v; want the two changes of members, one without content", s.Types, omitted)
	}
	if r := s.Types[0].Waiting[0].Resource; !r.ContentDropped() || r.Digest != unknown.Digest {
		t.Errorf("stored %v of a sensitive resource, want its digest alone", r)
	}
	if s, _ = capture.SnapshotWithSecrets(); len(s.Types) != 2 || len(s.Types[1].Waiting) != 1 ||
		s.Types[0].Waiting[0].Resource.ContentDropped() {
		t.Errorf("given to peers: %+v, want all content, and Secrets", s.Types)
	}
}

// TestB56_SnapshotsOrderWhatWaits: what waits is stored by kind and name, in whatever order it was captured, and snapshots of one
// capture are equal. The loop of the view, which captures it, need not sort.
func TestB56_SnapshotsOrderWhatWaits(t *testing.T) {
	o := newClusterOrigin(t)
	o.put(Wildcard, "a", "1", aCluster)
	capture := o.Capture()
	captured := []WaitingSnapshot{{Name: "c"}, {Name: "a"}, {Name: "b", Earlier: true}}
	capture.Add(wire.ClusterType, [2]string{"v", ""}, captured)
	for range 2 {
		s, _ := capture.Snapshot(true)
		var names string
		for _, waiting := range s.Types[0].Waiting {
			names += waiting.Name
		}
		if names != "abc" || captured[0].Name != "c" {
			t.Errorf("stored %s of a capture that begins with %s, want abc, and the capture unchanged", names, captured[0].Name)
		}
	}
}
