package tlsfiles

import (
	"crypto/x509"
	"time"
)

// ParsePair exports parsePair for the fuzz target.
var ParsePair = parsePair

// ParseCAs returns the CAs in a PEM text, and the time at which the last of them expires.
func ParseCAs(f File, text []byte) (cas []*x509.Certificate, notAfter time.Time, err error) {
	cas, valid, err := parseCAs(f, text)
	return cas, valid.notAfter, err
}
