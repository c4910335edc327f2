package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/xdstender/tender/relay/logqueue"
)

// An Action is the audit record of one command of an operator. GET /api/v1/actions lists the newest ones.
type Action struct {
	At      time.Time `json:"at"`
	Command string    `json:"command"` // as in the path: freeze, rollout/abort

	// Operator is the sender of the command: an identity, or the claimed user and an address. From is the address of the
	// connection. If a peer forwarded the command, Via is the identity of the peer and From is its address.
	Operator string `json:"operator"`
	From     string `json:"from,omitempty"`
	Via      string `json:"via,omitempty"`

	Reason    string          `json:"reason,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"` // as they were sent; omitted above maxActionBytes bytes

	// DryRun reports that the command only returned what it would change.
	DryRun bool `json:"dry_run,omitempty"`

	// Code is the HTTP code of the response. Error is why the command failed or was refused.
	Code  int    `json:"code"`
	Error string `json:"error,omitempty"`
}

// Actions is the response to GET /api/v1/actions: the actions of operators since the relay started, newest first.
type Actions struct {
	Actions []Action `json:"actions"` // at most MaxActions
}

const (
	// MaxActions is the number of actions that a relay keeps.
	MaxActions = 500

	// maxActionBytes limits the arguments and the error of an action that is kept.
	maxActionBytes = 2 << 10
)

// Why is the reason of a command and the user who sent it. It is part of the arguments of commands.
type Why struct {
	// Reason has at most MaxReasonBytes bytes and no control characters. User is the user of the operating system that runs the
	// client. It is ignored if the client has a certificate.
	Reason string `json:"reason,omitempty"`
	User   string `json:"user,omitempty"`
}

// actions records the commands of operators, and keeps the newest ones.
type actions struct {
	logger *slog.Logger
	notify func(context.Context, Action) // Config.Action; may be nil

	mu   sync.Mutex
	list []Action // oldest first; guarded by mu
}

// add adds an action and drops the oldest one if there are MaxActions.
func (a *actions) add(action Action) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.list) == MaxActions {
		a.list = append(a.list[:0], a.list[1:]...)
	}
	a.list = append(a.list, action)
}

// newest returns at most limit actions, newest first.
func (a *actions) newest(limit int) []Action {
	a.mu.Lock()
	defer a.mu.Unlock()
	newest := make([]Action, 0, min(limit, len(a.list)))
	for i := len(a.list) - 1; i >= 0 && len(newest) < limit; i-- {
		newest = append(newest, a.list[i])
	}
	return newest
}

// record adds the outcome of a command to the list and to the log, and passes it to Config.Action.
func (a *actions) record(r *http.Request, c Caller, command string, args []byte, err error) {
	why := whyOf(args)
	action := Action{
		At: time.Now(), Command: command, Operator: c.By(why.User), From: r.RemoteAddr, Via: c.Via,
		Reason: why.Reason, DryRun: isDryRun(args), Code: CodeOf(err),
	}
	if len(args) <= maxActionBytes && json.Valid(args) {
		action.Arguments = args
	}
	attrs := []slog.Attr{
		slog.String("command", command), slog.String("operator", action.Operator),
		slog.String("from", action.From), slog.Int("code", action.Code),
	}
	if action.DryRun {
		attrs = append(attrs, slog.Bool("dry_run", true))
	}
	for _, optional := range []struct{ key, value string }{
		{"via", action.Via}, {"reason", action.Reason}, {"arguments", string(action.Arguments)},
	} {
		if optional.value != "" {
			attrs = append(attrs, slog.String(optional.key, optional.value))
		}
	}
	if err != nil {
		attrs = append(attrs, slog.Any("err", err))
		text := err.Error()
		action.Error = text[:min(len(text), maxActionBytes)]
	}
	a.add(action)
	a.logger.LogAttrs(logqueue.WithAudit(r.Context()), slog.LevelInfo, "operator action", attrs...)
	if a.notify != nil {
		a.notify(r.Context(), action)
	}
}

// isDryRun reports whether the arguments of a command ask for a dry run.
func isDryRun(args []byte) bool {
	var of struct {
		DryRun bool `json:"dry_run"`
	}
	return json.Unmarshal(args, &of) == nil && of.DryRun
}

// whyOf returns the reason and the user of the arguments of a command; the zero value if one of them is invalid.
func whyOf(args []byte) (why Why) {
	if json.Unmarshal(args, &why) != nil || why.Check() != nil {
		return Why{}
	}
	return why
}

// serve serves the newest actions.
func (a *actions) serve(r *http.Request) (any, error) {
	p := parametersOf(r)
	limit := p.limit()
	if err := p.done(); err != nil {
		return nil, err
	}
	return Actions{Actions: a.newest(limit)}, nil
}
