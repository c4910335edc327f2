package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/upstream"
)

// A Tracer creates a trace per message of an origin, and a trace per edition of a rollout ([OriginTracer.Changed]). The
// trace of a message has the spans origin.receive, cache.apply, fanout and deliver, each the parent of the next. A nil
// Tracer creates no traces. Its methods may be called from any goroutine.
type Tracer struct {
	provider *sdk.TracerProvider

	// changes samples according to the OTEL_… variables. deliveries samples all spans, because the caller selects them:
	// slow and rejected deliveries have spans even if their change has none.
	changes, deliveries trace.Tracer

	mu      sync.Mutex
	origins map[string]*OriginTracer // by name
}

// NewTracer returns a tracer that sends each span to an exporter when the span ends. If to is nil, it sends batches to
// the exporter of the environment, or returns nil if it has none.
func NewTracer(ctx context.Context, to sdk.SpanExporter, cfg Config) (*Tracer, error) {
	var sink sdk.TracerProviderOption
	switch {
	case to != nil:
		sink = sdk.WithSyncer(to)
	default:
		exporter, ok := cfg.Environment.spanExporter(ctx)
		if !ok {
			return nil, nil
		}
		sink = sdk.WithSpanProcessor(sdk.NewBatchSpanProcessor(exporter))
	}
	from, err := resourceOf(ctx, cfg)
	if err != nil {
		return nil, err
	}
	version := trace.WithInstrumentationVersion(cfg.Version)
	sampled, all := sdk.NewTracerProvider(sink, sdk.WithResource(from)),
		sdk.NewTracerProvider(sink, sdk.WithResource(from), sdk.WithSampler(sdk.AlwaysSample()))
	return &Tracer{
		provider: sampled, changes: sampled.Tracer(scope, version), deliveries: all.Tracer(scope, version),
		origins: make(map[string]*OriginTracer),
	}, nil
}

// Shutdown exports the remaining spans. It returns when that is done or ctx ends.
func (t *Tracer) Shutdown(ctx context.Context) error {
	if t == nil {
		return nil
	}
	t.endEditions()
	return t.provider.Shutdown(ctx)
}

// A received is the trace of a message of an origin. It implements upstream.Trace.
type received struct {
	origin *OriginTracer
	ctx    context.Context
	span   trace.Span
}

// Received starts the trace of a message.
func (o *OriginTracer) Received(r upstream.Received) upstream.Trace {
	ctx, span := o.tracer.changes.Start(remoteParent(r.TraceParent), "origin.receive", trace.WithTimestamp(r.At),
		trace.WithSpanKind(trace.SpanKindConsumer))
	if span.IsRecording() {
		span.SetAttributes(attribute.Int("tender.resources", r.Resources), attribute.Int("tender.removed", r.Removed))
		setTexts(span, "tender.origin", r.Origin, "tender.type_url", r.TypeURL, "tender.version", r.Version,
			"tender.nonce", r.Nonce)
		setAddress(span, "network.peer", r.Address)
		if r.Address != "" { // a response, and not a directory
			setAddress(span, "server", r.Origin[strings.LastIndexByte(r.Origin, '/')+1:])
		}
	}
	return &received{o, ctx, span}
}

// traceparent is the key of the trace context that a relay above sends.
const traceparent = "traceparent"

// remoteParent returns a context with the span that a relay above names, or an empty one if it names none.
func remoteParent(parent string) context.Context {
	ctx := context.Background()
	if parent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: parent})
}

// setTexts sets the attributes of pairs of a key and a value that is not empty.
func setTexts(span trace.Span, pairs ...string) {
	for pair := range slices.Chunk(pairs, 2) {
		if key, value := pair[0], pair[1]; value != "" {
			span.SetAttributes(attribute.String(key, value))
		}
	}
}

// setAddress sets the attributes of an address, such as 192.0.2.1:18000: that at the other end of a connection (network.peer), or
// that of a server as it is configured (server).
//
// Source: OpenTelemetry semantic conventions, general attributes.
func setAddress(span trace.Span, of, address string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil { // it has no port, as that of a Unix socket
		setTexts(span, of+".address", address)
		return
	}
	setTexts(span, of+".address", host)
	if number, err := strconv.Atoi(port); err == nil {
		span.SetAttributes(attribute.Int(of+".port", number))
	}
}

