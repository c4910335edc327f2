package admin

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// An Action is the audit record of one command of an operator. GET /api/v1/actions answers the last ones.
type Action struct {
	At      time.Time `json:"at"`
	Command string    `json:"command"` // as in its path: freeze, rollout/abort

	// Operator sent the command, as [Caller.By] returns it. From is the address of the connection. Via is the
	// identity of the relay that forwarded the command; From is its address then.
	Operator string `json:"operator"`
	From     string `json:"from,omitempty"`
	Via      string `json:"via,omitempty"`

	Reason    string          `json:"reason,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"` // as they were sent; left out above maxActionBytes

	// Code is the HTTP code of the answer, and Error the cause if the command failed or was refused.
	Code  int    `json:"code"`
	Error string `json:"error,omitempty"`
}

// Actions is the answer to GET /api/v1/actions: what operators did since the relay began, newest first.
type Actions struct {
	Actions []Action `json:"actions"` // at most MaxActions
}

const (
	// MaxActions is how many actions a relay remembers.
	MaxActions = 500

	// maxActionBytes bounds the arguments, and the error, of an action that is remembered.
	maxActionBytes = 2 << 10
)

// Why is the reason for a command, and the user who sent it. It is part of the arguments of commands.
type Why struct {
	// Reason is at most MaxReasonBytes without control characters. User is the user of the operating system on whose
	// behalf the client asks, which only counts without a certificate.
	Reason string `json:"reason,omitempty"`
	User   string `json:"user,omitempty"`
}

// actions are the last ones, oldest first.
type actions struct {
	mu   sync.Mutex
	last []Action // guarded by mu
}

func (a *actions) add(done Action) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.last) == MaxActions {
		a.last = append(a.last[:0], a.last[1:]...)
	}
	a.last = append(a.last, done)
}

// newest returns at most limit actions, newest first.
func (a *actions) newest(limit int) []Action {
	a.mu.Lock()
	defer a.mu.Unlock()
	newest := make([]Action, 0, min(limit, len(a.last)))
	for i := len(a.last) - 1; i >= 0 && len(newest) < limit; i-- {
		newest = append(newest, a.last[i])
	}
	return newest
}

// record adds the outcome of a command to the history and to the log, and passes it to Config.Action.
func (s *Server) record(r *http.Request, c Caller, command string, args []byte, err error) {
	why := whyOf(args)
	done := Action{At: time.Now(), Command: command, Operator: c.By(why.User), From: r.RemoteAddr, Via: c.Via, Reason: why.Reason, Code: CodeOf(err)}
	if len(args) <= maxActionBytes && json.Valid(args) {
		done.Arguments = args
	}
	attrs := []slog.Attr{slog.String("command", command), slog.String("operator", done.Operator), slog.String("from", done.From), slog.Int("code", done.Code)}
	for _, further := range []struct{ key, value string }{{"via", done.Via}, {"reason", done.Reason}, {"arguments", string(done.Arguments)}} {
		if further.value != "" {
			attrs = append(attrs, slog.String(further.key, further.value))
		}
	}
	if err != nil {
		attrs = append(attrs, slog.Any("err", err))
		text := err.Error()
		done.Error = text[:min(len(text), maxActionBytes)]
	}
	s.actions.add(done)
	s.cfg.Logger.LogAttrs(r.Context(), slog.LevelInfo, "operator action", attrs...)
	if s.cfg.Action != nil {
		s.cfg.Action(r.Context(), done)
	}
}

// whyOf returns the reason and the user among arguments; nothing if one of them is not allowed.
func whyOf(args []byte) (why Why) {
	if json.Unmarshal(args, &why) != nil || why.Check() != nil {
		return Why{}
	}
	return why
}

// listActions answers with the last actions.
func (s *Server) listActions(r *http.Request) (any, error) {
	p := parametersOf(r)
	limit := p.limit()
	if err := p.done(); err != nil {
		return nil, err
	}
	return Actions{Actions: s.actions.newest(limit)}, nil
}
