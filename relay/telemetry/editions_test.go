package telemetry

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream"
)

// An editions simulates a rollout and records its spans.
type editions struct {
	*testing.T
	tracer *OriginTracer
	spans  *tracetest.InMemoryExporter
	at     time.Time
	is     rollout.Status
	names  map[string]string // names of messages by span ID
}

func newEditions(t *testing.T) *editions {
	t.Helper()
	e := &editions{T: t, spans: tracetest.NewInMemoryExporter(), at: time.Unix(1e9, 0), names: make(map[string]string)}
	tracer, err := NewTracer(t.Context(), e.spans, Config{Version: "v1", Instance: "i"})
	if err != nil {
		t.Fatal(err)
	}
	e.tracer = tracer.Origin("default")
	e.is = rollout.Status{
		Origin: "default", Cohorts: []rollout.Cohort{{Name: "5% 10m0s", Clients: 3}, {Name: "25% approve", Clients: 9},
			{Name: "the rest"}},
	}
	return e
}

// message simulates a message of the origin with a staged change, one second later.
func (e *editions) message(name string) {
	e.at = e.at.Add(time.Second)
	m := e.tracer.Received(upstream.Received{Origin: "127.0.0.1:1", At: e.at})
	m.(*received).Waits(e.at)
	m.(*received).Waits(e.at) // the message changes another type too
	m.Answered(nil)
	_, id := m.IDs()
	e.names[id] = name
}

// step simulates a step of the rollout to a phase and a stage of an edition, one second later. more changes the status.
func (e *editions) step(phase rollout.Phase, edition string, stage int, more ...func(*rollout.Status)) {
	e.at = e.at.Add(time.Second)
	was := e.is
	e.is.Phase, e.is.Edition, e.is.Stage, e.is.Since, e.is.Halted = phase, edition, stage, e.at, nil
	for _, change := range more {
		change(&e.is)
	}
	is := e.is
	e.tracer.Changed(1, &was, &is)
}

// createdNow marks the edition as created now, with all changes so far.
func (e *editions) createdNow(s *rollout.Status) { s.Changed, s.Resources = e.at, 7 }

func (e *editions) halt(s *rollout.Status) {
	s.Outcomes.Halted++
	s.Halted = &rollout.Halt{Reason: "too bad", At: e.at}
}

// ended returns the spans of editions that ended since the last call, one per line.
func (e *editions) ended() string {
	var lines []string
	for _, s := range e.spans.GetSpans() {
		if s.Name != "rollout" {
			continue
		}
		line := []string{fmt.Sprintf("%.0fs", s.EndTime.Sub(s.StartTime).Seconds())}
		attributes := make(map[string]string)
		for _, kv := range s.Attributes {
			attributes[strings.TrimPrefix(string(kv.Key), "tender.")] = kv.Value.String()
		}
		e.names[s.SpanContext.SpanID().String()] = attributes["outcome"] + " " + attributes["edition"]
		for _, name := range []string{"edition", "resources", "messages", "stages", "unobserved", "reason", "outcome"} {
			if value, ok := attributes[name]; ok {
				line = append(line, name+"="+value)
			}
		}
		for _, event := range s.Events {
			text := fmt.Sprintf("@%.0fs %s", event.Time.Sub(s.StartTime).Seconds(), event.Name)
			for _, kv := range event.Attributes {
				text += " " + kv.Value.String()
			}
			line = append(line, text)
		}
		if s.Status.Code == codes.Error {
			line = append(line, "error: "+s.Status.Description)
		}
		for _, l := range s.Links {
			line = append(line, "<- "+e.names[l.SpanContext.SpanID().String()])
		}
		lines = append(lines, strings.Join(line, ", "))
	}
	e.spans.Reset()
	return strings.Join(lines, "\n")
}

func (e *editions) expect(when string, want ...string) {
	e.Helper()
	if got := e.ended(); got != strings.Join(want, "\n") {
		e.Errorf("%s: spans of editions\n%s\nwant\n%s", when, got, strings.Join(want, "\n"))
	}
}

// TestTraceOfAnEdition checks that an edition has one span from its creation to its end, with its stages as events and
// links to its messages.
func TestTraceOfAnEdition(t *testing.T) {
	e := newEditions(t)
	e.message("one")
	e.step(rollout.Gathering, "", 0)
	e.message("two")
	changed := e.at
	e.message("late") // after the creation of the edition
	e.step(rollout.Held, "A", 0, e.createdNow, func(s *rollout.Status) { s.WaitsFor, s.Changed = "the check", changed })
	e.message("three")
	e.step(rollout.Rolling, "A", 1)
	e.step(rollout.Rolling, "A", 2, func(s *rollout.Status) { s.Unobserved = true })
	e.expect("on its way")
	e.step(rollout.Gathering, "A", 0, func(s *rollout.Status) { s.Outcomes.Promoted++ })
	e.expect("promoted", "4s, edition=A, resources=7, messages=2, stages=2, unobserved=true, outcome=promoted, "+
		"@0s held the check, @2s stage 1 5% 10m0s 3, @3s stage 2 25% approve 9, <- one, <- two")

	e.step(rollout.Rolling, "B", 1, e.createdNow, func(s *rollout.Status) { s.Unobserved = false })
	e.step(rollout.Halted, "B", 0, e.halt)
	e.expect("the next one", "1s, edition=B, resources=7, messages=2, stages=1, reason=too bad, outcome=halted, @0s "+
		"stage 1 5% 10m0s 3, @1s halt too bad, error: too bad, <- late, <- three")

	e.message("four")
	e.step(rollout.Gathering, "B", 0)
	e.step(rollout.Rolling, "C", 1, e.createdNow)
	e.step(rollout.Current, "C", 0, func(s *rollout.Status) { s.Outcomes.Promoted++ })
	e.expect("the corrected one", "1s, edition=C, resources=7, messages=3, stages=1, outcome=promoted, @0s stage 1 5% "+
		"10m0s 3, <- halted B, <- late, <- three, <- four")
	e.step(rollout.Halted, "C", 0, e.halt, func(s *rollout.Status) { s.Outcomes.Undone++ })
	e.expect("undone", "0s, edition=C, resources=7, messages=0, stages=0, reason=too bad, outcome=undone, @0s halt too "+
		"bad, error: too bad, <- promoted C")
}