// Answered implements upstream.Trace.
func (r *received) Answered(err error) {
	if err != nil {
		r.span.SetStatus(codes.Error, err.Error())
	}
	r.span.End()
}

// IDs implements upstream.Trace.
func (r *received) IDs() (traceID, spanID string) { return ids(r.span) }

func ids(span trace.Span) (traceID, spanID string) {
	return span.SpanContext().TraceID().String(), span.SpanContext().SpanID().String()
}

// Applied implements cache.Trace.
func (r *received) Applied(a cache.Application) fanout.Span {
	ctx, span := r.origin.tracer.changes.Start(r.ctx, "cache.apply", trace.WithTimestamp(a.Began))
	defer span.End(trace.WithTimestamp(a.Ready))
	if span.IsRecording() {
		setType(span, a.Type)
		span.SetAttributes(
			attribute.Int("tender.changed", a.Change.Changed), attribute.Int("tender.new", a.Change.New),
			attribute.Int("tender.removed", a.Change.Removed), attribute.Bool("tender.followed", a.Followed),
		)
	}
	if !a.Followed {
		return nil
	}
	_, fan := r.origin.tracer.changes.Start(ctx, "fanout", trace.WithTimestamp(a.Ready))
	if fan.IsRecording() {
		setType(fan, a.Type)
		fan.SetAttributes(attribute.Int("tender.resources", a.Change.Changed), attribute.Int("tender.removed", a.Change.Removed))
	}
	return fanoutSpan{fan}
}

// Waits implements cache.Trace.
func (r *received) Waits(at time.Time) {
	if first := r.origin.addWaiting(at, r.span.SpanContext()); first {
		r.span.AddEvent("waits", trace.WithTimestamp(at))
	}
}

// Waited implements cache.Trace.
func (r *received) Waited(reason string, since, until time.Time) {
	_, span := r.origin.tracer.changes.Start(r.ctx, "pending", trace.WithTimestamp(since))
	span.SetAttributes(attribute.String("tender.reason", reason))
	span.End(trace.WithTimestamp(until))
}

// setType sets the attributes of a type and its served version.
func setType(span trace.Span, t *cache.Type) {
	typeURL, glob, _ := cache.SplitCollection(t.URL)
	version := t.System()
	if t.Wildcard.Count() > 0 {
		version = t.Wildcard.Sum().Version(version)
	}
	setTexts(span, "tender.type_url", typeURL, "tender.version", version, "tender.glob", glob)
}

// A fanoutSpan is the span of a fan-out. It implements fanout.Span.
type fanoutSpan struct{ trace.Span }

func (f fanoutSpan) Sampled() bool { return f.IsRecording() }

func (f fanoutSpan) IDs() (traceID, spanID string) { return ids(f.Span) }

func (f fanoutSpan) Context() string {
	carrier := make(propagation.MapCarrier, 1)
	propagation.TraceContext{}.Inject(trace.ContextWithSpan(context.Background(), f.Span), carrier)
	return carrier[traceparent]
}

// EndFanout ends the span of a completed fan-out.
func (t *Tracer) EndFanout(f *fanout.Fanout) {
	span, ok := f.Span.(fanoutSpan)
	if !ok || !span.IsRecording() {
		return
	}
	attributes := []attribute.KeyValue{
		attribute.Int("tender.streams", f.Streams()), attribute.Int("tender.unanswered", f.Unanswered()),
	}
	for _, o := range []fanout.Outcome{fanout.Accepted, fanout.Rejected, fanout.NotNeeded, fanout.StreamClosed} {
		attributes = append(attributes, attribute.Int("tender."+o.String(), f.Count(o)))
	}
	if times := f.Times(); len(times) > 0 {
		slices.Sort(times)
		at := func(part float64) float64 { return times[int(part*float64(len(times)-1))].Seconds() }
		attributes = append(attributes, attribute.Float64("tender.took.p50", at(0.5)),
			attribute.Float64("tender.took.p99", at(0.99)))
	}
	var ended []trace.SpanEndOption // now, unless clients were given up before
	if took := f.Took(); took > 0 {
		attributes = append(attributes, attribute.Float64("tender.took.max", took.Seconds()))
		if f.Unanswered() > 0 {
			ended = append(ended, trace.WithTimestamp(f.Received.Add(took)))
		}
	}
	span.SetAttributes(attributes...)
	if f.Count(fanout.Rejected)+f.Unanswered() > 0 {
		span.SetStatus(codes.Error, fmt.Sprintf("%d rejected, %d unanswered", f.Count(fanout.Rejected), f.Unanswered()))
	}
	span.End(ended...)
}

