package admin

import "time"

// A HistoryChoice says of which resource GET /api/v1/history tells.
type HistoryChoice struct {
	Type, Name string
	Group      string // in the view of this node group alone
	Limit      int    // of changes
}

// A History is the answer to GET /api/v1/history: the last changes of a resource, newest first.
type History struct {
	TypeURL string   `json:"type_url"`
	Name    string   `json:"name"` // in canonical form
	Changes []Change `json:"changes"`
}

// A Change is one of a resource, as clients were told of it.
type Change struct {
	At      time.Time `json:"at"`     // when the message came that brought it
	Change  string    `json:"change"` // "added", "changed", "removed" or "expired"
	Group   string    `json:"group"`
	AskedAs string    `json:"asked_as,omitempty"` // as in a Resource

	// What the resource is since then; nothing of one that went.
	Version       string `json:"version,omitempty"`
	OriginVersion string `json:"origin_version,omitempty"`
	Bytes         int    `json:"bytes,omitempty"`
	SHA256        string `json:"sha256,omitempty"`

	// BytesBefore is the size until then, of what is known.
	BytesBefore int `json:"bytes_before,omitempty"`

	// Diff is a unified diff of the content as YAML, redacted as bodies are. Note says why there is
	// none, or why it ends early.
	Diff string `json:"diff,omitempty"`
	Note string `json:"note,omitempty"`
}
