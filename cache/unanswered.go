package cache

// An Unanswered name is one that somebody asked for, and of which the view knows nothing.
type Unanswered struct {
	Type string // or the collection, see Collection
	Name *Name
}

// Unanswered returns the names that streams ask for and of which the view knows nothing, not
// even that they do not exist.
func (v *View) Unanswered() (names []Unanswered) {
	h := v.Head()
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, t := range x.types {
		typ := h.Type(key)
		for _, n := range t.names {
			if len(n.watchers) == 0 {
				continue
			}
			if e, _ := typ.Lookup(n); e == nil && typ.Errors(Named).Get(n) == nil {
				names = append(names, Unanswered{key, n})
			}
		}
	}
	return names
}
