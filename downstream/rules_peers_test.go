package downstream

import "testing"

// B.35: peers are told apart by IP address, however it is written. What has none is no
// peer: groups are not counted for it.
func TestB35_PeersAreHosts(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1:1234":        "10.0.0.1",
		"[::ffff:10.0.0.1]:9":  "10.0.0.1",
		"[2001:db8::1]:1234":   "2001:db8::1",
		"[fe80::1%eth0]:1234":  "fe80::1",
		"@":                    "",
		"":                     "",
		"/run/tender.sock":     "",
		"bufconn":              "",
		"not-an-address:12345": "",
	} {
		if got := hostIP(address); got != want {
			t.Errorf("hostOf(%q) = %q, want %q", address, got, want)
		}
	}
}
