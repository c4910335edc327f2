package admin

import "time"

// A Scope says what of a relay a command is about: what an origin says, to a group, of a
// type. An empty field stands for all of them.
type Scope struct {
	Origin string `json:"origin,omitempty"`
	Group  string `json:"group,omitempty"`
	Type   string `json:"type,omitempty"` // a type URL, or a short name such as cds
}

// Holds is the answer to GET /api/v1/holds, and to the commands release and discard, which
// say what they were about.
type Holds struct {
	Holds []Hold `json:"holds"`
}

// A Hold is a mass of removals that were inferred, and that clients are not told of before
// a second look, or an operator, confirms them.
type Hold struct {
	Origin  string `json:"origin"`
	Group   string `json:"group,omitempty"` // none of files, which tell all groups the same
	TypeURL string `json:"type_url"`
	Count   int    `json:"count"` // of resources

	// Names are the first of these, in order: at most MaxHoldNames.
	Names []string `json:"names"`

	// Since is when the removals were held back, Until when they are looked at again; it is
	// left out if that has begun.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`

	// Discarded reports that an operator had the resources kept, until the origin says
	// something of them itself.
	Discarded bool `json:"discarded,omitempty"`
}

// MaxHoldNames is how many names a Hold lists.
const MaxHoldNames = 100

// HoldScope are the arguments of release and discard. A scope that is empty is all only
// with All.
type HoldScope struct {
	Scope
	All bool `json:"all,omitempty"`

	// Discarded has release be about what was discarded.
	Discarded bool `json:"discarded,omitempty"`
}

// FreezeScope are the arguments of freeze and thaw: an origin, or none for all.
type FreezeScope struct {
	Origin string `json:"origin,omitempty"`
}

// Freezes is the answer to freeze and thaw: how things stand after them.
type Freezes struct {
	Origins []Freeze `json:"origins"`
}

// A Freeze says whether the distribution of an origin's changes is stopped.
type Freeze struct {
	Origin string `json:"origin"`
	Frozen bool   `json:"frozen"`
	Views  int    `json:"views"` // of the origin

	// Withheld is of how many names, over all views, clients saw something else than the
	// origin said, before the command.
	Withheld int `json:"withheld"`
}

// A LogLevel is the argument of the command loglevel: the least level that is to be logged,
// "debug", "info", "warn" or "error".
type LogLevel struct {
	Level string `json:"level"`
}

// A LogLevelChange is the answer to it.
type LogLevelChange struct {
	Level  string `json:"level"`
	Before string `json:"before"`
}
