package admin

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/rollout"
)

// A Status is the response to GET /api/v1/status: the state of the relay. Later versions may add fields under the same
// path; they neither remove a field nor change its meaning. Times are in RFC 3339; unknown times are absent.
type Status struct {
	Relay   Relay    `json:"relay"`
	Origins []Origin `json:"origins"`
	Views   []View   `json:"views"`
	Files   []Files  `json:"files"` // credential files

	// Log is the state of the output of the log. Nil if it is unknown, in a program that embeds the relay.
	Log *Log `json:"log,omitempty"`

	// Refusals are the causes for which clients were refused since the start, the latest first.
	Refusals []Refusal `json:"refusals"`

	// Validation has the findings about the served resources. Nil if TENDER_VALIDATE is off.
	Validation *Validation `json:"validation,omitempty"`
}

// A Log is the state of the output of the log. The relay does not wait for an output that nobody reads, or that fails.
type Log struct {
	// Dropped counts the records that were not written since the start, by level; those of operator actions as audit.
	Dropped map[string]int64 `json:"dropped"`

	// StalledSeconds is the time since the output last took a part of the waiting records; 0 if none waits.
	StalledSeconds float64 `json:"stalled_seconds"`
}

// stallSeconds is the value of StalledSeconds from which Warning reports it.
const stallSeconds = 5

// Warning returns a warning for operators if nobody reads the log or records were dropped. It is empty without one.
func (l *Log) Warning() string {
	if l == nil {
		return ""
	}
	var warnings []string
	if l.StalledSeconds >= stallSeconds {
		warnings = append(warnings, "log NOT READ for "+humanize.Seconds(l.StalledSeconds)+": its records wait or are dropped")
	}
	var lost []string
	for _, level := range slices.Sorted(maps.Keys(l.Dropped)) {
		if n := l.Dropped[level]; n > 0 {
			lost = append(lost, fmt.Sprintf("%d %s", n, level))
		}
	}
	if len(lost) > 0 {
		warnings = append(warnings, "log records DROPPED since the start: "+strings.Join(lost, ", "))
	}
	return strings.Join(warnings, "; ")
}

// A Refusal is a cause for which connections, handshakes, requests, streams or polls were refused.
type Refusal struct {
	// Kind is limit, denial, handshake (TLS), request (invalid) or accept (no connection accepted). Reason is the label of
	// the metric of that kind.
	Kind   string `json:"kind"`
	Reason string `json:"reason"`

	Count int64     `json:"count"`
	At    time.Time `json:"at"`             // of the last one
	Peer  string    `json:"peer,omitempty"` // the last refused host, or the identity in its certificate
	Error string    `json:"error"`          // of the last one
}

// recentRefusal is the age up to which Recent reports a refusal.
const recentRefusal = 10 * time.Minute

// Recent reports whether operators need to see the refusal without asking for all: it is of the last ten minutes, and
// not the TCP check of a balancer.
func (r *Refusal) Recent(now time.Time) bool {
	return now.Sub(r.At) < recentRefusal && (r.Kind != "handshake" || r.Reason != "closed")
}

// A Relay is the process that sent the response.
type Relay struct {
	Version       string    `json:"version"`
	GoVersion     string    `json:"go_version"`
	NodeID        string    `json:"node_id"`    // sent to origins
	Identifier    string    `json:"identifier"` // sent to clients as control_plane.identifier
	StartedAt     time.Time `json:"started_at"`
	UptimeSeconds float64   `json:"uptime_seconds"`
	Ready         bool      `json:"ready"`
	NotReady      []string  `json:"not_ready"` // the reasons, as texts for operators
	Streams       int       `json:"streams"`   // client streams, including held polls
	NodeGroupBy   []string  `json:"node_group_by"`

	// SnapshotFault is why snapshots and decisions of operators cannot be written. It is empty if they can, or if
	// TENDER_SNAPSHOT_DIR is off.
	SnapshotFault string `json:"snapshot_fault,omitempty"`

	// Taken is the state of a peer with which the relay began. Nil if it did not.
	Taken *TakenState `json:"taken,omitempty"`
}

// A TakenState is the state of a peer with which a relay began, because it had none of its own and no origin answered.
type TakenState struct {
	From       string    `json:"from"`        // address of the peer
	NodeID     string    `json:"node_id"`     // of the peer
	At         time.Time `json:"at"`          // when the relay took it
	AgeSeconds float64   `json:"age_seconds"` // time since the peer last heard from the origins; of the oldest view
	Views      int       `json:"views"`       // number of views
}

