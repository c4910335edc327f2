package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// maxPeers is the maximum number of targets in TENDER_PEERS.
const maxPeers = 100

// PeerTargets are the admin addresses of peers: host:port or dns:///host:port.
type PeerTargets []string

// EnvDecode reads addresses, separated by commas.
func (p *PeerTargets) EnvDecode(raw string) error {
	err := decodeList(p, ",", raw, func(item string) (string, error) {
		address, resolve := strings.CutPrefix(item, "dns:///")
		if !resolve && strings.Contains(item, "://") {
			return "", fmt.Errorf("%s is neither host:port nor dns:///host:port", humanize.Quote(item))
		}
		return item, checkAddress(address, 1, false)
	}, nil)
	if len(*p) > maxPeers {
		return fmt.Errorf("%d targets exceed the maximum of %d", len(*p), maxPeers)
	}
	return err
}

// checkPeers returns errors for peers without the files that a connection requires, and for files without peers. It
// accepts files if TENDER_PEERS is off explicitly (isSet).
func (c *Config) checkPeers(isSet bool, invalid, found map[string]error) {
	files := []struct{ name, value string }{
		{"PEERS_TLS_CERT", string(c.PeersTLSCert)}, {"PEERS_TLS_KEY", string(c.PeersTLSKey)},
		{"PEERS_TLS_CA", string(c.PeersTLSCA)}, {"PEERS_TLS_SERVER_NAME", string(c.PeersTLSServerName)},
	}
	for _, f := range append(files, struct{ name, value string }{name: "PEERS"}) {
		if invalid[f.name] != nil {
			return
		}
	}
	if len(c.Peers) == 0 {
		for _, f := range files {
			if f.value != "" && !isSet {
				found[f.name] = errors.New("requires TENDER_PEERS")
			}
		}
		return
	}
	for _, f := range files[:2] {
		if f.value == "" {
			found["PEERS"] = fmt.Errorf("requires a client certificate, but %s%s is not set", prefix, f.name)
			return
		}
	}
	if c.PeersTLSServerName.isID() && c.PeersTLSCA == "" {
		found["PEERS_TLS_SERVER_NAME"] = errors.New("a SPIFFE ID requires TENDER_PEERS_TLS_CA, because the CAs of the " +
			"system issue none")
	}
}

// peersConfig returns the TLS settings for connections to peers.
func peersConfig(cfg *Config) tlsfiles.ClientConfig {
	return tlsfiles.ClientConfig{
		CA:         tlsfiles.File{Variable: "TENDER_PEERS_TLS_CA", Path: string(cfg.PeersTLSCA)},
		Cert:       tlsfiles.File{Variable: "TENDER_PEERS_TLS_CERT", Path: string(cfg.PeersTLSCert)},
		Key:        tlsfiles.File{Variable: "TENDER_PEERS_TLS_KEY", Path: string(cfg.PeersTLSKey)},
		ServerName: string(cfg.PeersTLSServerName),
	}
}
