package relay

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A lineCount counts the lines of a log.
type lineCount struct{ atomic.Int64 }

func (c *lineCount) Write(b []byte) (int, error) {
	c.Add(1)
	return len(b), nil
}

// TestB35_MemoryWarningIsLoggedOnce checks that the warning at 80 % of the limit is logged once, and again only after
// memory use fell below 70 %, which is logged too. Without a limit there is no warning.
func TestB35_MemoryWarningIsLoggedOnce(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit uint64
		used  []uint64 // successive measurements
		want  []int    // measurements after which a line is logged: a warning, or its end
	}{
		{"fills", 100, []uint64{10, 79, 80, 100, 120}, []int{2}},
		{"is full from the start", 100, []uint64{90, 90}, []int{0}},
		{"goes up and down at the edge", 100, []uint64{80, 79, 80, 70, 80, 75, 90}, []int{0}},
		{"fills again", 100, []uint64{80, 69, 79, 80, 90}, []int{0, 1, 3}},
		{"empties twice", 100, []uint64{60, 80, 69, 60, 90}, []int{1, 2, 4}},
		{"has no limit", math.MaxInt64, []uint64{math.MaxInt64, math.MaxInt64}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var warnings lineCount
				ctx, cancel := context.WithCancel(t.Context())
				reads := 0
				read := func() memory {
					reads++
					return memory{used: tt.used[reads-1], limit: tt.limit}
				}
				go watchMemory(ctx, read, nil, slog.New(slog.NewTextHandler(&warnings, nil))) // ends with the bubble
				var got []int
				for i := range tt.used {
					if i > 0 {
						time.Sleep(memoryInterval)
					}
					synctest.Wait()
					if warnings.Load() > int64(len(got)) {
						got = append(got, i)
					}
				}
				cancel()
				synctest.Wait()
				if !slices.Equal(got, tt.want) {
					t.Errorf("lines after the measurements %v, want %v", got, tt.want)
				}
			})
		})
	}
}

// TestB35_MemoryOfABurstIsReturned: memory is returned to the operating system at the start, and once no garbage was
// collected for a while: twice within a minute of a burst, and not while garbage is collected, or for more than a hundredth
// of the time.
func TestB35_MemoryOfABurstIsReturned(t *testing.T) {
	for _, tt := range []struct {
		name     string
		collects func(second int) bool // whether the runtime collects within the 10 s after it
		took     time.Duration         // of a release
		want     []int                 // seconds at which memory is returned, of 120
	}{
		{name: "after a burst", collects: func(s int) bool { return s < 30 }, want: []int{0, 40, 50, 60, 70, 100}},
		{name: "while garbage is collected", collects: func(int) bool { return true }, want: []int{0}},
		{name: "between two bursts", collects: func(s int) bool { return s < 20 || s >= 50 }, want: []int{0, 30, 40, 50}},
		{
			name: "of a large heap", took: 500 * time.Millisecond,
			collects: func(int) bool { return false }, want: []int{0, 60},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				m := memory{used: 1000, limit: math.MaxInt64, collections: 1}
				began, read := time.Now(), -1
				var got []int
				go watchMemory(ctx, func() memory { // ends with the bubble
					if at := int(time.Since(began).Seconds()) / 10 * 10; at > read {
						if read >= 0 && tt.collects(read) {
							m.collections++
						}
						read = at
					}
					return m
				}, func() {
					got = append(got, int(time.Since(began).Seconds()))
					m.collections++
					m.used = max(m.used/2, 100)
					time.Sleep(tt.took)
				}, slog.New(slog.DiscardHandler))
				time.Sleep(2*time.Minute - time.Second)
				cancel()
				synctest.Wait()
				if !slices.Equal(got, tt.want) {
					t.Errorf("memory is returned after %v s, want %v", got, tt.want)
				}
			})
		})
	}
}

// TestB35_BufferedRequestsFollowTheMemoryLimit: the limit of buffered requests is a fourth of the limit of memory, and
// one client may always send the largest request.
func TestB35_BufferedRequestsFollowTheMemoryLimit(t *testing.T) {
	const request = 16 << 20
	for _, tt := range []struct {
		limit uint64
		want  int
	}{
		{math.MaxInt64, 1 << 30},
		{4 << 30, 1 << 30},
		{400 << 20, 100 << 20},
		{128 << 20, 4 * request},
	} {
		if got := bufferedBytes(memory{limit: tt.limit}, request); got != tt.want {
			t.Errorf("limit of memory %d: %d bytes of buffered requests, want %d", tt.limit, got, tt.want)
		}
	}
	if got := bufferedBytes(memory{limit: math.MaxInt64}, 1<<30); got != 4<<30 {
		t.Errorf("with requests of 1 GiB: %d bytes, want 4 GiB", got)
	}
}
