package upstream

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"time"

	"github.com/xdstender/tender/upstream/reconcile"
)

// responses processes the responses of an origin for one view. It belongs to the loop of the view sync.
type responses struct {
	subscriptions
	reports         *reconcile.Reports // resources that returning clients report and the view lacks
	comparison      comparison         // of all content, after the relay reported cached versions
	server          server             // that sent the first response on the last stream
	identifier      string             // control plane identifier of the last response that contained one
	ignoresVersions bool               // the origin resent resources whose versions the relay had reported
	reuseLogged     bool               // the reuse of a version has been logged
	rejected        []Rejection        // by clients; see verdict.go
	reported        bool               // an origin was told that clients reject a resource
}

// A comparison requests all content once after a stream reported the cached versions: another server may use the same
// versions for other content (B.15). The views of a session compare one at a time. Otherwise an origin that restarts
// would have to send all resources to all views at once.
type comparison struct {
	dueAt        time.Time // when to start; zero if not scheduled
	running      bool
	paced        bool      // it holds the comparisonSlot of the session; a second look does not wait for it
	deadline     time.Time // when to stop, if running
	lastResponse time.Time
	sameServer   bool // the relay closed the last main stream to reopen it, so the next one reaches the same server

	previousID  string // identifier of the server that responded before the stream was lost
	otherServer bool   // another server has responded since
	unfinished  bool   // a stream was lost before the comparison with another server was done
}

// streamEnded records why the main stream ended.
func (c *comparison) streamEnded(err error) {
	if c.sameServer = errors.Is(err, errResync); !c.sameServer {
		c.unfinished = c.unfinished || c.pending()
		c.dueAt = time.Time{}
	}
}

// pending reports whether another server has responded and the comparison with it is not done.
func (c *comparison) pending() bool { return c.otherServer && (c.running || !c.dueAt.IsZero()) }

// finish records the end of a comparison. answered is false if the origin did not respond to the request.
func (c *comparison) finish(answered bool) {
	if answered {
		c.unfinished = false
	}
}

// The comparison starts after clients have been served, and after the silence of the origin has confirmed the reported
// versions (confirmSilence). It ends when the origin sends nothing more.
const (
	comparisonDelay = 20 * time.Second
	comparisonMax   = 10 * time.Second
)

// scheduleComparison decides, when a stream has opened, whether to compare all content.
func (v *responses) scheduleComparison(l *adsStream, now time.Time) {
	c := &v.comparison
	if c.sameServer {
		return
	}
	if l.role == main {
		c.previousID, c.otherServer = v.identifier, false
		if c.unfinished || v.w.Source().Target != v.cfg.Targets[v.target] {
			c.previousID = "" // some of the cached resources are from another server or target
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

// noteServer records the identifier of the server that responded. The same server as before uses the same versions for
// the same content, so it cancels the comparison.
func (v *responses) noteServer(identifier string) {
	if identifier == "" {
		return
	}
	c := &v.comparison
	switch c.otherServer = c.otherServer || identifier != c.previousID; {
	case !c.otherServer:
		c.dueAt = time.Time{}
	case identifier != v.identifier && v.identifier != "":
		v.log.Info("another origin instance answers: all content will be compared once",
			slog.String("control_plane", identifier))
	}
	if v.identifier = identifier; !c.dueAt.IsZero() {
		v.pending.SetTarget("") // until the comparison, a snapshot must not attribute the resources to a target
	}
}

// verify asks the origin for all resources on new streams without versions, and applies what differs. It is how the relay finds out
// whether the cache equals the origin: second looks and the comparison are its callers. A comparison that is due is done with it.
func (v *responses) verify(now time.Time) {
	if c := &v.comparison; c.running || !c.dueAt.IsZero() {
		c.dueAt, c.running, c.deadline = time.Time{}, true, now.Add(comparisonMax)
		v.agenda.comparison.schedule(c.deadline)
	}
	v.resync()
}

// compare starts the comparison when it is due and no other view is comparing, and ends it when it is complete. It
// returns when to call it again; zero if only a new stream requires that.
func (v *responses) compare(now time.Time) (next time.Time) {
	c, l := &v.comparison, &v.trunk.byRole[main]
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
		v.agenda.decisions.wake()
	}
	switch {
	case c.dueAt.IsZero() || !l.open:
		return time.Time{} // the next stream schedules it again
	case now.Before(c.dueAt):
		return c.dueAt
	case v.group.Undecided(now):
		return time.Time{} // a decision is the next step
	}
	select {
	case v.session.comparisonSlot <- struct{}{}:
		c.paced = true
		v.verify(now)
		return c.deadline
	default:
		c.dueAt = now.Add(jitter(time.Second))
		return c.dueAt
	}
}

// endComparison allows the next view of the session to compare.
func (v *responses) endComparison() {
	c := &v.comparison
	if c.running = false; c.paced {
		c.paced = false
		<-v.session.comparisonSlot
	}
}

// hashSampleSize is the number of resources per set that versionsAreHashes checks.
const hashSampleSize = 100

// versionsAreHashes reports whether versions are SHA-256 hashes of the content, as in go-control-plane. Then equal
// versions mean equal content on all servers. It checks hashSampleSize resources of each set.
func (v *responses) versionsAreHashes() bool {
	for s := range v.sets {
		n := 0
		for _, r := range s.entries {
			if !hasReportableVersion(r) || r.ContentDropped() {
				continue
			}
			if sum := sha256.Sum256(r.Value()); r.OriginVersion != hex.EncodeToString(sum[:]) {
				return false
			}
			if n++; n == hashSampleSize {
				break
			}
		}
	}
	return true
}

// A server is what identifies a server of an origin: its address, and the control plane identifier of a response.
type server struct{ address, identifier string }

// noteAnswering records which server sends the first response on a stream.
func (v *responses) noteAnswering(now server) {
	if now == v.server {
		return
	}
	v.server = now
	for s := range v.sets {
		s.NoteServerChange()
	}
}

// noteTargetChange records that the responses come from another target than the cached resources.
func (v *responses) noteTargetChange() {
	v.sourceTarget, v.ignoresVersions = v.target, false
	for s := range v.sets {
		s.NoteOriginChange()
	}
	v.pending.SetTarget("")
}

// noteVersionsIgnored records that the origin ignores reported versions and resends all resources. Such an origin
// reports no removals that happened while no stream was open (B.15).
func (v *responses) noteVersionsIgnored(now time.Time) {
	// The origin resends all resources, so a comparison is unnecessary.
	v.ignoresVersions, v.comparison.dueAt, v.comparison.unfinished = true, time.Time{}, false
	for s := range v.sets {
		s.NoteVersionsIgnored(now)
	}
	for _, s := range v.ordered() {
		s.check.wake()
		for _, c := range s.collections {
			c.check.wake()
		}
	}
}

// confirmTarget sets the target of the view once all resources are from that target and server. Snapshots contain the
// target.
func (v *responses) confirmTarget() {
	c := &v.comparison
	if v.sourceTarget < 0 || c.unfinished || c.pending() {
		return
	}
	target := v.cfg.Targets[v.sourceTarget]
	if v.group.HasRemovals() {
		target = "" // pending removals are from another server or an earlier stream
	}
	if v.w.Source().Target == target {
		return
	}
	for s := range v.sets {
		if len(s.Foreign()) > 0 {
			return
		}
	}
	v.pending.SetTarget(target)
}
