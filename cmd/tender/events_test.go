package main

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// collectEvents starts an OTLP receiver, and configures relays that start later to export their events to it. The
// channel receives the events.
func collectEvents(t *testing.T) <-chan *logspb.LogRecord {
	t.Helper()
	records := make(chan *logspb.LogRecord, 64)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		m := new(collectorpb.ExportLogsServiceRequest)
		if err != nil || r.URL.Path != "/v1/logs" || proto.Unmarshal(body, m) != nil {
			t.Errorf("OTLP request %s: error %v, %d bytes, want logs", r.URL, err, len(body))
			return
		}
		for _, from := range m.ResourceLogs {
			for _, scope := range from.ScopeLogs {
				for _, record := range scope.LogRecords {
					records <- record
				}
			}
		}
	}))
	t.Cleanup(collector.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", collector.URL+"/v1/logs")
	t.Setenv("OTEL_BLRP_SCHEDULE_DELAY", "10")
	return records
}

// awaitEvents waits for n events, and returns them in order of their timestamps.
func awaitEvents(t *testing.T, records <-chan *logspb.LogRecord, n int) (events []*logspb.LogRecord) {
	t.Helper()
	for range n {
		select {
		case record := <-records:
			events = append(events, record)
		case <-time.After(relaytest.Patience):
			t.Fatalf("received %d events, want %d", len(events), n)
		}
	}
	slices.SortFunc(events, func(a, b *logspb.LogRecord) int { return int(a.TimeUnixNano) - int(b.TimeUnixNano) })
	return events
}

// checkEvent verifies that an event has the content of the audit record of a command.
func checkEvent(t *testing.T, got *logspb.LogRecord, want admin.Action) {
	t.Helper()
	attributes := make(map[string]string)
	for _, a := range got.Attributes {
		if status := a.Value.GetIntValue(); a.Key != "http.response.status_code" {
			attributes[a.Key] = a.Value.GetStringValue()
		} else if status != int64(want.Code) {
			t.Errorf("event of %s: status code %d, want %d", want.Command, status, want.Code)
		}
	}
	var arguments bytes.Buffer
	if err := json.Compact(&arguments, want.Arguments); err != nil && len(want.Arguments) > 0 {
		t.Fatal(err)
	}
	all := map[string]string{
		"tender.command": want.Command, "enduser.id": want.Operator, "client.address": want.From, "tender.via": want.Via,
		"tender.reason": want.Reason, "tender.arguments": arguments.String(), "error.message": want.Error,
	}
	severity := logspb.SeverityNumber_SEVERITY_NUMBER_INFO
	if want.Error != "" {
		all["error.type"], severity = strconv.Itoa(want.Code), logspb.SeverityNumber_SEVERITY_NUMBER_WARN
	}
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	if diff := cmp.Diff(all, attributes); diff != "" {
		t.Errorf("attributes of the event of %s (-want +got):\n%s", want.Command, diff)
	}
	if got.EventName != "tender.operator.action" || got.SeverityNumber != severity || got.TimeUnixNano != uint64(want.At.UnixNano()) ||
		!strings.Contains(got.Body.GetStringValue(), "operator action") {
		t.Errorf("event of %s: %v", want.Command, got)
	}
}