// TestTraceOfAnEditionByOutcome checks the spans of editions that end before their last stage.
func TestTraceOfAnEditionByOutcome(t *testing.T) {
	e := newEditions(t)
	e.message("one")
	e.step(rollout.Gathering, "", 0)
	e.step(rollout.Rolling, "A", 1, e.createdNow)
	e.message("two")
	e.step(rollout.Gathering, "A", 0, func(s *rollout.Status) { s.Outcomes.Superseded++ })
	e.expect("superseded", "2s, edition=A, resources=7, messages=1, stages=1, outcome=superseded, @0s stage 1 5% 10m0s "+
		"3, <- one")
	e.step(rollout.Rolling, "B", 1, e.createdNow)
	e.step(rollout.Current, "B", 0, func(s *rollout.Status) { s.Outcomes.Reverted++ })
	e.expect("reverted", "1s, edition=B, resources=7, messages=2, stages=1, outcome=reverted, @0s stage 1 5% 10m0s 3, "+
		"<- superseded A, <- one, <- two")
	e.step(rollout.Gathering, "B", 0)
	e.step(rollout.Current, "B", 0, func(s *rollout.Status) { s.Outcomes.Reverted++ })
	e.expect("reverted before creation")

	e.step(rollout.Gathering, "B", 0)
	e.step(rollout.Halted, "C", 0, e.createdNow, e.halt)
	e.expect("aborted before creation", "0s, edition=C, resources=7, messages=0, stages=0, reason=too bad, "+
		"outcome=halted, @0s halt too bad, error: too bad")
	e.step(rollout.Current, "D", 0, e.createdNow, func(s *rollout.Status) { s.Outcomes.Promoted++ })
	e.expect("promoted at once", "0s, edition=D, resources=7, messages=0, stages=0, outcome=promoted, <- halted C")

	e.step(rollout.Rolling, "E", 1, e.createdNow)
	e.step(rollout.Held, "F", 0, e.createdNow,
		func(s *rollout.Status) { s.Outcomes.Superseded, s.WaitsFor = s.Outcomes.Superseded+1, "none" })
	e.step(rollout.Rolling, "G", 2, e.createdNow, func(s *rollout.Status) { s.Outcomes.Promoted++ })
	e.step(rollout.Current, "H", 0, e.createdNow, func(s *rollout.Status) { s.Outcomes.Promoted++ })
	e.expect("several in one step",
		"1s, edition=E, resources=7, messages=0, stages=1, outcome=superseded, @0s stage 1 5% 10m0s 3",
		"1s, edition=F, resources=7, messages=0, stages=0, outcome=promoted, @0s held none, <- superseded E",
		"1s, edition=G, resources=7, messages=0, stages=2, outcome=superseded, @0s stage 2 25% approve 9",
		"0s, edition=H, resources=7, messages=0, stages=0, outcome=promoted, <- superseded G")
}

// TestTraceOfAnEditionAtShutdown checks that the span of an open edition is exported at the shutdown.
func TestTraceOfAnEditionAtShutdown(t *testing.T) {
	e := newEditions(t)
	e.step(rollout.Rolling, "A", 1)
	e.tracer.tracer.endEditions()
	spans := e.spans.GetSpans()
	if len(spans) != 1 || !slices.ContainsFunc(spans[0].Attributes,
		func(kv attribute.KeyValue) bool { return kv.Value.String() == unfinished }) {
		t.Errorf("spans %+v, want one with the outcome unfinished", spans)
	}
	var none *Tracer
	none.Origin("default").Changed(1, nil, nil)
}

// TestEditionsHaveFewLinks checks that an edition of many messages has links to the newest sampled messages, and the
// number of all messages.
func TestEditionsHaveFewLinks(t *testing.T) {
	e := newEditions(t)
	for i := range maxLinks + 3 {
		e.message(fmt.Sprint(i))
	}
	e.step(rollout.Gathering, "", 0)
	e.step(rollout.Rolling, "A", 1, e.createdNow)
	e.step(rollout.Current, "A", 0, func(s *rollout.Status) { s.Outcomes.Promoted++ })
	got := e.ended()
	if !strings.Contains(got, "messages=67,") || strings.Count(got, "<- ") != maxLinks ||
		!strings.Contains(got, "<- 3,") || !strings.HasSuffix(got, "<- 66") {
		t.Errorf("span of an edition of many messages: %s", got)
	}
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	e = newEditions(t)
	e.message("one")
	e.step(rollout.Gathering, "", 0)
	e.step(rollout.Rolling, "A", 1, e.createdNow)
	e.step(rollout.Current, "A", 0, func(s *rollout.Status) { s.Outcomes.Promoted++ })
	e.expect("not sampled", "1s, edition=A, resources=7, messages=1, stages=1, outcome=promoted, @0s stage 1 5% 10m0s 3")
}
