package upstream

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"time"

	"github.com/xdstender/tender/upstream/reconcile"
)

// Answers are what an origin has stated, as the view holds it.
type answers struct {
	wants
	reports    *reconcile.Reports // what returning clients hold and the view has never known
	comparison comparison         // of all content, after a resume
	identifier string             // of the control plane
	ignores    bool               // the origin was seen to resend what it was told is held
	reused     bool               // reuse of versions was logged
}

// A comparison is the one look at all content that follows a resume: versions say what is held, but another server
// may have other content under the same versions (B.15). The views of a session make it one after the other, so that a restart of the
// origin is not followed by everything for everybody at once.
type comparison struct {
	at    time.Time // when it is due; zero if it is not
	turn  bool      // it is being made, and no other view of the session makes its own
	until time.Time // when the turn ends at the latest
	heard time.Time // last response
	same  bool      // the relay itself ended the last main stream: the next one is to the same server

	before  string // identifier of the server that answered before the stream was lost
	another bool   // another one has answered since
	owed    bool   // a stream was lost before content of another server was compared
}

// lost takes why the main stream ended.
func (c *comparison) lost(err error) {
	if c.same = errors.Is(err, errResync); !c.same {
		c.owed = c.owed || c.pending()
		c.at = time.Time{}
	}
}

// pending reports whether another server has answered and its content is not compared yet.
func (c *comparison) pending() bool { return c.another && (c.turn || !c.at.IsZero()) }

// over records the end of a turn, in which the origin answered unless its stream was lost.
func (c *comparison) over(answered bool) {
	if answered {
		c.owed = false
	}
}

// The comparison waits until clients have been served and the silence of the origin has confirmed what it was told
// (confirmSilence), and its turn ends when the origin is quiet.
const (
	comparisonWait = 20 * time.Second
	comparisonTurn = 10 * time.Second
)

// resumed decides, when a stream has said what is held, whether all of that is to be compared.
func (v *answers) resumed(l *adsStream, now time.Time) {
	c := &v.comparison
	if c.same {
		return
	}
	if l.role == main {
		c.before, c.another = v.identifier, false
		if c.owed || v.w.Source().Target != v.cfg.Targets[v.target] {
			c.before = "" // not all of what is held was its own
		}
	}
	if !l.versions || !c.at.IsZero() {
		return
	}
	if v.hashed() {
		c.owed = false
	} else {
		c.at = now.Add(comparisonWait)
	}
}

// sameServer notes who speaks for the origin. The same server as before has the same content under the same versions.
func (v *answers) sameServer(identifier string) {
	if identifier == "" {
		return
	}
	c := &v.comparison
	switch c.another = c.another || identifier != c.before; {
	case !c.another:
		c.at = time.Time{}
	case identifier != v.identifier && v.identifier != "":
		v.log.Info("another origin instance answers: all content will be compared once", slog.String("control_plane", identifier))
	}
	if v.identifier = identifier; !c.at.IsZero() {
		v.w.SetTarget("") // until it is compared, another relay must not say that it is held
	}
}

// compare asks for everything once it is time and no other view does. It returns when to look again.
func (v *answers) compare(now time.Time) (next time.Time) {
	c, l := &v.comparison, &v.lines[main]
	if c.turn {
		quiet := c.heard.Add(reconcile.SettleQuiet)
		answered := l.open && l.responded
		if next = c.until; answered && quiet.Before(next) {
			next = quiet
		}
		if now.Before(next) {
			return next
		}
		v.endComparison()
		c.over(answered)
	}
	switch {
	case c.at.IsZero() || !l.open:
		return time.Time{} // what is due becomes so anew with the next stream
	case now.Before(c.at):
		return c.at
	}
	select {
	case v.session.comparing <- struct{}{}:
		c.at, c.turn, c.until = time.Time{}, true, now.Add(comparisonTurn)
		v.resync()
		return c.until
	default:
		c.at = now.Add(jitter(time.Second))
		return c.at
	}
}

// endComparison lets the next view of the session compare.
func (v *answers) endComparison() {
	if v.comparison.turn {
		v.comparison.turn = false
		<-v.session.comparing
	}
}

// hashedSample is how many resources of a type are looked at to tell whether versions are made from content.
const hashedSample = 100

// hashed reports whether versions are hashes of the bytes, as go-control-plane's are: then equal versions are equal content.
func (v *answers) hashed() bool {
	for s := range v.sets {
		n := 0
		for e := range s.entries {
			if !sayable(e.Resource) || e.Resource.ContentDropped() {
				continue
			}
			if sum := sha256.Sum256(e.Resource.Value()); e.Resource.OriginVersion != hex.EncodeToString(sum[:]) {
				return false
			}
			if n++; n == hashedSample {
				break
			}
		}
	}
	return true
}

// serverChanged notes that another target has answered than the one that what is held came from.
func (v *answers) serverChanged() {
	v.source, v.ignores = v.target, false
	for s := range v.sets {
		s.Changed()
	}
	v.w.SetTarget("")
}

// ignoresVersions records that the origin resent what it was told is held: of no type does it say what is gone (B.15).
func (v *answers) ignoresVersions(now time.Time) {
	v.ignores, v.comparison.at, v.comparison.owed = true, time.Time{}, false // it resends all
	for s := range v.sets {
		s.Distrust(now)
	}
	for _, s := range v.subs {
		for _, c := range s.collections {
			v.agenda.put(c, now)
		}
	}
}

// confirm records, once nothing is held from another target or server any more, that all has the
// versions of the one that is connected: a snapshot says so too.
func (v *answers) confirm() {
	c := &v.comparison
	if v.source < 0 || c.owed || c.pending() {
		return
	}
	target := v.cfg.Targets[v.source]
	if v.group.Busy() {
		target = "" // it is of another server, or of before
	}
	if v.w.Source().Target == target {
		return
	}
	for s := range v.sets {
		if len(s.Foreign()) > 0 {
			return
		}
	}
	v.w.SetTarget(target)
}
