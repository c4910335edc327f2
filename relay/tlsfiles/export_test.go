package tlsfiles

import (
	"crypto/x509"
	"time"
)

// ParsePair is for the fuzz target.
var ParsePair = parsePair

// ParseCAs returns the CAs in a text and until when all of them are valid.
func ParseCAs(f File, text []byte) (cas []*x509.Certificate, notAfter time.Time, err error) {
	cas, valid, err := parseCAs(f, text)
	return cas, valid.notAfter, err
}
