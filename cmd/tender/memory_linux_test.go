package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestB35_ProgramPagesAreReleased: pages of the program that were needed only at its start are no longer resident, and
// the program still runs.
func TestB35_ProgramPagesAreReleased(t *testing.T) {
	resident := func() (kib int) {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "RssFile:")
		if _, err := fmt.Sscan(rest, &kib); err != nil {
			t.Fatal(err)
		}
		return kib
	}
	before := resident()
	releaseMemory()
	if after := resident(); after > before/2 {
		t.Errorf("%d KiB of files are resident, want less than half of %d", after, before)
	}
	var out bytes.Buffer
	root := newRootCommand(thisHost())
	root.SetOut(&out)
	root.SetArgs([]string{"help"})
	if err := root.Execute(); err != nil || out.Len() == 0 {
		t.Errorf("help printed %q, %v", out.String(), err)
	}
}

// TestProgramMapsAreThoseOfUnchangedPages: maps are omitted if releasing them would lose content.
func TestProgramMapsAreThoseOfUnchangedPages(t *testing.T) {
	const smaps = `00400000-01447000 r-xp 00000000 fe:00 917 /usr/bin/tender (x)
Rss:               14852 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
01447000-01448000 r-xp 01047000 fe:00 917 /usr/bin/tender (x)
Anonymous:             4 kB
01448000-02870000 r--p 01048000 fe:00 917 /usr/bin/tender (x)
Anonymous:             0 kB
02870000-02900000 r--s 01048000 fe:00 917 /usr/bin/tender (x)
Anonymous:             0 kB
02900000-02990000 rw-p 02470000 fe:00 917 /usr/bin/tender (x)
Anonymous:             0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 918 /usr/lib/libc.so
Anonymous:             0 kB
7f0000001000-7f0000002000 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
`
	want := []memoryMap{{0x400000, 0x1447000}, {0x1448000, 0x2870000}}
	if got := unchangedMaps([]byte(smaps), "/usr/bin/tender (x)"); !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}
