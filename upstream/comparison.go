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
type responses struct {
	subscriptions
	reports         *reconcile.Reports // what returning clients hold and the view has never known
	comparison      comparison         // of all content, after a resume
	identifier      string             // of the control plane
	ignoresVersions bool               // the origin was seen to resend what it was told is held
	reuseLogged     bool               // reuse of versions was logged
}

// A comparison is the one look at all content that follows a resume: versions say what is held, but another server
// may have other content under the same versions (B.15). The views of a session make it one after the other, so that a restart of the
// origin is not followed by everything for everybody at once.
type comparison struct {
	dueAt        time.Time // when it is due; zero if it is not
	running      bool      // it is being made, and no other view of the session makes its own
	deadline     time.Time // when the turn ends at the latest
	lastResponse time.Time // last response
	sameServer   bool      // the relay itself ended the last main stream: the next one is to the same server

	previousID  string // identifier of the server that answered before the stream was lost
	otherServer bool   // another one has answered since
	unfinished  bool   // a stream was lost before content of another server was compared
}

// lost takes why the main stream ended.
func (c *comparison) streamEnded(err error) {
	if c.sameServer = errors.Is(err, errResync); !c.sameServer {
		c.unfinished = c.unfinished || c.pending()
		c.dueAt = time.Time{}
	}
}

// pending reports whether another server has answered and its content is not compared yet.
func (c *comparison) pending() bool { return c.otherServer && (c.running || !c.dueAt.IsZero()) }

// over records the end of a turn, in which the origin answered unless its stream was lost.
func (c *comparison) finish(answered bool) {
	if answered {
		c.unfinished = false
	}
}

// The comparison waits until clients have been served and the silence of the origin has confirmed what it was told
// (confirmSilence), and its turn ends when the origin is quiet.
const (
	comparisonDelay = 20 * time.Second
	comparisonMax   = 10 * time.Second
)

// resumed decides, when a stream has said what is held, whether all of that is to be compared.
func (v *responses) scheduleComparison(l *adsStream, now time.Time) {
	c := &v.comparison
	if c.sameServer {
		return
	}
	if l.role == main {
		c.previousID, c.otherServer = v.identifier, false
		if c.unfinished || v.w.Source().Target != v.cfg.Targets[v.target] {
			c.previousID = "" // not all of what is held was its own
		}
	}
	if !l.sentVersions || !c.dueAt.IsZero() {
		return
	}
	if v.versionsAreHashes() {
		c.unfinished = false
	} else {
		c.dueAt = now.Add(comparisonDelay)
	}
}

// sameServer notes who speaks for the origin. The same server as before has the same content under the same versions.
func (v *responses) noteServer(identifier string) {
	if identifier == "" {
		return
	}
	c := &v.comparison
	switch c.otherServer = c.otherServer || identifier != c.previousID; {
	case !c.otherServer:
		c.dueAt = time.Time{}
	case identifier != v.identifier && v.identifier != "":
		v.log.Info("another origin instance answers: all content will be compared once", slog.String("control_plane", identifier))
	}
	if v.identifier = identifier; !c.dueAt.IsZero() {
		v.w.SetTarget("") // until it is compared, another relay must not say that it is held
	}
}

// compare asks for everything once it is time and no other view does. It returns when to look again.
func (v *responses) compare(now time.Time) (next time.Time) {
	c, l := &v.comparison, &v.byRole[main]
	if c.running {
		quiet := c.lastResponse.Add(reconcile.SettleQuiet)
		answered := l.open && l.responded
		if next = c.deadline; answered && quiet.Before(next) {
			next = quiet
		}
		if now.Before(next) {
			return next
		}
		v.endComparison()
		c.finish(answered)
	}
	switch {
	case c.dueAt.IsZero() || !l.open:
		return time.Time{} // what is due becomes so anew with the next stream
	case now.Before(c.dueAt):
		return c.dueAt
	}
	select {
	case v.session.comparisonSlot <- struct{}{}:
		c.dueAt, c.running, c.deadline = time.Time{}, true, now.Add(comparisonMax)
		v.resync()
		return c.deadline
	default:
		c.dueAt = now.Add(jitter(time.Second))
		return c.dueAt
	}
}

// endComparison lets the next view of the session compare.
func (v *responses) endComparison() {
	if v.comparison.running {
		v.comparison.running = false
		<-v.session.comparisonSlot
	}
}

// hashedSample is how many resources of a type are looked at to tell whether versions are made from content.
const hashSampleSize = 100

// hashed reports whether versions are hashes of the bytes, as go-control-plane's are: then equal versions are equal content.
func (v *responses) versionsAreHashes() bool {
	for s := range v.sets {
		n := 0
		for e := range s.entries {
			if !hasReportableVersion(e.Resource) || e.Resource.ContentDropped() {
				continue
			}
			if sum := sha256.Sum256(e.Resource.Value()); e.Resource.OriginVersion != hex.EncodeToString(sum[:]) {
				return false
			}
			if n++; n == hashSampleSize {
				break
			}
		}
	}
	return true
}

// serverChanged notes that another target has answered than the one that what is held came from.
func (v *responses) noteTargetChange() {
	v.sourceTarget, v.ignoresVersions = v.target, false
	for s := range v.sets {
		s.Changed()
	}
	v.w.SetTarget("")
}

// ignoresVersions records that the origin resent what it was told is held: of no type does it say what is gone (B.15).
func (v *responses) noteVersionsIgnored(now time.Time) {
	v.ignoresVersions, v.comparison.dueAt, v.comparison.unfinished = true, time.Time{}, false // it resends all
	for s := range v.sets {
		s.Distrust(now)
	}
	for _, s := range v.subs {
		for _, c := range s.collections {
			v.agenda.schedule(c, now)
		}
	}
}

// confirm records, once nothing is held from another target or server any more, that all has the
// versions of the one that is connected: a snapshot says so too.
func (v *responses) confirmTarget() {
	c := &v.comparison
	if v.sourceTarget < 0 || c.unfinished || c.pending() {
		return
	}
	target := v.cfg.Targets[v.sourceTarget]
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
