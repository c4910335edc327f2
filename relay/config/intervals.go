package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/humanize"
)

// A PushInterval is the minimum time between two changes of a type that a client is sent. Its text form is cds=1s.
type PushInterval struct {
	Type  string // type URL, or * for all types without an interval of their own
	Least time.Duration
}

// String returns the text.
func (i PushInterval) String() string { return typeText(i.Type) + "=" + humanize.Duration(i.Least) }

// PushIntervals are the intervals of different types.
type PushIntervals []PushInterval

// MarshalText returns the text, separated by commas.
func (all PushIntervals) MarshalText() ([]byte, error) { return listText(all, PushInterval.String) }

// Of returns the interval of a type, or zero if it has none. The interval of * does not apply to endpoints.
func (all PushIntervals) Of(typeURL string) (minimum time.Duration) {
	for _, one := range all {
		switch {
		case one.Type == typeURL:
			return one.Least
		case one.Type == wire.Wildcard && !wire.IsEndpoints(typeURL):
			minimum = one.Least
		}
	}
	return minimum
}

// Bounds of a push interval. A longer interval would delay changes by more than clients and operators expect.
const (
	minPushInterval = 10 * time.Millisecond
	maxPushInterval = 10 * time.Second
)

// EnvDecode reads intervals, separated by commas.
func (all *PushIntervals) EnvDecode(raw string) error {
	return decodeList(all, ",", raw, parsePushInterval,
		func(i PushInterval) string { return "interval for " + humanize.Quote(i.Type) })
}

// parsePushInterval reads type=interval.
func parsePushInterval(item string) (i PushInterval, err error) {
	name, interval, ok := strings.Cut(item, "=")
	if !ok {
		return i, fmt.Errorf("%s is not a type and an interval, such as cds=1s", humanize.Quote(item))
	}
	if name = strings.TrimSpace(name); name == "" {
		return i, errors.New("an interval has no type")
	}
	if i.Type = name; name != wire.Wildcard {
		i.Type, err = parseType(name)
	}
	interval = strings.TrimSpace(interval)
	var invalid error
	switch i.Least, invalid = time.ParseDuration(interval); {
	case invalid != nil:
		err = join(err, fmt.Errorf("%s is not a duration", humanize.Quote(interval)))
	case i.Least < minPushInterval:
		err = join(err, fmt.Errorf("%s is too short", humanize.Quote(interval)))
	case i.Least > maxPushInterval:
		err = join(err, fmt.Errorf("%s is too long", humanize.Quote(interval)))
	}
	return i, err
}
