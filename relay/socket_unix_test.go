//go:build unix

package relay

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// Unix sockets have the permissions of TENDER_SOCKET_MODE, whatever the umask, also one that replaces that of a process which
// no longer runs. Those for operators are never for all users.
func TestSocketMode(t *testing.T) {
	for mode, want := range map[string]struct{ clients, operators fs.FileMode }{
		"": {0o660, 0o660}, "0600": {0o600, 0o600}, "0666": {0o666, 0o660},
	} {
		dir := t.TempDir()
		old := check.Must(net.Listen("unix", filepath.Join(dir, "LISTEN"))).(*net.UnixListener)
		old.SetUnlinkOnClose(false)
		check.OK(t, old.Close())
		env := []string{"TENDER_ORIGIN=file://" + dir, "TENDER_SOCKET_MODE=" + mode}
		all := map[string]fs.FileMode{
			"LISTEN": want.clients, "REST_LISTEN": want.clients, "PROBE_LISTEN": want.clients, "ADMIN_LISTEN": want.operators,
		}
		for name := range all {
			env = append(env, fmt.Sprintf("TENDER_%s=unix:%s", name, filepath.Join(dir, name)))
		}
		cfg := check.Must(LoadConfig(env))
		var ls listeners
		check.OK(t, ls.open(settingsOf(&cfg, "")))
		for name, want := range all {
			if got := check.Must(os.Stat(filepath.Join(dir, name))).Mode().Perm(); got != want {
				t.Errorf("TENDER_SOCKET_MODE=%s: the socket of %s has the mode %#o, want %#o", mode, name, got, want)
			}
		}
		for _, l := range ls.configured(addresses{}) {
			check.OK(t, closeAll(*l.listeners))
		}
	}
}

// The relay reports each address that it cannot listen on, and then keeps none open.
func TestAllAddressesThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	cfg := check.Must(LoadConfig([]string{
		"TENDER_ORIGIN=file://" + dir, "TENDER_LISTEN=" + fmt.Sprintf("unix:%s/no/a,unix:%s/open,unix:%[1]s/no/b", dir, dir),
		"TENDER_PROBE_LISTEN=unix:" + dir + "/no/c", "TENDER_ADMIN_LISTEN=off",
	}))
	err := new(listeners).open(settingsOf(&cfg, ""))
	want := []string{"TENDER_LISTEN: listen unix " + dir + "/no/a: ", "TENDER_LISTEN: listen unix " + dir + "/no/b: ",
		"TENDER_PROBE_LISTEN: listen unix " + dir + "/no/c: "}
	if err == nil || !slices.EqualFunc(strings.Split(err.Error(), "\n"), want, strings.HasPrefix) {
		t.Errorf("open: %v, want the lines %q", err, want)
	}
	if entries := check.Must(os.ReadDir(dir)); len(entries) > 0 {
		t.Errorf("after the error, %s has %v", dir, entries)
	}
}
