package telemetry

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/xdstender/tender/relay/rollout"
)

// maxLinks is the maximum number of links of an edition to messages of the origin. Older messages are dropped first.
const maxLinks = 64

// Outcomes of an edition.
const (
	promoted   = "promoted"
	halted     = "halted"
	undone     = "undone"
	superseded = "superseded"
	reverted   = "reverted"
	unfinished = "unfinished" // the relay stopped
)

// An OriginTracer creates the traces of one origin: a trace per message, and a trace per edition of a rollout. The span
// of an edition starts when the edition is created, and ends when it is promoted, halted, reverted or superseded. It
// has links to the messages whose changes the edition contains. A nil OriginTracer creates no traces. Its methods may
// be called from any goroutine.
type OriginTracer struct {
	tracer *Tracer

	mu      sync.Mutex
	waiting []waitingChange // messages with a staged change, at most maxLinks
	dropped int             // number of older messages that are not in waiting
	parts   map[int]*partTrace
}

// A partTrace has the spans of the editions of a part of a rollout.
type partTrace struct {
	edition  *openEdition // nil if no edition is open
	previous trace.Link   // the last edition, if its changes are in the next edition
	promoted trace.Link   // the last promoted edition
}

// A waitingChange is a message with a change that not all clients receive yet.
type waitingChange struct {
	at   time.Time // when the change was applied
	span trace.SpanContext
}

// An openEdition is an edition whose span has not ended.
type openEdition struct {
	span    trace.Span
	id      string
	changed time.Time // when its newest change was applied
	stage   int       // number of stages that receive it
}

// Origin returns the tracer of the origin with a name.
func (t *Tracer) Origin(name string) *OriginTracer {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.origins[name] == nil {
		t.origins[name] = &OriginTracer{tracer: t}
	}
	return t.origins[name]
}

// endEditions ends the spans of open editions.
func (t *Tracer) endEditions() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.origins {
		o.mu.Lock()
		for _, p := range o.parts {
			if p.edition != nil {
				o.endEdition(p, unfinished, time.Now())
			}
		}
		o.mu.Unlock()
	}
}

// addWaiting records a message with a staged change. first is false if the message was recorded before.
func (o *OriginTracer) addWaiting(at time.Time, message trace.SpanContext) (first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.ContainsFunc(o.waiting, func(w waitingChange) bool { return w.span.Equal(message) }) {
		return false // recorded for another type or node group
	}
	if len(o.waiting) == maxLinks {
		o.waiting = slices.Delete(o.waiting, 0, 1)
		o.dropped++
	}
	o.waiting = append(o.waiting, waitingChange{at, message})
	return true
}

// Changed records a step of a part of the origin's rollout. It implements [rollout.ControllerConfig.Changed].
func (o *OriginTracer) Changed(number int, was, is *rollout.Status) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.parts[number]
	if p == nil {
		p = new(partTrace)
		if o.parts == nil {
			o.parts = make(map[int]*partTrace)
		}
		o.parts[number] = p
	}
	open := is.Phase == rollout.Held || is.Phase == rollout.Rolling
	outcome := o.replaceEdition(p, outcomeOf(was.Outcomes, is.Outcomes), is, open)
	if p.edition == nil && (open || slices.Contains([]string{promoted, halted, undone}, outcome)) {
		o.beginEdition(p, is, outcome == undone)
	}
	if p.edition != nil {
		p.recordStep(is)
		if !open {
			o.endEdition(p, cmp.Or(outcome, superseded), is.Since)
		}
	}
	if is.Phase != rollout.Current {
		return
	}
	p.previous = trace.Link{}
	o.forgetParts()
	if !o.anyOpen() { // no change is staged
		o.dropWaiting(is.Since)
	}
}

// maxPartTraces is the number of parts of which the links to former spans are kept at least.
const maxPartTraces = 128

// forgetParts forgets the oldest parts without an open span, if there are many.
func (o *OriginTracer) forgetParts() {
	if len(o.parts) <= 2*maxPartTraces {
		return
	}
	numbers := slices.Sorted(maps.Keys(o.parts))
	for _, number := range numbers[:len(numbers)-maxPartTraces] {
		if o.parts[number].edition == nil {
			delete(o.parts, number)
		}
	}
}

// anyOpen reports whether the span of an edition is open.
func (o *OriginTracer) anyOpen() bool {
	for _, p := range o.parts {
		if p.edition != nil {
			return true
		}
	}
	return false
}

