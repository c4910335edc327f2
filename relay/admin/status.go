package admin

import (
	"strings"
	"time"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/rollout"
)

// A Status is the answer to GET /api/v1/status: how everything stands. Fields may be
// added to it, and none is taken away or given another meaning under the same path. Times
// are in RFC 3339; one that there is none of is left out.
type Status struct {
	Relay   Relay    `json:"relay"`
	Origins []Origin `json:"origins"`
	Views   []View   `json:"views"`
	Files   []Files  `json:"files"` // of credentials
}

// A Relay is the process that answers.
type Relay struct {
	Version       string    `json:"version"`
	GoVersion     string    `json:"go_version"`
	NodeID        string    `json:"node_id"`    // that it presents to origins
	Identifier    string    `json:"identifier"` // that it tells clients: control_plane.identifier
	StartedAt     time.Time `json:"started_at"`
	UptimeSeconds float64   `json:"uptime_seconds"`
	Ready         bool      `json:"ready"`
	NotReady      []string  `json:"not_ready"` // the reasons, for people
	Streams       int       `json:"streams"`   // of clients, held polls included
}

// An Origin is a control plane, or a directory.
type Origin struct {
	Name    string   `json:"name"` // "default" is that of TENDER_ORIGIN
	Targets []Target `json:"targets"`

	// Connected reports whether there is a connection to the active target; to a
	// directory, always. Since is when that last changed.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`

	// Frozen reports that an operator has stopped the distribution of its changes (tender
	// freeze), and Freeze who, when and why. Held is of how many resources the removal is held
	// back (tender release).
	Frozen bool      `json:"frozen"`
	Freeze *Freezing `json:"freeze,omitempty"`
	Held   int       `json:"held"`

	// Rollout is how the distribution of its changes in stages stands. Nil if TENDER_ROLLOUT is off.
	Rollout *rollout.Status `json:"rollout,omitempty"`

	// StreamsWaiting is how many streams to the origin wait, since more are opened than TENDER_ORIGIN_STREAM_RATE
	// allows.
	StreamsWaiting int `json:"streams_waiting"`

	// Directory says how the files of a directory stand. Nil for a control plane.
	Directory *Directory `json:"directory,omitempty"`

	// LastError is why a stream to the origin ended last, or why none could be opened; of a directory,
	// why it cannot be read.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
}

// A Directory is how the files of a directory stand.
type Directory struct {
	FileCount int       `json:"file_count"`
	BadCount  int       `json:"bad_count"` // of these, those that do not count as a whole
	Bad       []BadFile `json:"bad"`       // the first of those by name: at most MaxBadFiles
}

// MaxBadFiles is how many bad files a Directory lists.
const MaxBadFiles = 100

// A BadFile is one that cannot be read, or has names that another file has.
type BadFile struct {
	File  string `json:"file"`  // its name in the directory
	Error string `json:"error"` // with the line, where it is known

	// LastGood is how many resources it held when this relay could last read it, which are served on as
	// far as no other file has their names.
	LastGood int `json:"last_good"`
}

// Files are files of credentials that are of use together alone, such as a certificate
// and its key.
type Files struct {
	Files    []File    `json:"files"`
	LoadedAt time.Time `json:"loaded_at"` // when what is in force was read

	// NotAfter is when the certificate in force expires; of several CAs, when the last of
	// them does.
	NotAfter time.Time `json:"not_after,omitzero"`

	// Error is why the files as they are now are not in force, and Refused how many
	// changes of them could not be used.
	Error   string `json:"error,omitempty"`
	Refused int64  `json:"refused"`
}

// expiresSoon is how long before a certificate expires people should know.
const expiresSoon = 7 * 24 * time.Hour

// Trouble returns what people should know of the files, or nothing: that what they hold now is not in
// force, or that what is in force has expired or does so within a week.
func (f *Files) Trouble(now time.Time) string {
	var said []string
	switch left := f.NotAfter.Sub(now); {
	case f.NotAfter.IsZero() || left > expiresSoon:
	case left <= 0:
		said = append(said, "EXPIRED "+humanize.Seconds(-left.Seconds())+" ago")
	default:
		said = append(said, "EXPIRES in "+humanize.Seconds(left.Seconds()))
	}
	if f.Error != "" {
		said = append(said, "the files on disk are not in force: "+f.Error)
	}
	return strings.Join(said, "; ")
}

// Variables returns the variables that name the files.
func (f *Files) Variables() string {
	var names []string
	for _, file := range f.Files {
		names = append(names, file.Variable)
	}
	return strings.Join(names, ", ")
}

// A File is one that a variable names.
type File struct {
	Variable string `json:"variable"`
	Path     string `json:"path"`
}

// A Target is one of the addresses of an origin, in the order of failover.
type Target struct {
	Target string `json:"target"`
	Active bool   `json:"active"` // the one in use
	State  string `json:"state"`  // of its connection, as gRPC calls it; "directory" for a directory
}

// A View is what one origin says to one node group.
type View struct {
	Group  string `json:"group"`
	Origin string `json:"origin"`

	// Shared reports that the view holds names that mean the same to every node, which
	// several groups share: those of xdstp.
	Shared bool `json:"shared,omitempty"`

	// Connected reports whether the view's stream to the origin is up. Since is when that
	// last changed.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`

	// Stale reports that the view holds what the origin cannot correct, for
	// StaleSeconds already.
	Stale        bool    `json:"stale"`
	StaleSeconds float64 `json:"stale_seconds"`

	// FrozenAt is since when clients are not shown what the origin changes, and Withheld
	// of how many names they see something else than the origin says.
	FrozenAt time.Time `json:"frozen_at,omitzero"`
	Withheld int       `json:"withheld"`

	// ControlPlane is the identifier that the origin gave last.
	ControlPlane string `json:"control_plane,omitempty"`

	// Streams is how many clients the group has. They may be of several views: one for
	// each origin.
	Streams int    `json:"streams"`
	Types   []Type `json:"types"`
}

// PhaseByName is the phase of a type that clients subscribe to by name alone, such as EDS and RDS.
const PhaseByName = "by name"

// A Type is what a view holds of one resource type.
type Type struct {
	TypeURL string `json:"type_url"`
	Name    string `json:"name,omitempty"` // the short name, such as cds

	// Entries and Bytes count the resources: those that the origin chose for a wildcard,
	// and those that were asked for by name.
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`

	// Version is that of the wildcard's set, as SotW clients are told it.
	Version string `json:"version,omitempty"`

	// Phase is how much is known of the wildcard's set: unknown, settled (the first
	// answer seems complete) or confirmed; [PhaseByName] if clients subscribe to names alone.
	Phase string `json:"phase"`

	// ChangedAt is when a resource last changed.
	ChangedAt time.Time `json:"changed_at,omitzero"`
}
