package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// maxPeers is the maximum number of targets in TENDER_PEERS.
const maxPeers = 100

// parsePeers reads TENDER_PEERS.
func parsePeers(raw string) ([]string, error) {
	targets, err := listOf(",", func(item string) (string, error) {
		address, resolve := strings.CutPrefix(item, "dns:///")
		if !resolve && strings.Contains(item, "://") {
			return "", fmt.Errorf("%s is neither host:port nor dns:///host:port", humanize.Quote(item))
		}
		return item, checkAddress(address, 1, false)
	})(raw)
	if len(targets) > maxPeers {
		return nil, fmt.Errorf("%d targets exceed the maximum of %d", len(targets), maxPeers)
	}
	return targets, err
}

// checkPeers returns errors for peers without the files that a connection requires, and for files without peers. It
// accepts files if TENDER_PEERS is off explicitly.
func (c *Config) checkPeers(invalid, found map[string]error) {
	files := []peersFile{
		{"PEERS_TLS_CERT", &c.PeersTLSCert}, {"PEERS_TLS_KEY", &c.PeersTLSKey}, {"PEERS_TLS_CA", &c.PeersTLSCA},
		{"PEERS_TLS_SERVER_NAME", &c.PeersTLSServerName},
	}
	if invalid["PEERS"] != nil || slices.ContainsFunc(files, func(f peersFile) bool { return invalid[f.name] != nil }) {
		return
	}
	if len(c.Peers) == 0 {
		for _, f := range files {
			if *f.value != "" && !c.fromEnv["PEERS"] {
				found[f.name], *f.value = errors.New("requires TENDER_PEERS"), ""
			}
		}
		return
	}
	for _, f := range files[:2] {
		if *f.value == "" {
			found["PEERS"], c.Peers = fmt.Errorf("requires a client certificate, but %s%s is not set", prefix, f.name), nil
			return
		}
	}
	if strings.HasPrefix(c.PeersTLSServerName, "spiffe:") && c.PeersTLSCA == "" {
		found["PEERS_TLS_SERVER_NAME"], c.PeersTLSServerName = errors.New("a SPIFFE ID requires TENDER_PEERS_TLS_CA, because "+
			"the CAs of the system issue none"), ""
	}
}

// A peersFile is a variable for connections to peers, with its value.
type peersFile struct {
	name  string
	value *string
}

// openPeers reads the files for connections to peers.
func (c *Credentials) openPeers(cfg *Config) (err error) {
	if len(cfg.Peers) == 0 {
		return nil
	}
	c.Peers, err = c.Files.ClientTLS(peersConfig(cfg))
	return err
}

// peersConfig returns the TLS settings for connections to peers.
func peersConfig(cfg *Config) tlsfiles.ClientConfig {
	return tlsfiles.ClientConfig{
		CA:         tlsfiles.File{Variable: "TENDER_PEERS_TLS_CA", Path: cfg.PeersTLSCA},
		Cert:       tlsfiles.File{Variable: "TENDER_PEERS_TLS_CERT", Path: cfg.PeersTLSCert},
		Key:        tlsfiles.File{Variable: "TENDER_PEERS_TLS_KEY", Path: cfg.PeersTLSKey},
		ServerName: cfg.PeersTLSServerName,
	}
}
