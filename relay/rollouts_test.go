package relay

import (
	"context"
	"iter"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
)

// TestRolloutCommandsWhileShuttingDownAreUnavailable checks that commands during the shutdown return 503 instead of
// 500.
func TestRolloutCommandsWhileShuttingDownAreUnavailable(t *testing.T) {
	c := rollout.NewController(rollout.ControllerConfig{
		Config: rollout.Config{Stages: rollout.Stages{{Duration: time.Minute}}}, Logger: slog.New(slog.DiscardHandler),
		Frozen:   func() bool { return false },
		Observed: func() iter.Seq[downstream.Observed] { return func(func(downstream.Observed) bool) {} },
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Run(ctx, false)
	started := make(chan struct{})
	close(started)
	g := &groups{started: started, rollouts: &rollouts{controllers: []*rollout.Controller{c}}}
	op := newOperations(g, nil)
	if _, err := op.rolloutDiff(t.Context(), admin.RolloutChoice{}); admin.CodeOf(err) != http.StatusServiceUnavailable {
		t.Errorf("diff: status of %v is %d, want 503", err, admin.CodeOf(err))
	}
	for _, command := range rolloutCommands {
		_, err := op.commandRollouts(t.Context(), command, admin.RolloutScope{})
		if admin.CodeOf(err) != http.StatusServiceUnavailable {
			t.Errorf("%s: status of %v is %d, want 503", command.name, err, admin.CodeOf(err))
		}
	}
}
