package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/xdstender/tender/relay/admin"
)

// setLogLevel changes the least level that is logged. The log says so, whatever the two are: by the
// one that has more logged.
func (r *Relay) setLogLevel(ctx context.Context, to admin.LogLevel) (admin.LogLevelChange, error) {
	var level slog.Level
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, to.Level) || level.UnmarshalText([]byte(to.Level)) != nil {
		return admin.LogLevelChange{}, admin.Refuse(http.StatusBadRequest, fmt.Errorf("level=%.32q: want debug, info, warn or error", to.Level))
	}
	r.levelSet.Lock()
	defer r.levelSet.Unlock()
	before := r.level.Level()
	say := func() {
		r.log.LogAttrs(ctx, max(slog.LevelInfo, min(before, level)), "log level changed",
			slog.String("before", strings.ToLower(before.String())), slog.String("now", to.Level))
	}
	if level > before {
		say()
	}
	if r.level.Set(level); level <= before {
		say()
	}
	return admin.LogLevelChange{Level: to.Level, Before: strings.ToLower(before.String())}, nil
}
