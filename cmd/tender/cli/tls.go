package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// TLSFlags are the flags of a command that connects with TLS. The zero value means plaintext.
type TLSFlags struct {
	CA         string // --tls-ca, a PEM file; if empty, the CAs of the system
	Cert, Key  string // --cert and --key, PEM files for mTLS; both or neither
	ServerName string // --server-name; if empty, the host of the address
}

// Add adds the flags to a command. address is the name of the flag with the address of the server, for the help.
func (t *TLSFlags) Add(cmd *cobra.Command, address string) {
	f := cmd.Flags()
	f.StringVar(&t.CA, "tls-ca", "", "PEM `file` with the CAs to trust (default the system's); any TLS flag enables TLS")
	f.StringVar(&t.Cert, "cert", "", "PEM `file` with the client's certificate")
	f.StringVar(&t.Key, "key", "", "PEM `file` with the client's key")
	f.StringVar(&t.ServerName, "server-name", "", "`name` that the server's certificate must have (default the host of --"+address+")")
	for _, file := range []string{"tls-ca", "cert", "key"} {
		CompleteFile(cmd, file)
	}
}

// Check returns an error if only one of --cert and --key is set.
func (t *TLSFlags) Check() error {
	if (t.Cert == "") != (t.Key == "") {
		return errors.New("--cert and --key: want both or neither")
	}
	return nil
}

// Config reads the files and returns the TLS configuration, or nil for plaintext.
func (t *TLSFlags) Config() (*tls.Config, error) {
	if *t == (TLSFlags{}) {
		return nil, nil
	}
	config := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("read --tls-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read --tls-ca: no certificate in %s", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("read --cert and --key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
