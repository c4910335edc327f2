package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// tlsFlags are the files and names for TLS. The zero value is plaintext.
type tlsFlags struct {
	ca, cert, key, serverName string
}

// add adds the flags to a command; address is the flag with the server's address.
func (t *tlsFlags) add(cmd *cobra.Command, address string) {
	f := cmd.Flags()
	f.StringVar(&t.ca, "tls-ca", "", "PEM `file` with the CAs to trust (default the system's); any TLS flag enables TLS")
	f.StringVar(&t.cert, "cert", "", "PEM `file` with the client's certificate")
	f.StringVar(&t.key, "key", "", "PEM `file` with the client's key")
	f.StringVar(&t.serverName, "server-name", "", "`name` that the server's certificate must have (default the host of --"+address+")")
	for _, file := range []string{"tls-ca", "cert", "key"} {
		completeFile(cmd, file)
	}
}

func (t *tlsFlags) check() error {
	if (t.cert == "") != (t.key == "") {
		return errors.New("--cert and --key: want both or neither")
	}
	return nil
}

// config returns what TLS needs; nil for plaintext.
func (t *tlsFlags) config() (*tls.Config, error) {
	if *t == (tlsFlags{}) {
		return nil, nil
	}
	config := &tls.Config{ServerName: t.serverName, MinVersion: tls.VersionTLS12}
	if t.ca != "" {
		pem, err := os.ReadFile(t.ca)
		if err != nil {
			return nil, fmt.Errorf("read --tls-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read --tls-ca: no certificate in %s", t.ca)
		}
	}
	if t.cert != "" {
		pair, err := tls.LoadX509KeyPair(t.cert, t.key)
		if err != nil {
			return nil, fmt.Errorf("read --cert and --key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
