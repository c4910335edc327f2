package envoy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// secretRules allow edge-1 to receive the Secret "web". Other clients may receive all resources except Secrets.
const secretRules = `
version: 1
rules:
- {name: edge, identities: ["spiffe://example/edge-1"], node: {id: [edge-1]}, secrets: [web]}
- {name: others, identities: ["spiffe://example/other"]}
`

// secretFiles writes the files that mtls.yaml needs: Secrets, the CA of relays, and a certificate for the Envoy's
// identity. It returns their directory, and the variables that give the relay its certificate.
func secretFiles(t *testing.T, ca *certs.CA, identity string) (dir string, env []string) {
	t.Helper()
	dir = t.TempDir()
	files := filepath.Join(dir, "tls")
	if err := os.Mkdir(files, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"secret-ca.yaml", "secret-client.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../deploy/envoy", name))
		if err != nil {
			t.Fatal(err)
		}
		certs.WriteFile(t, dir, name, bytes.ReplaceAll(text, []byte("/etc/envoy"), []byte(dir)))
	}
	clients := certs.WriteFile(t, files, "ca.crt", ca.PEM)
	ca.Sign(certs.Leaf{URI: identity}).Write(t, files)
	cert, key := ca.Sign(certs.Leaf{Names: []string{"tender.example"}}).Write(t, t.TempDir())
	return dir, []string{"TENDER_TLS_LISTEN=127.0.0.1:0", "TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key, "TENDER_TLS_CLIENT_CA=" + clients}
}

// secure makes a listener serve HTTPS with a certificate from SDS over ADS.
func secure(l *listenerpb.Listener, certificate string) *listenerpb.Listener {
	l.FilterChains[0].TransportSocket = withSecrets(overADS(), certificate)
	return l
}

// getHTTPS sends a request on a new connection and returns the second DNS name of the server certificate. The
// certificate must be signed by ca for the name "web".
func getHTTPS(ctx context.Context, address string, ca *certs.CA) (name string, err error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM)
	client := &http.Client{Timeout: relaytest.Patience, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "web", MinVersion: tls.VersionTLS12},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/", http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s, %w", resp.Status, err)
	}
	return resp.TLS.PeerCertificates[0].DNSNames[1], nil
}

// TestEnvoy_Secrets: an Envoy serves HTTPS with a certificate that it receives by SDS from the relay over mTLS. No
// request fails when the certificate is rotated. In the direct run, the control plane serves the certificate without
// TLS. (TENDER_SECRETS)
func TestEnvoy_Secrets(t *testing.T) {
	compared(t, ads, func(t *testing.T, c client, o *outcome) {
		ca := certs.NewCA(t)
		serving := func(serial string) proto.Message {
			return certificate("web", ca.Sign(certs.Leaf{Names: []string{"web", serial}}))
		}
		origin := envoytest.NewControlPlane(t)
		origin.Put(relaytest.Cluster("one"), relaytest.Endpoints("one", envoytest.NewBackend(t, "one").Addr),
			relaytest.Route("web", []string{"*"}, "one"), secure(relaytest.Listener("web", "web"), "web"), serving("first"))
		of := c.options(origin.Addr, "edge-1")
		if !o.direct {
			dir, env := secretFiles(t, ca, "spiffe://example/edge-1")
			r := envoytest.NewRelay(t, origin.Addr, append(env, rulesIn(t, dir))...)
			of.Bootstrap, of.Server, of.Files, of.Edit = "mtls.yaml", r.TLS, dir, c.speak
		}
		e := envoytest.Start(t, of)
		address := e.Listener("web")
		for i, serial := range []string{"first", "second", "third"} {
			if i > 0 {
				origin.Put(serving(serial))
			}
			o.await(e, serial+" certificate", func() error { // each request makes a TLS handshake, which must not fail
				got, err := getHTTPS(t.Context(), address, ca)
				if err != nil {
					o.requests(envoytest.Report{Failures: []string{fmt.Sprintf("while the %s certificate is distributed: %v", serial, err)}})
				} else if got != serial {
					err = fmt.Errorf("got the %s certificate", got)
				}
				return err
			})
		}
		o.unmodified(0, e)
		o.judge(e, envoytest.Report{})
	})
}

// rulesIn writes secretRules to dir and returns the relay's variable for the file.
func rulesIn(t *testing.T, dir string) string {
	t.Helper()
	return "TENDER_AUTHZ=" + certs.WriteFile(t, dir, "authz.yaml", []byte(secretRules))
}

// TestEnvoy_SecretsDenied: a client does not receive a Secret if it has no certificate, or if the rules do not allow
// the Secret to its identity. The relay logs a warning with the node. (TENDER_SECRETS, B.36)
func TestEnvoy_SecretsDenied(t *testing.T) {
	matrix(t, ads, func(t *testing.T, c client) {
		for _, certified := range []bool{false, true} {
			t.Run(fmt.Sprintf("certified=%t", certified), func(t *testing.T) {
				t.Parallel()
				origin, ca := envoytest.NewControlPlane(t), certs.NewCA(t)
				origin.Put(append(web("one", envoytest.NewBackend(t, "one")), secure(relaytest.Listener("secure", "web"), "web"),
					certificate("web", ca.Sign(certs.Leaf{Names: []string{"web"}})))...)
				dir, env := secretFiles(t, ca, "spiffe://example/other")
				of := c.options("", "denied-1")
				if certified {
					env = append(env, rulesIn(t, dir))
					of.Bootstrap, of.Files, of.Edit = "mtls.yaml", dir, c.speak
				}
				r := envoytest.NewRelay(t, origin.Addr, env...)
				if of.Server = r.Addr; certified {
					of.Server = r.TLS
				}
				e := envoytest.Start(t, of)
				e.Await("warning of the relay", func() error {
					for line := range strings.Lines(r.Log()) {
						if strings.Contains(line, "level=WARN") && strings.Contains(line, "node=denied-1") && strings.Contains(line, "Secret") {
							return nil
						}
					}
					return errors.New("the relay logged no warning")
				})
				if names := e.Config().Names("dynamic_active_secrets"); slices.Contains(names, "web") {
					t.Errorf("the Envoy has the Secrets %q, want no web", names)
				}
			})
		}
	})
}
