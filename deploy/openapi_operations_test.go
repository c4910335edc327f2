package deploy_test

import (
	"net/http"

	"github.com/xdstender/tender/relay/admin"
)

// An operation is a method and a path of the admin API.
type operation struct {
	method, path string
	summary      string
	query        []parameter
	args, answer any    // zero values of the types of the bodies; an answer of nil is not JSON
	media        string // of an answer that is not JSON
	codes        []int  // of errors beside those that all operations have
}

// A parameter is one of the query, or of the path.
type parameter struct{ name, description string }

// errorAnswer is the body of every error.
type errorAnswer struct {
	Error string `json:"error"`
}

// Parameters of several operations.
var (
	byType   = parameter{"type", "A type URL, or a short name such as cds"}
	byGroup  = parameter{"group", "The key or the name of a node group"}
	byOrigin = parameter{"origin", "The name of an origin"}
	byLimit  = parameter{"limit", "The maximum number of entries, at most 1000; 0 returns totals only"}
	byRelay  = parameter{"relay", "The address of the relay, as in /api/v1/tier"}
	after    = parameter{"after", "The field next of the previous page"}
)

// Parameters of a list of clients, and of one client.
var (
	ofClients = []parameter{
		byType, {"id", "The node ID"}, {"node", "Text that the node ID contains"}, {"cluster", "The cluster of the Node"},
		{"zone", "The zone of the Node's locality"}, byGroup, {"sync", "rejecting, stalled, behind, unknown or in-sync"},
		{"rejected", "true for clients that reject configuration"}, {"stalled", "true for clients that do not read"},
		{"sort", "lag (the default) or number"}, {"totals", "false omits the totals, with sort=number"}, byLimit, after,
	}
	ofClient = []parameter{
		byType, {"state", "The state of resources: not_sent, sent, accepted, rejected, or not_accepted for all but accepted"}, byLimit, after,
	}
)

// operations are all operations of the admin API.
func operations() []operation {
	all := append(probes(), reads()...)
	return append(all, commands()...)
}

func probes() []operation {
	return []operation{
		{method: http.MethodGet, path: "/livez", summary: "Report that the process runs", media: "text/plain"},
		{method: http.MethodGet, path: "/readyz", summary: "Report whether clients may be sent to the relay; 503 with the reasons if not", media: "text/plain", codes: []int{503}},
		{method: http.MethodGet, path: "/metrics", summary: "Export metrics for Prometheus", media: "text/plain"},
		{method: http.MethodGet, path: "/api/v1/dump", summary: "Download diagnostics as a gzipped tar", media: "application/gzip"},
	}
}

