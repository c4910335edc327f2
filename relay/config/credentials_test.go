package config

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestCredentialsAreHandedOver checks which TLS settings each field of Config sets.
func TestCredentialsAreHandedOver(t *testing.T) {
	all, _ := check.Settings[Config]{
		Base: Config{TLSTrustDomains: []TrustDomain{{Name: "base", CA: "base"}}},
		Others: map[string]any{
			"MinPushInterval": PushIntervals{{}}, "NodeLocality": Locality{Zone: "other"}, "NodeMetadata": Metadata{},
			"OriginAccess": Access{TLSCA: "other"}, "Origins": []NamedOrigin{{}}, "Rollout": Config{}.Rollout,
			"Routes": []Route{{}}, "TLSTrustDomains": []TrustDomain{{Name: "other", CA: "other"}},
		},
		Configured: func(cfg *Config) map[string]any {
			return map[string]any{"server": serverConfig(cfg), "peers": peersConfig(cfg)}
		},
	}.HandedOver(t)
	maps.DeleteFunc(all, func(_, paths string) bool { return paths == "" })
	want := map[string]string{
		"PeersTLSCA":         "peers.CA.Path",
		"PeersTLSCert":       "peers.Cert.Path",
		"PeersTLSKey":        "peers.Key.Path",
		"PeersTLSServerName": "peers.ServerName",
		"TLSCert":            "server.Cert.Path",
		"TLSClientCA":        "server.ClientCA.Path",
		"TLSKey":             "server.Key.Path",
		"TLSTrustDomains":    "server.TrustDomains.0.CA.Path server.TrustDomains.0.CA.Variable server.TrustDomains.0.Name",
	}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("settings of each field of Config (-want +got):\n%s", diff)
	}

	got, unset := check.Settings[Access]{
		Others: map[string]any{"TLS": TLSInsecure, "Headers": Headers{"x": "other"}},
		Configured: func(a *Access) map[string]any {
			client, calls, authority := accessConfig("", a)
			return map[string]any{"client": client, "calls": calls, "authority": authority}
		},
	}.HandedOver(t)
	want = map[string]string{
		"TLSCA":         "client.CA.Path",
		"TLSCert":       "client.Cert.Path",
		"Headers":       "calls.Headers",
		"TLSKey":        "client.Key.Path",
		"TLSServerName": "authority client.ServerName",
		"TLS":           "client.Insecure",
		"TokenFile":     "calls.Token.Path",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings of each field of Access (-want +got):\n%s", diff)
	}
	if slices.ContainsFunc(unset, func(path string) bool { return !strings.HasSuffix(path, ".Variable") }) {
		t.Errorf("no field of Access sets %q", unset)
	}
}
