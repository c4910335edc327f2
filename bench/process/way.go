package process

import (
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// GiveWay restricts this process to one processor at the lowest priority. It thus takes little CPU time from the
// measured processes, as if it ran on another machine. Threads that start later inherit both.
func GiveWay() error {
	var all, own unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("give way: %w", err)
	}
	last := 0
	for cpu := range int(unsafe.Sizeof(all)) * 8 {
		if all.IsSet(cpu) {
			last = cpu
		}
	}
	own.Set(last)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("give way: %w", err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			return fmt.Errorf("give way: thread %q: %w", thread.Name(), err)
		}
		if err := unix.SchedSetaffinity(id, &own); err != nil {
			return fmt.Errorf("give way: keep thread %d to a processor: %w", id, err)
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, id, 19); err != nil {
			return fmt.Errorf("give way: %w", err)
		}
	}
	return nil
}
