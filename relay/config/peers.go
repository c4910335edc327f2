package config

import (
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
		return join(err, fmt.Errorf("%d targets exceed the maximum of %d", len(*p), maxPeers))
	}
	return err
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
