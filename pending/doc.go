// Package pending holds the changes of an origin that clients are not sent yet.
//
// An origin, a directory or a shared view states its newest resources to a [List], which stands in front of the writer of a
// view. A change passes, and is then applied to the view like any other response, or it waits in the list as a row: the newest
// state of one name of a set. So the newest state of the origin is what the view serves overlaid by the list, and the view and
// its streams know of nothing that waits:
//
//	origin ─▶ List.Apply ─┬─ passes ───────────────▶ Writer.Apply ─▶ generation ─▶ streams
//	                      └─ waits: rows ────────▲                      ▼ follows
//	                               List.Step, Thaw, Show ────────────▶ views of cohorts
//
// A newer state of a name replaces its row. Where nothing may wait, a list costs one comparison.
//
// # What waits in front of the list
//
// What an origin may not have meant is held before it reaches the list, by package reconcile; operators see both together. A
// removal that a new stream implies, by silence or in its first response, waits until the set is complete: until the origin has
// mentioned the rest, or was asked for it. A large one then waits for a second look, that of a required name (TENDER_REQUIRED) for
// an operator, abnormal growth for a time, and a change that would break clients until it does not; an operator can end each. What
// excludes one another, such as listeners on one address, passes or waits together. So the newest state that a list has is what was
// let pass:
//
//	origin ─▶ reconcile.Set.Take ─┬─ passes ─▶ List.Apply
//	                              └─ held: removals, growth, required names, changes that break ──▶ List.Apply, or dropped
//
// # What waits for an operator
//
// While an operator has frozen an origin, all changes wait ([List.Freeze]); after a rollback, clients have an earlier state,
// and changes of some types wait ([List.RollBack]). Some state cannot wait, above all the first one of a name
// ([cache.Writer.ApplyFirst]). A row is then the state of one name, since a response means what it means together with what
// was stated before. [List.Thaw] gives clients the newest state of each name.
//
// # What waits for stages
//
// In a view with cohorts ([cache.Config.Cohorts]), changes of some types wait until they are shown. An [Edition] is a copy of
// rows ([List.Pin]). [List.Show] gives it to the clients of a cohort, and at last to the rest, whose rows it ends.
// [List.ShowAsRest] withdraws it. Which change waits is decided as after a rollback; but first states pass, and a set that is
// not known to be complete waits for no stage. [Staged] counts what waits, and compares it with an edition.
//
// # What waits for an interval
//
// A [Clock] paces the changes of a view (B.45): those of a type wait until its minimum push interval has passed, and while
// those of another type wait that must be sent before them (B.11). The lists of all origins of a view share its clock. What
// cannot wait ends the wait of its type, and of what depends on it: the first state of a set or of a name, content that
// expires or may not be cached, a change in how complete a set is known to be, and a new or lost connection.
//
// The names that the list adds, and that clients cannot see yet, are known to the view ([cache.Writer.Await]): a client that
// comes from another replica may have them, and keeps them.
//
// # Reading order
//
// A file uses only identifiers that it or a file before it declares, except the types of struct fields:
//
//	delay.go     how long a change has waited
//	clock.go     which changes wait for an interval, and for what
//	list.go      the list of one writer, and which changes it stops
//	rows.go      what waits
//	newest.go    what the list states, for the writer
//	edition.go   what waits for stages, and editions of it
//	graph.go     what tells which changes belong together
//	staged.go    how much waits for stages, also compared with an edition
//	interval.go  what waits for an interval
//	freeze.go    what waits for an operator
//	stage.go     what cohorts and the rest are shown
//	snapshot.go  what a snapshot has of the list
//	apply.go     what an origin states
//	copy.go      rows of a copied view
//
// # Concurrency properties
//
// A list belongs to the goroutine of its writer, which calls Step at the time that it returned, and whenever [List.Wake]
// receives. Any goroutine may use a clock. The package starts no goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package pending
