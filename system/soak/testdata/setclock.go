// Package setclock replaces time.Now in the relay process of the soak, by go build -overlay. The soak can then set
// the wall clock of the process without a change of its monotonic clock. The system has no way to set the clock of
// one process.
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

var seconds atomic.Int64 // offset of the wall clock

// Now returns the time of the set wall clock, with the monotonic reading of time.Now.
func Now() time.Time {
	at := time.Now()
	fields := (*struct {
		wall uint64 // with a monotonic reading, the seconds begin at bit 30
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&at))
	fields.wall += uint64(seconds.Load()) << 30
	return at
}

// SOAK_CLOCK is the initial offset in seconds. Each line of file 3 is a new offset. After each one, the Unix time of
// the set clock is written to file 4.
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