// An Origin is a control plane, or a directory.
type Origin struct {
	Name    string   `json:"name"` // "default" is the origin of TENDER_ORIGIN
	Targets []Target `json:"targets"`

	// Connected reports whether there is a connection to the active target; it is always true for a directory. Since is
	// when it last changed.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`

	// Frozen reports that an operator stopped the distribution of its changes (tender freeze). Freeze has the operator,
	// the time and the reason.
	Frozen bool      `json:"frozen"`
	Freeze *Freezing `json:"freeze,omitempty"`

	// Pending has the numbers of pending changes by reason (tender pending). Reasons without a change are omitted.
	Pending map[string]int `json:"pending,omitempty"`

	// Rollout is the state of its rollouts. Nil if TENDER_ROLLOUT is off.
	Rollout *rollout.Status `json:"rollout,omitempty"`

	// HaltedAbove are the changes that the relay above has halted, if the origin is one, the oldest halt first.
	HaltedAbove []HaltAbove `json:"halted_above,omitempty"`

	// EqualGroups is the number of node groups that are served the same configuration, without endpoints and Secrets. If
	// there are several such sets of groups, it counts the largest. These groups could be one (TENDER_NODE_GROUP_BY). It
	// is 0 for a single group and for a directory.
	EqualGroups int `json:"equal_groups,omitempty"`

	// StreamsWaiting is the number of upstream streams that wait for the rate limit.
	StreamsWaiting int `json:"streams_waiting"`

	// Directory is the state of the files of a directory. Nil for a control plane.
	Directory *Directory `json:"directory,omitempty"`

	// LastError is why the last upstream stream closed or could not be opened, or why a directory cannot be read.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`

	// FailedAddresses are the addresses that the relay does not use, because connections or all streams to them failed.
	FailedAddresses []FailedAddress `json:"failed_addresses,omitempty"`
}

// TierOrigins says of each origin whether the relay receives what it states.
func (s *Status) TierOrigins() []TierOrigin {
	all := make([]TierOrigin, 0, len(s.Origins))
	for _, o := range s.Origins {
		of := TierOrigin{Name: o.Name, Connected: o.Connected}
		if !o.Connected || o.Directory != nil {
			of.Error = o.LastError
		}
		if o.Directory != nil {
			of.BadFiles = o.Directory.BadCount
		}
		for _, v := range s.Views {
			switch {
			case v.Origin != o.Name || !v.Stale:
			case v.Shared:
				of.StaleShared = true
			case v.Streams > 0:
				of.StaleGroups = append(of.StaleGroups, v.Group)
			}
		}
		all = append(all, of)
	}
	return all
}

// A FailedAddress is a target from which the relay failed over, or an address of its name.
type FailedAddress struct {
	Target  string    `json:"target"`
	Address string    `json:"address,omitempty"` // of the name in Target; absent if the whole target failed
	Since   time.Time `json:"since"`             // when the relay left it
	Error   string    `json:"error"`             // with which the last attempt failed
}

// Describe returns a warning for operators, without the error.
func (a *FailedAddress) Describe(now time.Time) string {
	name := a.Target
	if a.Address != "" {
		name = a.Address + " of " + a.Target
	}
	return name + " is NOT USED for " + humanize.Seconds(now.Sub(a.Since).Seconds())
}

// A Directory is the state of the files of a directory.
type Directory struct {
	FileCount int       `json:"file_count"`
	BadCount  int       `json:"bad_count"` // files that are refused
	Bad       []BadFile `json:"bad"`       // the first bad files by name, at most MaxBadFiles
}

// MaxBadFiles is the maximum number of bad files in a Directory.
const MaxBadFiles = 100

// A BadFile is a file that cannot be read, or that repeats names of another file.
type BadFile struct {
	File  string `json:"file"`  // its name in the directory
	Error string `json:"error"` // with the line, if known

	// LastGood is the number of resources in its last valid state. The relay still serves these resources, except names
	// that another file has.
	LastGood int `json:"last_good"`
}

