package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/xdstender/tender/relay/admin"
)

// A logLevel is the log level of the relay, which operators can change.
type logLevel struct {
	log   *slog.Logger
	level *slog.LevelVar
	mu    sync.Mutex // serializes changes
}

// set changes the log level. It logs the change at the more verbose of both levels, so that the message is not
// filtered.
func (l *logLevel) set(ctx context.Context, to admin.LogLevel) (admin.LogLevelChange, error) {
	var level slog.Level
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, to.Level) ||
		level.UnmarshalText([]byte(to.Level)) != nil {
		return admin.LogLevelChange{}, admin.Refuse(http.StatusBadRequest,
			fmt.Errorf("level=%.32q: want debug, info, warn or error", to.Level))
	}
	if err := to.Check(); err != nil {
		return admin.LogLevelChange{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.level.Level()
	logChange := func() {
		l.log.LogAttrs(ctx, max(slog.LevelInfo, min(before, level)), "log level changed",
			slog.String("before", strings.ToLower(before.String())), slog.String("now", to.Level))
	}
	if level > before {
		logChange()
	}
	if l.level.Set(level); level <= before {
		logChange()
	}
	return admin.LogLevelChange{Level: to.Level, Before: strings.ToLower(before.String())}, nil
}
