package config

import (
	"errors"
	"net"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// addressPairs are two addresses and a part of the error if the relay cannot listen on both. PORT is a port, DIR a directory.
var addressPairs = []struct{ a, b, want string }{
	{":PORT", "0.0.0.0:PORT", `"0.0.0.0:PORT" is the same address as ":PORT" in TENDER_LISTEN; allowed: `},
	{":PORT", "[::]:PORT", "is the same address as"},
	{":PORT", "127.0.0.1:PORT",
		`"127.0.0.1:PORT" overlaps with ":PORT" in TENDER_LISTEN, because ":PORT" listens on all addresses of the host; `},
	{"127.0.0.1:PORT", "0.0.0.0:PORT",
		`"0.0.0.0:PORT" overlaps with "127.0.0.1:PORT" in TENDER_LISTEN, because "0.0.0.0:PORT" listens on all addresses`},
	{"localhost:PORT", "127.0.0.1:PORT", "is the same address as"},
	{"LOCALHOST:PORT", "[::ffff:127.0.0.1]:PORT", "is the same address as"},
	{"127.0.0.1:PORT", "127.0.0.1:0PORT", "is the same address as"},
	{"127.0.0.1:PORT", "127.0.0.1:PORT", "is also in TENDER_LISTEN"},
	{"unix:DIR/p", "unix://DIR/p", "is the same address as"},
	{"unix:DIR/p", "unix:DIR//./p", "is the same address as"},
	{"127.0.0.1:PORT", "127.0.0.2:PORT", ""},
	{"127.0.0.1:PORT", "[::1]:PORT", ""},
	{"127.0.0.1:PORT", "127.0.0.1:1PORT", ""},
	{"unix:DIR/p", "unix:DIR/p2", ""},
	{"a.example:PORT", "b.example:PORT", ""},
	{":0", "127.0.0.1:0", ""},
}

// TestOverlappingAddresses checks which addresses the relay cannot listen on together, in two variables or in one, and that
// the error explains it.
func TestOverlappingAddresses(t *testing.T) {
	fill := strings.NewReplacer("PORT", "2000", "DIR", "/run").Replace
	for _, tt := range addressPairs {
		a, b := fill(tt.a), fill(tt.b)
		environs := [][]string{{"TENDER_LISTEN=" + a, "TENDER_PROBE_LISTEN=" + b}}
		if a != b { // it would be a duplicate
			environs = append(environs, []string{"TENDER_LISTEN=" + a + "," + b})
		}
		for _, environ := range environs {
			_, err := Load(environ)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), fill(tt.want)) {
				t.Errorf("Load(%q): %v, want %s", environ, err, fill(tt.want))
			}
		}
	}
	_, err := Load([]string{"TENDER_LISTEN=:18080"})
	const want = `TENDER_LISTEN=":18080": ":18080" overlaps with "127.0.0.1:18080" in the default of TENDER_ADMIN_LISTEN, because `
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Load: %v, want %s", err, want)
	}
}

// TestKernelRefusesOverlap checks that the kernel refuses to listen on two addresses that overlap.
func TestKernelRefusesOverlap(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems allow an address beside all addresses")
	}
	for _, tt := range addressPairs {
		if tt.want == "" {
			continue
		}
		dir, port := t.TempDir(), "0"
		listen := func(address string) (net.Listener, error) {
			address = strings.NewReplacer("PORT", port, "DIR", dir).Replace(address)
			if path, ok := strings.CutPrefix(address, "unix:"); ok {
				return net.Listen("unix", filepath.Clean(strings.TrimPrefix(path, "//")))
			}
			return net.Listen("tcp", address)
		}
		held := check.Must(listen(tt.a))
		if tcp, ok := held.Addr().(*net.TCPAddr); ok {
			port = strconv.Itoa(tcp.Port)
		}
		if other, err := listen(tt.b); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("beside %s, net.Listen(%s): %v, %v, want that it is in use", held.Addr(), tt.b, other, err)
		}
		check.OK(t, held.Close())
	}
}

// TestOriginIsTheRelayItself checks that a relay is not its own control plane.
func TestOriginIsTheRelayItself(t *testing.T) {
	for _, tt := range []struct{ environ, want string }{ // entries, separated by |, and a prefix of the error
		{"TENDER_ORIGIN=dns:///localhost:18000", `TENDER_ORIGIN="dns:///localhost:18000": "dns:///localhost:18000" is the relay ` +
			`itself, which listens on ":18000" in the default of TENDER_LISTEN; allowed: `},
		{"TENDER_ORIGIN=a:1,[::1]:5|TENDER_PROBE_LISTEN=0.0.0.0:5", `TENDER_ORIGIN="a:1,[::1]:5": "[::1]:5" is the relay itself`},
		{"TENDER_ORIGIN=unix:///p|TENDER_LISTEN=unix:/p", `TENDER_ORIGIN="unix:///p": "unix:///p" is the relay itself`},
		{"TENDER_ORIGIN=10.0.0.1:1|TENDER_LISTEN=10.0.0.1:1", `TENDER_ORIGIN="10.0.0.1:1": "10.0.0.1:1" is the relay itself`},
		{"TENDER_ORIGIN=a:1|TENDER_ORIGINS=w=localhost:18080|TENDER_ROUTES=type:cds=w", `TENDER_ORIGINS="w=localhost:18080": `},
		{"TENDER_ORIGIN=10.0.0.1:18000", ""},
		{"TENDER_ORIGIN=a.example:18000", ""},
		{"TENDER_ORIGIN=127.0.0.1:18000|TENDER_LISTEN=127.0.0.2:18000", ""},
		{"TENDER_ORIGIN=file:///p|TENDER_LISTEN=unix:/p", ""},
	} {
		if _, err := Load(strings.Split(tt.environ, "|")); !hasLines(err, tt.want) {
			t.Errorf("Load(%q): %v, want %s", tt.environ, err, tt.want)
		}
	}
}
