package admin

import "time"

// A HistoryChoice selects the resource of GET /api/v1/history.
type HistoryChoice struct {
	Type, Name string
	Group      string // only the changes of this node group
	Limit      int    // maximum number of changes
}

// A History is the response to GET /api/v1/history: the last changes of a resource, newest first.
type History struct {
	TypeURL string   `json:"type_url"`
	Name    string   `json:"name"` // in canonical form
	Changes []Change `json:"changes"`
}

// A Change is one change of a resource, as it was sent to clients.
type Change struct {
	At      time.Time `json:"at"`     // when the relay received the change
	Change  string    `json:"change"` // "added", "changed", "removed" or "expired"
	Group   string    `json:"group"`
	AskedAs string    `json:"asked_as,omitempty"` // as in a Resource

	// The resource after the change; empty if it was removed.
	Version       string `json:"version,omitempty"`
	OriginVersion string `json:"origin_version,omitempty"`
	Bytes         int    `json:"bytes,omitempty"`
	SHA256        string `json:"sha256,omitempty"`

	// BytesBefore is the size before the change; 0 if unknown.
	BytesBefore int `json:"bytes_before,omitempty"`

	// Diff is a unified diff of the content as YAML, without sensitive fields. Note is why Diff is absent or incomplete.
	Diff string `json:"diff,omitempty"`
	Note string `json:"note,omitempty"`
}
