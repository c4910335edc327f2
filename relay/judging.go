package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/judge"
	"github.com/xdstender/tender/relay/rollout"
)

// localEnvoy serves the Envoy that judges editions (TENDER_CHECK_ENVOY). Its xDS server is not that of clients, so the Envoy
// needs no credentials, no client can pose as it, and it counts nowhere as a client. It implements [judge.Server]. If nil,
// there is no such Envoy.
type localEnvoy struct {
	*judge.Judge
	groups   *groups
	streams  *downstream.Server
	grpc     *grpc.Server
	dir      string // private; has the socket
	listener net.Listener

	mu      sync.Mutex
	conns   map[net.Conn]struct{} // open connections
	session *envoySession         // what new streams are served; nil refuses them
}

// An envoySession is what the Envoy is served, and its answers. It implements [downstream.Observer].
type envoySession struct {
	subject rollout.Subject
	edition bool // otherwise the last good

	mu       sync.Mutex
	rejected map[string]string // different error details by type URL, in a text of less than maxJudgedDetail bytes
}

// maxJudgedDetail bounds the errors of a type that an Envoy reports while it judges, after the first one.
const maxJudgedDetail = 16 << 10

// openLocalEnvoy opens the socket for the Envoy of a program, with the limits of the server of clients.
func openLocalEnvoy(
	p *judge.Program, g *groups, limits downstream.Config, log *slog.Logger,
) (e *localEnvoy, err error) {
	if p == nil {
		return nil, nil
	}
	e = &localEnvoy{groups: g, conns: make(map[net.Conn]struct{})}
	if e.dir, err = os.MkdirTemp("", "tender-envoy-"); err != nil { // with mode 0700
		return nil, fmt.Errorf("TENDER_CHECK_ENVOY: %w", err)
	}
	socket := filepath.Join(e.dir, "xds.sock")
	if e.listener, err = net.Listen("unix", socket); err != nil {
		err = fmt.Errorf("TENDER_CHECK_ENVOY: %w (a socket has a path of at most 107 bytes; TMPDIR may be too long)", err)
		return nil, errors.Join(err, os.RemoveAll(e.dir))
	}
	limits.Views, limits.Logger = e, slog.New(slog.DiscardHandler) // the answers are in the log as those of the judge
	limits.ConnectionAge = 0
	if e.streams, err = downstream.New(limits); err != nil {
		return nil, errors.Join(err, e.listener.Close(), os.RemoveAll(e.dir))
	}
	bounds := e.streams.Guard()
	e.grpc = NewGRPCServer(g.settings.grpc.maxRequestBytes, guard.MaxStreamsPerConnection,
		grpc.Creds(bounds.Credentials(insecure.NewCredentials())), grpc.StreamInterceptor(bounds.StreamInterceptor))
	e.streams.Register(e.grpc)
	e.Judge = judge.New(p, e.dir, socket, g.settings.staticClusters, e)
	log.Info("local Envoy judges editions", slog.String("version", p.Version))
	return e, nil
}

// run serves the Envoy until close.
func (e *localEnvoy) run() {
	if e != nil {
		_ = e.grpc.Serve(e.streams.Guard().Listener(envoyListener{e.listener, e})) // close ends it
	}
}

// close ends the server and removes its directory. No judge may run any more.
func (e *localEnvoy) close() error {
	if e == nil {
		return nil
	}
	e.grpc.Stop()
	_ = e.listener.Close() // Stop has closed it, unless run was not called
	return os.RemoveAll(e.dir)
}

// judge returns the rollout.Judge of the groups' controllers; nil without a local Envoy.
func (g *groups) judge() rollout.Judge {
	if !g.settings.rollout.Judged {
		return nil
	}
	return func(ctx context.Context, edition []rollout.Subject) rollout.Judgement {
		return g.envoy.Judge.Judge(ctx, edition)
	}
}

// Group implements judge.Server. The Envoy subscribes only to wildcards that clients of the group have, so that the origin is
// asked for nothing new.
func (e *localEnvoy) Group(key string) (node *corepb.Node, wildcards []string) {
	gr := e.groups.find(key)
	if gr == nil {
		return nil, nil
	}
	for _, typeURL := range schema.Roots {
		if gr.view.Generation().Type(typeURL).HasLastGood(cache.Wildcard) {
			wildcards = append(wildcards, typeURL)
		}
	}
	return gr.node, wildcards
}

// find returns a group; nil if there is none.
func (g *groups) find(key string) *group {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.byKey[key]
}

// Show implements judge.Server.
func (e *localEnvoy) Show(s rollout.Subject, edition bool) {
	e.begin(&envoySession{subject: s, edition: edition, rejected: make(map[string]string)})
}

// Hide implements judge.Server.
func (e *localEnvoy) Hide() { e.begin(nil) }

// begin begins a session, and closes the connections of the one before.
func (e *localEnvoy) begin(s *envoySession) {
	e.mu.Lock()
	e.session = s
	before := slices.Collect(maps.Keys(e.conns))
	e.mu.Unlock()
	for _, conn := range before {
		_ = conn.Close() // the Envoy may have closed it
	}
}

// current returns the session of new streams; nil without one.
func (e *localEnvoy) current() *envoySession {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.session
}

// Join implements downstream.Views. Which group the Envoy is served does not depend on its Node.
func (e *localEnvoy) Join(*corepb.Node, downstream.Caller) (downstream.Group, error) {
	s := e.current()
	if s == nil {
		return downstream.Group{}, status.Error(codes.Unavailable, "no edition is judged")
	}
	gr := e.groups.find(s.subject.Group)
	if gr == nil {
		return downstream.Group{}, status.Error(codes.Unavailable, "the node group was removed")
	}
	view := gr.view
	if s.edition {
		view = view.Cohort(e.groups.settings.rollout.JudgeView())
	}
	return downstream.Group{
		View: view, Key: gr.key, Node: gr.node, Leave: func() {}, Failure: gr.failure, Observer: s,
	}, nil
}

// Answer implements judge.Server.
func (e *localEnvoy) Answer(wildcards []string) judge.Answer {
	s := e.current()
	var a judge.Answer
	for stream := range e.streams.Observed() {
		if s == nil || stream.Observer != downstream.Observer(s) {
			continue
		}
		a.Settled = stream.Answered(wildcards)
		if s.edition {
			state, subscribed := stream.ChangeState(s.subject.Changes)
			a.Settled = a.Settled && (!subscribed || state >= downstream.Accepted)
		}
	}
	if s != nil {
		s.mu.Lock()
		a.Rejected = maps.Clone(s.rejected)
		s.mu.Unlock()
	}
	return a
}

// Rejected implements downstream.Observer.
func (s *envoySession) Rejected(typeURL string, r *downstream.Rejection, _ func(*downstream.Change) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	detail, before := strings.TrimSpace(r.Detail), s.rejected[typeURL]
	switch {
	case before == "":
		s.rejected[typeURL] = detail
	case !strings.Contains(before, detail) && len(before)+len(detail) < maxJudgedDetail:
		s.rejected[typeURL] = before + "; " + detail
	}
}

// Disconnected implements downstream.Observer.
func (s *envoySession) Disconnected() {}

// An envoyListener is the listener for the Envoy. It knows the open connections.
type envoyListener struct {
	net.Listener
	of *localEnvoy
}

// Accept implements net.Listener.
func (l envoyListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	known := &envoyConn{conn, l.of}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.of.conns[known] = struct{}{}
	return known, nil
}

// An envoyConn is an open connection of the Envoy.
type envoyConn struct {
	net.Conn
	of *localEnvoy
}

// Close implements net.Conn.
func (c *envoyConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
