package envoytest

import (
	"errors"
	"net"
	"net/http"

	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// ServeREST serves REST-JSON polls until the test ends and returns the address. It uses go-control-plane's gateway,
// which answers every poll at once. It must be called again after [ControlPlane.Restart].
func (c *ControlPlane) ServeREST() string {
	c.tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.tb.Fatalf("control plane: %v", err)
	}
	gateway := serverv3.HTTPGateway{Server: c.xds}
	server := &http.Server{
		ReadHeaderTimeout: relaytest.Patience, Protocols: new(http.Protocols),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, code, err := gateway.ServeHTTP(r)
			if err != nil {
				body = []byte(err.Error())
			}
			w.WriteHeader(code)
			_, _ = w.Write(body) // fails only if the client has disconnected
		}),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // awaited below
	c.tb.Cleanup(func() {
		_ = server.Close() // an error of a listener or connection does not matter here
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			c.tb.Errorf("control plane ended: %v", err)
		}
	})
	return l.Addr().String()
}