// Files are files of credentials that are loaded together, such as a certificate and its key.
type Files struct {
	Files    []File    `json:"files"`
	LoadedAt time.Time `json:"loaded_at"` // when the content in use was read

	// NotAfter is when the certificate in use expires; of several CAs, the latest time.
	NotAfter time.Time `json:"not_after,omitzero"`

	// Error is why the current content of the files is not in use. Refused counts refused changes of the files.
	Error   string `json:"error,omitempty"`
	Refused int64  `json:"refused"`
}

// expiresSoon is the remaining validity of a certificate at which Warning reports it.
const expiresSoon = 7 * 24 * time.Hour

// Warning returns a warning for operators if the current files are not in use, or if the certificate has expired or
// expires within a week. It is empty without one.
func (f *Files) Warning(now time.Time) string {
	var warnings []string
	switch left := f.NotAfter.Sub(now); {
	case f.NotAfter.IsZero() || left > expiresSoon:
	case left <= 0:
		warnings = append(warnings, "EXPIRED "+humanize.Seconds(-left.Seconds())+" ago")
	default:
		warnings = append(warnings, "EXPIRES in "+humanize.Seconds(left.Seconds()))
	}
	if f.Error != "" {
		warnings = append(warnings, "the files on disk are not in use: "+f.Error)
	}
	return strings.Join(warnings, "; ")
}

// Variables returns the configuration variables that name the files.
func (f *Files) Variables() string {
	var names []string
	for _, file := range f.Files {
		names = append(names, file.Variable)
	}
	return strings.Join(names, ", ")
}

// A File is a file with the configuration variable that names it.
type File struct {
	Variable string `json:"variable"`
	Path     string `json:"path"`
}

// A Target is one of the addresses of an origin, in the order of failover.
type Target struct {
	Target string `json:"target"`
	Active bool   `json:"active"` // the relay uses this target
	State  string `json:"state"`  // connectivity state of gRPC; "directory" for a directory
}

// A View is the state of one origin for one node group.
type View struct {
	Group     string `json:"group"`
	GroupName string `json:"group_name"` // as operators read it, such as NAMESPACE=shop
	Origin    string `json:"origin"`

	// Shared reports that the view holds xdstp names, which node groups share.
	Shared bool `json:"shared,omitempty"`

	// Connected reports whether the view has an upstream stream. Since is when it last changed.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`

	// Stale reports that the view has had no connection to its origin for StaleSeconds, and serves cached resources.
	Stale        bool    `json:"stale"`
	StaleSeconds float64 `json:"stale_seconds"`

	// FrozenAt is when the distribution of changes was stopped. Pending is the number of names whose content at clients
	// differs from that of the origin.
	FrozenAt time.Time `json:"frozen_at,omitzero"`
	Pending  int       `json:"pending"`

	// Isolated lists the subscriptions that have upstream streams of their own, because the origin ends each stream that
	// carries them. Their clients wait.
	Isolated []Isolation `json:"isolated,omitempty"`

	// ControlPlane is the last control_plane.identifier of the origin.
	ControlPlane string `json:"control_plane,omitempty"`

	// Streams is the number of clients of the group. With several origins, a client counts in a view of each.
	Streams int    `json:"streams"`
	Types   []Type `json:"types"`
}

// An Isolation is subscriptions to one type that have upstream streams of their own.
type Isolation struct {
	TypeURL string    `json:"type_url"`
	Names   []string  `json:"names"` // the first ten names and globs; "*" for the wildcard
	Count   int       `json:"count"` // number of all names and globs
	Since   time.Time `json:"since"`
	Error   string    `json:"error"` // with which the origin ended the last stream
}

// PhaseByName is the phase of a type that clients subscribe to by name only, such as EDS and RDS.
const PhaseByName = "by name"

// A Type is the content of a view for one resource type.
type Type struct {
	TypeURL string `json:"type_url"`
	Name    string `json:"name,omitempty"` // the short name, such as cds

	// Entries and Bytes count the resources of the wildcard set, and those subscribed to by name.
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`

	// Version is the version of the wildcard set that SotW clients receive.
	Version string `json:"version,omitempty"`

	// Phase is the state of the wildcard set: unknown, settled (the first response seems complete) or confirmed;
	// [PhaseByName] if clients subscribe by name only.
	Phase string `json:"phase"`

	// ChangedAt is when a resource last changed.
	ChangedAt time.Time `json:"changed_at,omitzero"`
}
