package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
)

// releaseMemory returns memory to the operating system: that of the heap, and the pages of the program that were last
// used long ago. Most of these were used once, when the packages of the program were initialized. The kernel counts
// them as resident until it is short of memory. It keeps them in its cache, so that a page that is used again costs a
// minor fault.
func releaseMemory() {
	debug.FreeOSMemory()
	maps, err := programMaps()
	if err != nil {
		return
	}
	for _, m := range maps {
		// An error is ignored: the pages stay.
		_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, m.start, m.end-m.start, syscall.MADV_DONTNEED)
	}
}

// A memoryMap is a part of the address space.
type memoryMap struct{ start, end uintptr }

// programMaps returns the parts of the address space that have the code and the constants of the program as they are in
// its file. Parts with a page that differs from the file, as after relocation or with a breakpoint, are omitted: their
// content would be lost.
func programMaps() (maps []memoryMap, err error) {
	file, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return nil, err
	}
	return unchangedMaps(smaps, file), nil
}

// unchangedMaps returns the private and read-only maps of a file, in the format of /proc/PID/smaps, that have no anonymous
// page.
func unchangedMaps(smaps []byte, file string) (maps []memoryMap) {
	var m memoryMap
	candidate := false
	for s := bufio.NewScanner(bytes.NewReader(smaps)); s.Scan(); {
		fields := strings.Fields(s.Text())
		switch {
		case len(fields) >= 2 && strings.HasSuffix(fields[0], ":"):
			if fields[0] == "Anonymous:" && candidate && fields[1] == "0" {
				maps = append(maps, m)
			}
		case len(fields) >= 6: // start-end permissions offset device inode path
			_, err := fmt.Sscanf(fields[0], "%x-%x", &m.start, &m.end)
			private := fields[1] == "r-xp" || fields[1] == "r--p"
			candidate = err == nil && private && strings.HasSuffix(s.Text(), " "+file)
		default:
			candidate = false
		}
	}
	return maps
}
