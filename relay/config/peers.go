package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// maxPeers is how many targets TENDER_PEERS may have.
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
		return nil, fmt.Errorf("it has %d targets", len(targets))
	}
	return targets, err
}

// checkPeers finds peers without the files that a connection to them needs, and files without peers, unless peers are
// switched off explicitly.
func (c *Config) checkPeers(wrong, found map[string]error) {
	files := []peersFile{{"PEERS_TLS_CERT", &c.PeersCert}, {"PEERS_TLS_KEY", &c.PeersKey}, {"PEERS_TLS_CA", &c.PeersCA}, {"PEERS_TLS_SERVER_NAME", &c.PeersServerName}}
	if wrong["PEERS"] != nil || slices.ContainsFunc(files, func(f peersFile) bool { return wrong[f.name] != nil }) {
		return
	}
	if len(c.Peers) == 0 {
		for _, f := range files {
			if *f.value != "" && !c.fromEnv["PEERS"] {
				found[f.name], *f.value = errors.New("it is of no use without TENDER_PEERS"), ""
			}
		}
		return
	}
	for _, f := range files[:2] {
		if *f.value == "" {
			found["PEERS"], c.Peers = fmt.Errorf("peers ask for a certificate, and %s%s is not set", prefix, f.name), nil
			return
		}
	}
	if strings.HasPrefix(c.PeersServerName, "spiffe:") && c.PeersCA == "" {
		found["PEERS_TLS_SERVER_NAME"], c.PeersServerName = errors.New("the system's CAs vouch for no SPIFFE ID, and TENDER_PEERS_TLS_CA is not set"), ""
	}
}

// A peersFile is the value of a variable for connections to peers.
type peersFile struct {
	name  string
	value *string
}

// openPeers reads the files for peers.
func (c *Credentials) openPeers(cfg *Config) (err error) {
	if len(cfg.Peers) == 0 {
		return nil
	}
	c.Peers, err = c.Files.ClientTLS(tlsfiles.ClientConfig{
		CA:         tlsfiles.File{Variable: "TENDER_PEERS_TLS_CA", Path: cfg.PeersCA},
		Cert:       tlsfiles.File{Variable: "TENDER_PEERS_TLS_CERT", Path: cfg.PeersCert},
		Key:        tlsfiles.File{Variable: "TENDER_PEERS_TLS_KEY", Path: cfg.PeersKey},
		ServerName: cfg.PeersServerName,
	})
	return err
}
