package telemetry

import (
	"context"
	"encoding/hex"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/xdstender/tender/downstream"
)

// A histogramRow is the row of a histogram of durations.
type histogramRow struct {
	row
	read func(r *Reading, put putAll)
}

// histograms has all histograms. On the page of metrics they follow the table.
var histograms = []histogramRow{
	{
		row{
			name: "tender.client.propagation", kind: histogram, unit: "s", labels: "group type",
			help: "Time from the receipt of an origin's message to the ACK of the response that contains the change; for " +
				"several changes, the oldest. " +
				"First responses, responses to subscriptions and rejected responses do not count.",
		},
		groupHistograms(func(s downstream.TypeStats) downstream.Distribution { return s.Propagation }),
	},
	{
		row{
			name: "tender.client.fanout", kind: histogram, unit: "s", labels: "group type",
			help: "Time from the receipt of an origin's message to the last ACK or NACK of its change, or the end of the last stream without one. " +
				"At most 16 changes of a type are measured at the same time. Changes that a client does not answer for a minute " +
				"do not count.",
		},
		groupHistograms(func(s downstream.TypeStats) downstream.Distribution { return s.Fanout }),
	},
}

// groupHistograms reads a distribution per node group and type.
func groupHistograms(value func(downstream.TypeStats) downstream.Distribution) func(*Reading, putAll) {
	return func(r *Reading, put putAll) {
		for _, g := range r.Groups {
			for label, stats := range byLabel(g.Types, downstream.TypeStats.Plus) {
				put(value(stats), groupLabel(g.Key), label)
			}
		}
	}
}

// rows returns all instruments in the order of the page.
func rows() (all []*row) {
	for i := range table {
		all = append(all, &table[i])
	}
	for i := range histograms {
		all = append(all, &histograms[i].row)
	}
	return all
}

// A putAll takes a distribution and the values of the row's labels.
type putAll func(d downstream.Distribution, labels ...string)

// A producer exports the histograms. It implements sdk.Producer, because OpenTelemetry has no observable histogram.
type producer struct {
	read  func() Reading
	scope instrumentation.Scope
	began time.Time
}

// Produce implements sdk.Producer. It takes a reading.
func (p *producer) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	reading, now := p.read(), time.Now()
	out := metricdata.ScopeMetrics{Scope: p.scope}
	for i := range histograms {
		row := &histograms[i]
		data := metricdata.Histogram[float64]{Temporality: metricdata.CumulativeTemporality}
		row.read(&reading, func(d downstream.Distribution, labels ...string) {
			data.DataPoints = append(data.DataPoints, p.point(d, row.attributes(labels), now))
		})
		if len(data.DataPoints) > 0 {
			out.Metrics = append(out.Metrics, metricdata.Metrics{
				Name: row.name, Description: row.help, Unit: row.unit, Data: data,
			})
		}
	}
	return []metricdata.ScopeMetrics{out}, nil
}

// point converts a distribution to a data point.
func (p *producer) point(
	d downstream.Distribution, labels []attribute.KeyValue, now time.Time,
) metricdata.HistogramDataPoint[float64] {
	point := metricdata.HistogramDataPoint[float64]{
		Attributes: attribute.NewSet(labels...), StartTime: p.began, Time: now,
		Count: uint64(d.Count()), Sum: d.Sum.Seconds(),
	}
	for _, bound := range downstream.Bounds {
		point.Bounds = append(point.Bounds, bound.Seconds())
	}
	for _, n := range d.Buckets {
		point.BucketCounts = append(point.BucketCounts, uint64(n))
	}
	if e := d.Newest; e != nil {
		point.Exemplars = []metricdata.Exemplar[float64]{
			{Value: e.Took.Seconds(), Time: e.Ended, TraceID: idOf(e.TraceID), SpanID: idOf(e.SpanID)},
		}
	}
	return point
}

// idOf decodes the ID of a trace or a span. It returns nil for other text.
func idOf(digits string) []byte {
	id, err := hex.DecodeString(digits)
	if err != nil {
		return nil
	}
	return id
}