func reads() []operation {
	const v1, get = "/api/v1/", http.MethodGet
	return []operation{
		{method: get, path: v1 + "status", summary: "Show the state of the relay, its origins, views and credential files", answer: admin.Status{}},
		{method: get, path: v1 + "pending", summary: "List the changes that clients do not receive yet", answer: admin.Pending{}, codes: []int{404},
			query: []parameter{byOrigin, byGroup, byType, {"name", "The name of a resource"}, {"reason", "Why the changes wait, such as breaking"}}},
		{method: get, path: v1 + "clients", summary: "List client streams", answer: admin.Clients{}, query: ofClients},
		{method: get, path: v1 + "clients/{number}", summary: "Show one client stream", answer: admin.ClientDetail{}, codes: []int{404}, query: ofClient},
		{method: get, path: v1 + "resources", summary: "List the resources of a type", answer: admin.Resources{}, query: []parameter{
			byType, byGroup, {"contains", "Text that the name contains"}, {"name", "One name; the response is then a ResourceDetail"},
			{"format", "json (the default) or yaml, for bodies"}, byLimit, after,
		}},
		{method: get, path: v1 + "history", summary: "List the last changes of a resource", answer: admin.History{},
			query: []parameter{byType, {"name", "The name of the resource"}, byGroup, byLimit}},
		{method: get, path: v1 + "actions", summary: "List the commands that operators sent", answer: admin.Actions{}, query: []parameter{byLimit}},
		{method: get, path: v1 + "tier", summary: "Show all relays of the tier", answer: admin.TierStatus{}, codes: []int{404, 409}},
		{method: get, path: v1 + "tier/self", summary: "Show this relay, for its peers", answer: admin.TierSummary{}, codes: []int{404, 409}},
		{method: get, path: v1 + "tier/snapshot", summary: "Take the state of this relay, as its peer: a tar archive of snapshots and decisions", media: "application/x-tar", codes: []int{404, 409}},
		{method: get, path: v1 + "tier/clients", summary: "List client streams of one relay of the tier", answer: admin.Clients{}, codes: []int{404, 409, 502},
			query: append([]parameter{byRelay}, ofClients...)},
		{method: get, path: v1 + "tier/clients/{number}", summary: "Show one client stream of one relay of the tier", answer: admin.ClientDetail{}, codes: []int{404, 409, 502},
			query: append([]parameter{byRelay}, ofClient...)},
		{method: get, path: v1 + "rollouts", summary: "Show rollouts", answer: admin.Rollouts{}, codes: []int{404}, query: []parameter{byOrigin}},
		{method: get, path: v1 + "rollout/diff", summary: "Show what a rollout changes", answer: admin.RolloutDiff{}, codes: []int{404, 409},
			query: []parameter{byOrigin, byType, byGroup, {"name", "The name of a resource; with a type, the response has bodies"}, byLimit, after}},
		{method: get, path: v1 + "generations", summary: "List the configurations that clients were served", answer: admin.Generations{}, codes: []int{404, 409},
			query: []parameter{byOrigin, byGroup, byLimit}},
		{method: get, path: v1 + "rollback/diff", summary: "Show what a rollback changes", answer: admin.RolloutDiff{}, codes: []int{404, 409},
			query: []parameter{{"to", "A generation, or a duration such as 10m"}, byOrigin, byType, byGroup, {"name", "The name of a resource; with a type, the response has bodies"}, byLimit, after}},
		{method: get, path: v1 + "pending/diff", summary: "Show what the pending changes change for clients", answer: admin.RolloutDiff{}, codes: []int{404},
			query: []parameter{byOrigin, byType, byGroup, {"name", "The name of a resource; with a type, the response has bodies"}, byLimit, after}},
		{method: get, path: v1 + "thaw/diff", summary: "Show what a thaw changes", answer: admin.RolloutDiff{}, codes: []int{404},
			query: []parameter{byOrigin, byType, byGroup, {"name", "The name of a resource; with a type, the response has bodies"}, byLimit, after}},
	}
}

func commands() []operation {
	const v1, post = "/api/v1/", http.MethodPost
	all := []operation{
		{method: post, path: v1 + "freeze", summary: "Stop the distribution of changes", args: admin.FreezeScope{}, answer: admin.Freezes{}},
		{method: post, path: v1 + "thaw", summary: "Resume the distribution of changes", args: admin.FreezeScope{}, answer: admin.Freezes{}},
		{method: post, path: v1 + "rollback", summary: "Serve clients an earlier configuration", args: admin.RollbackScope{}, answer: admin.Rollbacks{},
			codes: []int{404, 409}},
		{method: post, path: v1 + "pending", summary: "List the changes that clients do not receive yet", args: admin.PendingChoice{}, answer: admin.Pending{},
			codes: []int{404}},
		{method: post, path: v1 + "pass", summary: "Send clients pending changes", args: admin.PendingScope{}, answer: admin.PendingDecision{},
			codes: []int{404, 409}},
		{method: post, path: v1 + "drop", summary: "Keep the resources whose changes are pending", args: admin.PendingScope{}, answer: admin.PendingDecision{},
			codes: []int{404, 409}},
		{method: post, path: v1 + "audit", summary: "Compare the cache with the origins", args: admin.AuditScope{}, answer: admin.Audits{}},
		{method: post, path: v1 + "loglevel", summary: "Change the log level", args: admin.LogLevel{}, answer: admin.LogLevelChange{}},
	}
	for _, c := range all {
		c.path, c.answer = v1+"tier/"+c.path[len(v1):], admin.TierAnswers{}
		c.summary += ", on all relays of the tier"
		c.codes = []int{404, 409}
		all = append(all, c)
	}
	for _, c := range [][2]string{
		{"promote", "Serve an edition to the next stage"}, {"abort", "Reject an edition"},
		{"resume", "Start a halted rollout again"}, {"undo", "Revert the newest promotion to all clients"},
	} {
		all = append(all, operation{
			method: post, path: v1 + "rollout/" + c[0], summary: c[1], args: admin.RolloutScope{}, answer: admin.Rollouts{}, codes: []int{404, 409},
		})
	}
	return all
}
