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

// B.35: that four fifths of the memory are used is said once, and again only after it was less
// than seven tenths. Without a limit there is nothing to say.
func TestB35_MemoryThatIsNearlyFullIsSaidOnce(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit uint64
		used  []uint64 // one look after the other
		want  []int    // the looks after which something is said
	}{
		{"fills", 100, []uint64{10, 79, 80, 100, 120}, []int{2}},
		{"is full from the start", 100, []uint64{90, 90}, []int{0}},
		{"goes up and down at the edge", 100, []uint64{80, 79, 80, 70, 80, 75, 90}, []int{0}},
		{"fills again", 100, []uint64{80, 69, 79, 80, 90}, []int{0, 3}},
		{"has no limit", math.MaxInt64, []uint64{math.MaxInt64, math.MaxInt64}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said lineCount
				ctx, cancel := context.WithCancel(t.Context())
				looks := 0
				read := func() memory {
					looks++
					return memory{tt.used[looks-1], tt.limit}
				}
				go watchMemory(ctx, read, slog.New(slog.NewTextHandler(&said, nil))) // ends with the bubble
				var got []int
				for i := range tt.used {
					if i > 0 {
						time.Sleep(memoryInterval)
					}
					synctest.Wait()
					if said.Load() > int64(len(got)) {
						got = append(got, i)
					}
				}
				cancel()
				synctest.Wait()
				if !slices.Equal(got, tt.want) {
					t.Errorf("said after the looks %v, want %v", got, tt.want)
				}
			})
		})
	}
}
