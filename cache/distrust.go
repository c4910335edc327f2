package cache

import "maps"

// A distrust is of which resources the returning clients of a view are not believed what they hold. It is immutable.
type distrust struct {
	names    map[int]map[string]map[string]struct{} // by source, and type URL or collection
	revision uint64                                 // counts the distrusts of the view
}

// Distrust sets the resources of a source, by type URL or collection and name, of which returning clients are not believed
// what they report: a client may have applied a part of an edition that was rejected, refused it, and still report the
// versions from before (envoy#12592). So it is sent such a resource although its version is equal, and the removal of one
// that the view does not have (B.3). Nil ends that. Any goroutine may call it; nobody may change the maps afterwards.
func (v *View) Distrust(source int, names map[string]map[string]struct{}) {
	for {
		last, now := v.distrust.Load(), &distrust{names: make(map[int]map[string]map[string]struct{})}
		if last != nil {
			now.names, now.revision = maps.Clone(last.names), last.revision
		}
		switch {
		case len(names) == 0:
			delete(now.names, source)
		case maps.EqualFunc(now.names[source], names, func(a, b map[string]struct{}) bool { return maps.Equal(a, b) }):
			return // clients that were sent these resources since are not sent them again
		default:
			now.names[source], now.revision = names, v.distrusts.Add(1)
		}
		if len(now.names) == 0 {
			now = nil
		}
		if v.distrust.CompareAndSwap(last, now) {
			return
		}
	}
}

// Distrusted returns the names that are distrusted of a type or collection, some perhaps twice.
func (v *View) Distrusted(key string) (names []string) {
	d := v.distrust.Load()
	if d == nil {
		return nil
	}
	for _, of := range d.names {
		for name := range of[key] {
			names = append(names, name)
		}
	}
	return names
}

// Distrusts reports whether a resource is distrusted, by its type URL or collection and name.
func (v *View) Distrusts(key, name string) bool {
	d := v.distrust.Load()
	if d == nil {
		return false
	}
	for _, of := range d.names {
		if _, is := of[key][name]; is {
			return true
		}
	}
	return false
}

// DistrustsAny reports whether any resource of a type or collection is distrusted.
func (v *View) DistrustsAny(key string) bool {
	d := v.distrust.Load()
	if d == nil {
		return false
	}
	for _, of := range d.names {
		if len(of[key]) > 0 {
			return true
		}
	}
	return false
}

// DistrustRevision returns a number that grows whenever more resources are distrusted; zero if none are.
func (v *View) DistrustRevision() uint64 {
	if d := v.distrust.Load(); d != nil {
		return d.revision
	}
	return 0
}
