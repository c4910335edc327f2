// Package setclock replaces time.Now in the relay process of the soak (go build -overlay): the soak sets its wall clock,
// but not its monotonic clock. Nothing outside of a program can set the clock of only that program.
package setclock

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"
)

var seconds atomic.Int64 // that the wall clock is ahead

// Now returns the time by the wall clock as it was set, with the monotonic reading of time.Now.
func Now() time.Time {
	at := time.Now()
	fields := (*struct {
		wall uint64 // with a monotonic reading, seconds from bit 30 on
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&at))
	fields.wall += uint64(seconds.Load()) << 30
	return at
}

// The soak says in the environment how the clock is set when the relay starts, and then, a line each, in file 3. File 4 gets what
// the wall clock says once it was set.
func init() {
	ahead, _ := strconv.ParseInt(os.Getenv("SOAK_CLOCK"), 10, 64)
	seconds.Store(ahead)
	go func() { // ends with the process
		done, lines := os.NewFile(4, "done"), bufio.NewScanner(os.NewFile(3, "set"))
		for lines.Scan() {
			ahead, err := strconv.ParseInt(lines.Text(), 10, 64)
			if err != nil {
				panic(err)
			}
			seconds.Store(ahead)
			fmt.Fprintln(done, Now().Unix())
		}
	}()
}
