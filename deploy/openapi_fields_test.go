package deploy_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// fieldMeanings describes the fields of the API whose Go fields have no comment, by field, or by schema and field where the
// field of one schema means something else.
var fieldMeanings = map[string]string{
	"accepted_at":    "Time of the last ACK",
	"address":        "Address of the client",
	"all":            "Required without a selection",
	"before":         "The value before the command",
	"began":          "Begin of the stream",
	"behind":         "Clients whose sync is behind, also stalled ones",
	"by":             "The operator: the identity of the certificate, or the claimed user and the address",
	"bytes":          "Encoded size",
	"changed":        "Number of changed resources",
	"changes":        "The changes, in the order that the operation states",
	"changing":       "Different resources that changed less than 5 s ago",
	"clients":        "Number of clients",
	"cluster":        "Cluster of the Node of the first request",
	"count":          "Number of them",
	"detail":         "Where and why",
	"details":        "For breaking: why each of the names would break clients",
	"dry_run":        "True to return what would change, and change nothing",
	"ends":           "What ends the wait: deadline, operator, origin, clients or check",
	"error":          "The cause of a failure",
	"file_count":     "Number of files",
	"files":          "Files of TLS, tokens and rules",
	"findings":       "The hundred most serious findings",
	"from":           "Address of the connection",
	"frozen":         "Whether the origin is frozen",
	"given_up_at":    "When its content was dropped, because it may not be kept",
	"globs":          "Globs that the client subscribes to",
	"go_version":     "Version of Go",
	"group":          "Key of the node group (TENDER_NODE_GROUP_BY)",
	"halted":         "Editions that were halted",
	"in_sync":        "Clients whose sync is in-sync",
	"kind":           "The kind, as in tender_validation_findings",
	"lag_seconds":    "Age of the oldest change that a client has not accepted",
	"lagging":        "Clients that lack a change",
	"last_error_at":  "Time of the last error",
	"level":          "The level of the log: debug, info, warn or error",
	"max_bytes":      "The limit of that memory",
	"message":        "The message of the origin",
	"missing_here":   "Resources that only the origin has",
	"missing_there":  "Resources that only the relay has",
	"name":           "Name of the resource",
	"next":           "The parameter after of the next page; absent on the last page",
	"node_group_by":  "Fields of a Node that define its group (TENDER_NODE_GROUP_BY)",
	"node_id":        "ID of the Node of the first request",
	"nonce":          "Nonce of the response",
	"note":           "What an operator gave as the reason, or the edition of a rollout",
	"omitted":        "Number of views that are not in the list",
	"origin":         "Name of the origin",
	"path":           "Path of the file",
	"pending":        "Whether the client has not answered the last response",
	"promoted":       "Editions that all clients were served",
	"ready":          "Whether /readyz is 200",
	"refused":        "Number of changed files that could not be used",
	"rejected":       "Clients that rejected the edition",
	"rejecting":      "Clients with a NACK that still applies",
	"removed":        "Number of removed resources",
	"resources":      "The resources",
	"seconds":        "Duration of the comparison",
	"sent_at":        "Time of the last response",
	"sha256":         "Digest of type and content",
	"shared":         "True for xdstp names, which node groups share",
	"stale_seconds":  "For how long the origin cannot update the view",
	"stale_shared":   "True if xdstp names, which groups share, have clients, and their stream is lost",
	"started_at":     "Time of the start",
	"state":          "current, gathering, held, rolling or halted",
	"streams":        "Open client streams",
	"sync":           "rejecting, behind, unknown or in-sync",
	"target":         "Address of the origin",
	"targets":        "Addresses of the origin",
	"there":          "Version at the origin",
	"total":          "Number of generations",
	"type_url":       "Type of the resources",
	"types":          "State by type",
	"unknown":        "Clients whose sync is unknown",
	"until":          "Time of the deadline; absent without one",
	"uptime_seconds": "Time since the start",
	"user":           "The user on whose behalf the command is sent; ignored if the operator has a certificate",
	"variable":       "Variable that names the file",
	"version":        "Version of the relay",
	"via":            "Address of the relay that forwarded the command; absent if the operator sent it",
	"views":          "The views",
	"wildcard":       "Whether the client subscribes by wildcard",

	"Action.at":                "Time of the response",
	"ViewAudit.types":          "Results by type",
	"Action.reason":            "The reason of the operator",
	"Change.note":              "Why there is no diff, or why it is cut",
	"Change.origin_version":    "Version of the origin after the change",
	"ClientDetail.resources":   "Resources that the client subscribes to, with their states",
	"Clients.clients":          "Client streams",
	"Clients.types":            "Totals by node group and type",
	"ClientType.name":          "Short name of the type, such as cds",
	"Disagreement.type_url":    "Type of which relays serve different content",
	"TierAnswer.address":       "Address of the relay",
	"TierAnswer.answer":        "Response of the relay to the command",
	"TierAnswer.node_id":       "Node ID of the relay",
	"TierOrigin.name":          "Name of the origin",
	"TierRelay.node_id":        "Node ID of the relay",
	"TierSummary.node_id":      "Node ID of the relay",
	"Freezes.origins":          "The state of each chosen origin",
	"Freezing.reason":          "The reason of the operator",
	"Freezing.since":           "When the freeze began",
	"Generation.since":         "When clients were first served the generation",
	"Generations.bytes":        "Memory that only generations need that are no longer served",
	"Isolation.since":          "Since when the origin ends the streams that carry them",
	"Origin.since":             "When the connection last changed",
	"Refusal.count":            "Number of refusals since the start",
	"Refusal.reason":           "Label limit or reason of the metric of that kind",
	"Rejection.at":             "Time of the NACK",
	"Rollback.views":           "Number of views of the origin",
	"RolloutCohort.accepted":   "Clients that accepted the edition",
	"RolloutHalt.at":           "Time of the halt",
	"RolloutHalt.reason":       "Why the edition was rejected",
	"RolloutRejection.node_id": "Node ID of the client",
	"SkippedAudit.reason":      "Why the origin cannot be audited",
	"Status.origins":           "The origins",
	"TierClient.node_id":       "Node ID of the client",
	"TypeAudit.version":        "Resources with equal bytes and another version",
	"View.pending":             "Number of names whose content at clients differs from that of the origin, in a freeze",
	"View.since":               "When the upstream stream was opened or lost",
}

// describe adds the meanings of fields to schemas that lack them, and fails the test for fields without any, and for
// meanings without a field.
func (s *spec) describe(t *testing.T) {
	t.Helper()
	unused := maps.Clone(fieldMeanings)
	for _, name := range slices.Sorted(maps.Keys(s.schemas.All)) {
		properties, _ := s.schemas.All[name].(object)["properties"].(object)
		for _, field := range slices.Sorted(maps.Keys(properties)) {
			property := properties[field].(object)
			if property["description"] != nil || property["$ref"] != nil {
				continue
			}
			key := name + "." + field
			if fieldMeanings[key] == "" {
				key = field
			}
			if delete(unused, key); fieldMeanings[key] == "" {
				t.Errorf("%s.%s has no description: add a comment to its Go field, or a meaning to fieldMeanings", name, field)
			}
			property["description"] = fieldMeanings[key]
		}
	}
	for key := range unused {
		t.Errorf("fieldMeanings has %s, which no undescribed field needs: %s", key, strings.TrimSuffix(fieldMeanings[key], "."))
	}
}