// replaceEdition ends the span of the edition if the step also created the next edition. It returns the outcome of the
// current edition, or "" if that is open.
func (o *OriginTracer) replaceEdition(p *partTrace, outcome string, is *rollout.Status, open bool) string {
	if p.edition == nil || p.edition.id == is.Edition {
		return outcome
	}
	if open && outcome != "" {
		o.endEdition(p, outcome, is.Since)
		return ""
	}
	o.endEdition(p, superseded, is.Since)
	return outcome
}

// outcomeOf returns the outcome of an edition, or of gathered changes, given the counters before and after a step. It
// returns "" if the edition is open.
func outcomeOf(was, is rollout.Outcomes) string {
	switch {
	case is.Promoted > was.Promoted:
		return promoted
	case is.Undone > was.Undone: // precedes Halted, because an undo also halts
		return undone
	case is.Halted > was.Halted:
		return halted
	case is.Superseded > was.Superseded:
		return superseded
	case is.Reverted > was.Reverted:
		return reverted
	default:
		return ""
	}
}

// beginEdition starts the span of an edition, with links to its messages and to the edition that it replaces. The span
// of an undone edition has a link to that of its promotion. These spans are rare, so they are always sampled.
func (o *OriginTracer) beginEdition(p *partTrace, is *rollout.Status, undone bool) {
	var links []trace.Link
	messages := 0
	if undone {
		links = appendLink(links, p.promoted)
	} else {
		links = appendLink(links, p.previous)
		messages = o.dropped
		for _, w := range o.waiting {
			if w.at.After(is.Changed) {
				continue
			}
			if messages++; w.span.IsSampled() {
				links = append(links, trace.Link{SpanContext: w.span})
			}
		}
	}
	_, span := o.tracer.deliveries.Start(context.Background(), "rollout", trace.WithNewRoot(),
		trace.WithTimestamp(is.Since), trace.WithLinks(links...), trace.WithAttributes(
			attribute.String("tender.origin", is.Origin), attribute.String("tender.part", is.Part),
			attribute.String("tender.edition", is.Edition),
			attribute.Int("tender.resources", is.Resources), attribute.Int("tender.messages", messages),
		))
	p.edition = &openEdition{span: span, id: is.Edition, changed: is.Changed}
	if is.Phase == rollout.Held {
		span.AddEvent("held", trace.WithTimestamp(is.Since), trace.WithAttributes(attribute.String("tender.waits", is.WaitsFor)))
	}
}

func appendLink(links []trace.Link, l trace.Link) []trace.Link {
	if !l.SpanContext.IsValid() {
		return links
	}
	return append(links, l)
}

// recordStep records that the edition has reached a stage, or that it has been halted.
func (p *partTrace) recordStep(is *rollout.Status) {
	e := p.edition
	if is.Stage > e.stage {
		e.stage = is.Stage
		cohort := is.Cohorts[is.Stage-1]
		e.span.AddEvent("stage", trace.WithTimestamp(is.Since), trace.WithAttributes(
			attribute.Int("tender.stage", is.Stage), attribute.String("tender.cohort", cohort.Name),
			attribute.Int("tender.clients", cohort.Clients),
		))
	}
	if is.Unobserved {
		e.span.SetAttributes(attribute.Bool("tender.unobserved", true))
	}
	if is.Halted != nil {
		e.span.AddEvent("halt", trace.WithTimestamp(is.Halted.At),
			trace.WithAttributes(attribute.String("tender.reason", is.Halted.Reason)))
		e.span.SetAttributes(attribute.String("tender.reason", is.Halted.Reason))
		e.span.SetStatus(codes.Error, is.Halted.Reason)
	}
}

// endEdition ends the span of the edition with an outcome.
func (o *OriginTracer) endEdition(p *partTrace, outcome string, at time.Time) {
	e := p.edition
	e.span.SetAttributes(attribute.String("tender.outcome", outcome), attribute.Int("tender.stages", e.stage))
	e.span.End(trace.WithTimestamp(at))
	p.edition = nil
	link := trace.Link{
		SpanContext: e.span.SpanContext(), Attributes: []attribute.KeyValue{attribute.String("tender.edition", e.id)},
	}
	if p.previous = link; outcome != promoted {
		return
	}
	if p.previous, p.promoted = (trace.Link{}), link; !o.anyOpen() {
		o.dropWaiting(e.changed)
	}
}

// dropWaiting drops the messages up to a time. Their changes have reached all clients, or were superseded.
func (o *OriginTracer) dropWaiting(upTo time.Time) {
	o.dropped = 0
	o.waiting = slices.DeleteFunc(o.waiting, func(w waitingChange) bool { return !w.at.After(upTo) })
}
