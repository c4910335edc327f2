package bench

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkIdle starts tender serve and reports the time until it listens and its
// memory while it is idle. Each iteration is a process of its own.
func BenchmarkIdle(b *testing.B) {
	binary := build(b)
	var listening time.Duration
	var resident int
	for b.Loop() {
		took, kib := idle(b, binary)
		listening += took
		resident = max(resident, kib)
	}
	b.ReportMetric(float64(listening.Microseconds())/1000/float64(b.N), "ms-to-listen")
	b.ReportMetric(float64(resident)/1024, "MiB-RSS-max")
}

func build(b *testing.B) string {
	b.Helper()
	binary := filepath.Join(b.TempDir(), "tender")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "../cmd/tender")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// settle is how long the process is left alone before its memory is read. A
// benchmark may look at a clock; nothing is decided by it.
const settle = time.Second

// idle runs the relay once.
func idle(b *testing.B, binary string) (listening time.Duration, residentKiB int) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	address := freeAddress(b)
	cmd := exec.CommandContext(ctx, binary, "serve")
	cmd.Env = []string{"TENDER_ORIGIN=127.0.0.1:9", "TENDER_LISTEN=" + address, "TENDER_LOG_LEVEL=error"}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // killed: an error by intent
	}()
	for deadline := start.Add(10 * time.Second); ; {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			listening = time.Since(start)
			_ = conn.Close()
			break
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s serve does not listen on %s: %v", binary, address, err)
		}
		time.Sleep(200 * time.Microsecond)
	}
	time.Sleep(settle)
	return listening, resident(b, cmd.Process.Pid)
}

func freeAddress(b *testing.B) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// resident returns a process's resident memory.
func resident(b *testing.B, pid int) int {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Skipf("resident memory: %v", err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
			if err != nil {
				b.Fatal(err)
			}
			return kib
		}
	}
	b.Fatalf("no VmRSS of process %d", pid)
	return 0
}
