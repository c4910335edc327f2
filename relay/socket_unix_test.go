//go:build unix

package relay

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
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
