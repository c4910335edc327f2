package cache

import (
	"iter"
	"maps"
	"strings"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// randomStep applies one step of a random test to an origin.
func (o *origin) randomStep(step string, kind Kind, name, version string, watch *Watch, subscribed map[string][]*Name) {
	switch step {
	case "put":
		o.put(kind, name, version, name+version)
	case "put alias":
		o.put(ByName, "real", version, "real"+version, name)
	case "remove":
		o.remove(kind, name)
	case "fail":
		o.fail(kind, name, codes.Internal, version)
	case "not found":
		o.fail(kind, name, codes.NotFound, version)
	case "fail set":
		o.fail(Wildcard, WholeName(o.typeURL), codes.Internal, version)
	case "subscribe":
		subscribed[name] = watch.Subscribe(o.typeURL, []string{name})
		o.TakeDemand()
	case "unsubscribe":
		watch.Unsubscribe(o.typeURL, subscribed[name])
		o.TakeDemand()
		o.Forget(o.typeURL, subscribed[name])
		delete(subscribed, name)
	case "confirm":
		o.SetPhase(o.typeURL, Confirmed)
	case "reconnect":
		o.SetConnected(false)
		o.SetConnected(true)
	case "trim":
		o.Trim(time.Now().Add(time.Hour))
	case "put TTL":
		typeURL := resourceType(o.typeURL)
		o.Apply(kind, updateOf(o.typeURL, decoded(o, typeURL, &discoverypb.Resource{
			Name: name, Version: version, Ttl: durationpb.New(time.Minute),
			Resource: &anypb.Any{TypeUrl: typeURL, Value: []byte(name + version)},
		})))
	case "put uncacheable":
		o.putUncacheable(kind, name, version, name+version)
	case "expire":
		for _, after := range []time.Duration{2 * uncachedTTL, 2 * maxShadowed, time.Hour, 2 * time.Hour} {
			o.Expire(time.Now().Add(after))
		}
	default:
		o.Fatalf("unknown step %q", step)
	}
}

// resubscribeAll ends the only wildcard subscription to a type, so that its wildcard set is dropped, and begins
// another.
func (o *origin) resubscribeAll(w *Watch, all *WildcardWatch, typeURL string) *WildcardWatch {
	w.UnsubscribeAll(all)
	o.TakeDemand()
	o.ForgetWildcard(typeURL)
	all = w.SubscribeAll(typeURL)
	o.TakeDemand()
	return all
}

// exempt returns the keys of visible that may always change, see exemptOf.
func exempt(g *Generation) map[string]bool { return exemptOf(g.Type(acme)) }

// visible returns the contents and errors that readers see in a generation, by set and name.
func visible(g *Generation) map[string]string { return visibleIn(g.Type(acme)) }

// mustKeep returns the part of visible that waits for Show: without errors of members while the wildcard set is not
// confirmed.
func mustKeep(g *Generation) map[string]string {
	out := visible(g)
	if g.Type(acme).Phase < Confirmed {
		maps.DeleteFunc(out, func(key, _ string) bool { return strings.HasPrefix(key, "error of member ") })
	}
	return out
}

// exemptOf returns the keys of visibleIn that may always change: resources that expire or have expired, and content that may
// not be cached, also if it is visible by name through the wildcard set.
func exemptOf(t *Type) map[string]bool {
	out := map[string]bool{}
	add := func(what string, e *Entry) {
		out[what+" "+e.Name.String()], out["error of "+what+" "+e.Name.String()] = true, true
	}
	for e := range t.Wildcard.Since(0) {
		if e.Expires() || !cacheable(e) {
			add("member", e)
		}
		if !cacheable(e) {
			add("named", e)
		}
	}
	for e := range t.ByName.Since(0) {
		if e.Expires() || e.Expired || !cacheable(e) {
			add("named", e)
		}
	}
	return out
}

// visibleIn returns the contents and errors that readers see of a type, by set and name.
func visibleIn(t *Type) map[string]string {
	out := map[string]string{}
	for kind, what := range map[Kind]string{Wildcard: "member ", ByName: "named "} {
		for e := range t.Set(kind).Since(0) {
			if e.Present() || kind == ByName {
				out[what+e.Name.String()] = contentOf(e)
			}
		}
		for e := range t.Errors(kind).Since(0) {
			out["error of "+what+e.Name.String()] = e.Err.Message
		}
	}
	return out
}

// checkEntries fails the test unless Name.entries is correct for each name: it counts the entries that readers see. The names in
// which cohorts differ from the rest must be recorded.
func (o *origin) checkEntries() {
	o.Helper()
	for key, index := range o.view.index.types {
		entries := map[*Name]int{}
		for _, v := range o.view.views {
			for e := range o.writtenEntries(v.Generation().Type(key)) {
				entries[e.Name]++
			}
		}
		for text, n := range index.names {
			if n.entries != entries[n] {
				o.Fatalf("%s: entries is %d, want %d", text, n.entries, entries[n])
			}
			if entries[n] == 0 && n.watchers == nil && !n.tracked && !n.queued {
				o.Fatalf("unused name %s was not released", text)
			}
		}
		for n := range entries {
			if index.names[n.text] != n {
				o.Fatalf("%s was released, but readers see it", n.text)
			}
		}
	}
	o.checkApart()
	for cohort, v := range o.view.views {
		for f := range v.Audit(func() bool { return true }) {
			o.Fatalf("the audit of cohort %d finds %+v", cohort, f)
		}
	}
}

// writtenEntries yields the entries of a type that belong to the source of the writer, including errors.
func (o *origin) writtenEntries(t *Type) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, kind := range kinds {
			for _, set := range []*Set{t.Set(kind), t.Errors(kind)} {
				for e := range set.Since(0) {
					if o.writes(kind, t, e.Name) && !yield(e) {
						return
					}
				}
			}
		}
	}
}

// checkApart fails the test unless the names in which cohorts differ from the rest are recorded.
func (o *origin) checkApart() {
	o.Helper()
	for cohort, b := range o.cohorts() {
		apart := 0
		for key, index := range o.view.index.types {
			for text, n := range index.names {
				differs := !o.agree(b.generation().Type(key), o.Generation().Type(key), n)
				if of, recorded := b.apart[n]; recorded != differs || recorded && of != index {
					o.Fatalf("cohort %d: %s of %s differs from the rest: %v, recorded: %v", cohort, text, key, differs, recorded)
				}
				if differs {
					apart++
				}
			}
		}
		if len(b.apart) != apart {
			o.Fatalf("cohort %d: %d names are recorded as different, want %d", cohort, len(b.apart), apart)
		}
	}
}