// Requested creates a span for a request to an origin, and a span for each subscription that caused it. They have links
// to each other.
func (t *Tracer) Requested(r upstream.Request) {
	ctx, request := t.changes.Start(context.Background(), "origin.request", trace.WithTimestamp(r.At),
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
			attribute.String("tender.origin", r.Origin), attribute.String("tender.type_url", r.TypeURL),
			attribute.Int("tender.names", r.Names),
		))
	defer request.End()
	if !request.IsRecording() {
		return
	}
	for _, d := range r.By {
		ctx, by := t.deliveries.Start(context.Background(), "client.subscribe", trace.WithTimestamp(d.At),
			trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithLinks(trace.LinkFromContext(ctx)), trace.WithAttributes(attribute.Int64("tender.stream", int64(d.By.Stream))))
		setTexts(by, "tender.node", d.By.Node, "tender.group", d.By.Group, "tender.type_url", r.TypeURL)
		request.AddLink(trace.LinkFromContext(ctx))
		by.End(trace.WithTimestamp(r.At))
	}
}

// Delivered creates the span of a completed delivery, and returns its IDs.
func (t *Tracer) Delivered(d downstream.Delivery) (traceID, spanID string) {
	parent, links := spansOf(d.Fanouts)
	ctx := context.Background()
	if parent.IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, parent)
	}
	_, span := t.deliveries.Start(ctx, "deliver", trace.WithTimestamp(d.Began), trace.WithLinks(links...),
		trace.WithSpanKind(trace.SpanKindProducer))
	span.SetAttributes(
		attribute.Int64("tender.stream", int64(d.Stream)), attribute.Int("tender.bytes", d.Bytes),
		attribute.Float64("tender.queued", d.Sent.Sub(d.Began).Seconds()),
		attribute.Float64("tender.took", d.Ended.Sub(d.Caused).Seconds()),
	)
	setTexts(span, "tender.node", d.Node, "tender.group", d.Group, "tender.type_url", d.TypeURL, "tender.nonce", d.Nonce,
		"tender.version", d.Version, "tender.outcome", d.Outcome.String())
	setClient(span, &d)
	span.AddEvent("sent", trace.WithTimestamp(d.Sent))
	if d.Outcome == fanout.Rejected {
		setTexts(span, "rpc.response.status_code", code.Code_name[int32(d.Code)])
		span.SetStatus(codes.Error, cmp.Or(d.Detail, "rejected"))
	}
	if d.Outcome == fanout.Unanswered {
		span.SetStatus(codes.Error, "not answered within "+fanout.GiveUp.String())
	}
	span.End(trace.WithTimestamp(d.Ended))
	return ids(span)
}

// setClient sets the attributes of the client of a delivery.
func setClient(span trace.Span, d *downstream.Delivery) {
	var node corepb.Node
	if proto.Unmarshal([]byte(d.Shown), &node) == nil { // it may be shortened, but the relay has encoded it
		setTexts(span, "tender.cluster", node.GetCluster(), "tender.region", node.GetLocality().GetRegion(),
			"tender.zone", node.GetLocality().GetZone())
	}
	if d.Address != nil {
		setAddress(span, "network.peer", d.Address.String())
	}
}

// spansOf returns the span of the oldest fan-out, and links to the spans of the others.
func spansOf(all *fanout.List) (parent trace.SpanContext, links []trace.Link) {
	oldest := all.Oldest()
	for l := all; l != nil; l = l.Others {
		if span, ok := l.Span.(fanoutSpan); ok && l.Fanout == oldest {
			parent = span.SpanContext()
		} else if ok {
			links = append(links, trace.Link{SpanContext: span.SpanContext()})
		}
	}
	return parent, links
}
