package interop_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

const (
	gatewayXDS     = "127.0.0.1:18000"
	gatewayVersion = "0.0.1" // version of the Envoy that Envoy Gateway starts
)

// gatewayPorts are the fixed ports of Envoy Gateway without Kubernetes: xDS, Wasm modules, admin endpoint, metrics
// and probes.
var gatewayPorts = []int{18000, 18002, 19000, 19001, 8081}

// TestInterop_EnvoyGateway: an Envoy of the relay serves the HTTPRoute of a Gateway and follows its changes. While
// Envoy Gateway is down, the Envoy keeps serving, and an Envoy that starts gets its configuration. Both follow the
// changed route when Envoy Gateway returns.
func TestInterop_EnvoyGateway(t *testing.T) {
	need(t, envoyGateway)
	free(t, "Envoy Gateway", gatewayPorts...)
	eachVariant(t, func(t *testing.T, bootstrap string) {
		one, two := envoytest.NewBackend(t, "one"), envoytest.NewBackend(t, "two")
		g := newGateway(t, one, two)
		g.route(t, 1, 0)
		server := g.start(t)
		r := envoytest.StartRelay(t, gatewayXDS, g.relay()...)
		node := relaytest.EnvoyNode("edge-1")
		node.Cluster = "default/edge"
		options := envoytest.Options{Bootstrap: bootstrap, Server: r.Addr, Node: node}
		e := envoytest.Start(t, options)
		load := envoytest.StartLoad(t, e.Listener("default/edge/http"), interval)
		answers(load, one)

		g.route(t, 0, 1)
		quiet(load, one)
		g.route(t, 1, 1)
		answers(load, one)

		server.Kill()
		answers(load, two)
		options.Node = &corepb.Node{Id: "edge-2", Cluster: node.Cluster, UserAgentName: node.UserAgentName}
		newcomer := envoytest.Start(t, options)
		newcomer.Listener("default/edge/http")
		newcomer.AwaitReady()
		g.route(t, 0, 1)
		g.start(t)
		quiet(load, one)
		newcomer.AwaitConfig(e.Config())
		served(t, load, e, newcomer)
	})
}

// quiet waits until a backend has answered none of the last hundred requests.
func quiet(load *envoytest.Load, b *envoytest.Backend) {
	last, until := -1, 0
	load.Await("end of the answers of "+b.Name, func(r envoytest.Report) bool {
		if r.Answers[b.Name] != last {
			last, until = r.Answers[b.Name], r.Total()+100
		}
		return r.Total() >= until
	})
}

// A gateway is the configuration of an Envoy Gateway.
type gateway struct {
	dir  string // directory of its files
	port string // port of the listener of its Gateway
}

// newGateway writes the files of Envoy Gateway, with two backends.
func newGateway(t *testing.T, one, two *envoytest.Backend) gateway {
	t.Helper()
	g := gateway{dir: t.TempDir(), port: portOf(proxy.FreeAddress(t))}
	for _, dir := range []string{"resources", "home/envoy-versions/" + gatewayVersion + "/bin"} {
		if err := os.MkdirAll(filepath.Join(g.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	certgen := exec.CommandContext(t.Context(), *envoyGateway, "certgen", "--local", "--config-home", g.path("home"))
	if out, err := certgen.CombinedOutput(); err != nil {
		t.Fatalf("envoy-gateway certgen: %v\n%s", err, out)
	}
	certs.WriteFile(t, g.dir, "standalone.yaml", []byte(fmt.Sprintf(gatewayConfig, g.path("resources"), g.path("home"))))
	// Envoy Gateway starts an Envoy, which would take the port of the test's Envoy. This program replaces it and does
	// nothing.
	if err := os.WriteFile(g.path("home/envoy-versions/"+gatewayVersion+"/bin/envoy"), []byte("#!/bin/sh\nexec sleep 100000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	certs.WriteFile(t, g.path("resources"), "gateway.yaml", []byte(strings.NewReplacer(
		"PORT", g.port, "VERSION", gatewayVersion, "BACKEND_ONE", portOf(one.Addr), "BACKEND_TWO", portOf(two.Addr),
	).Replace(gatewayResources)))
	return g
}

func (g gateway) path(name string) string { return filepath.Join(g.dir, name) }

// route writes the HTTPRoute with the weights of the two backends.
func (g gateway) route(t *testing.T, one, two int) {
	t.Helper()
	replace(t, g.path("resources/route.yaml"), fmt.Sprintf(gatewayRoute, one, two))
}

// start starts Envoy Gateway and waits until it serves xDS.
func (g gateway) start(t *testing.T) *program {
	t.Helper()
	p := start(t, *envoyGateway, nil, "server", "--config-path", g.path("standalone.yaml"))
	p.listens(gatewayXDS)
	return p
}

// relay returns the variables of a relay, as in deploy/docs/control-planes/envoy-gateway.md.
func (g gateway) relay() []string {
	certs := g.path("home/certs/envoy")
	return []string{
		"TENDER_ORIGIN_TLS_CA=" + filepath.Join(certs, "ca.crt"),
		"TENDER_ORIGIN_TLS_CERT=" + filepath.Join(certs, "tls.crt"),
		"TENDER_ORIGIN_TLS_KEY=" + filepath.Join(certs, "tls.key"),
		"TENDER_ORIGIN_TLS_SERVER_NAME=envoy-gateway",
		"TENDER_NODE_GROUP_BY=cluster", "TENDER_NODE_ID=tender/{cluster}",
	}
}

// gatewayConfig is the configuration of Envoy Gateway. Its arguments are the directories of resources and of other
// files.
const gatewayConfig = `apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyGateway
gateway:
  controllerName: gateway.envoyproxy.io/gatewayclass-controller
provider:
  type: Custom
  custom:
    resource:
      type: File
      file: {paths: [%[1]q]}
    infrastructure:
      type: Host
      host: {configHome: %[2]q, dataHome: %[2]q, stateHome: %[2]q, runtimeDir: %[2]q}
logging: {level: {default: info}}
extensionApis: {enableBackend: true}
`

const gatewayResources = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: tender}
spec:
  controllerName: gateway.envoyproxy.io/gatewayclass-controller
  parametersRef: {group: gateway.envoyproxy.io, kind: EnvoyProxy, name: idle, namespace: default}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyProxy
metadata: {name: idle, namespace: default}
spec:
  provider: {type: Host, host: {envoyVersion: VERSION}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  gatewayClassName: tender
  listeners: [{name: http, protocol: HTTP, port: PORT}]
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: one, namespace: default}
spec: {endpoints: [{ip: {address: 127.0.0.1, port: BACKEND_ONE}}]}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: two, namespace: default}
spec: {endpoints: [{ip: {address: 127.0.0.1, port: BACKEND_TWO}}]}
`

// gatewayRoute is the HTTPRoute. Its arguments are the weights of the backends.
const gatewayRoute = `apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: default}
spec:
  parentRefs: [{name: edge}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /}}]
    backendRefs:
    - {group: gateway.envoyproxy.io, kind: Backend, name: one, weight: %d}
    - {group: gateway.envoyproxy.io, kind: Backend, name: two, weight: %d}
`

// TestInterop_EnvoyGatewayLearnsOfRejects: an Envoy of the relay rejects a listener, because its port is in use. Envoy
// Gateway counts one NACK for that, and sends nothing because of it.
func TestInterop_EnvoyGatewayLearnsOfRejects(t *testing.T) {
	need(t, envoyGateway)
	free(t, "Envoy Gateway", gatewayPorts...)
	eachVariant(t, func(t *testing.T, bootstrap string) {
		one, two := envoytest.NewBackend(t, "one"), envoytest.NewBackend(t, "two")
		g := newGateway(t, one, two)
		g.route(t, 1, 0)
		server := g.start(t)
		r := envoytest.StartRelay(t, gatewayXDS, append(g.relay(), "TENDER_REPORT_REJECTS=on")...)
		taken, err := net.Listen("tcp", ":"+g.port)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = taken.Close() }()
		node := relaytest.EnvoyNode("edge-1")
		node.Cluster = "default/edge"
		envoytest.Start(t, envoytest.Options{Bootstrap: bootstrap, Server: r.Addr, Node: node})
		mark := r.AwaitLine(0, "origin told what clients reject")
		if !strings.Contains(mark, "envoy.config.listener.v3.Listener") {
			t.Errorf("the relay told %s, want a listener", mark)
		}
		const nacks = `xds_nack_total{nodeID="tender/default/edge",typeURL="type.googleapis.com/envoy.config.listener.v3.Listener"`
		server.Await("NACK in the metrics", func() error {
			if page := metricsOf(t); !strings.Contains(page, nacks) {
				return fmt.Errorf("the metrics lack %s:\n%s", nacks, page)
			}
			return nil
		})
		for _, line := range strings.Split(metricsOf(t), "\n") {
			if strings.HasPrefix(line, nacks) && !strings.HasSuffix(line, " 1") {
				t.Errorf("%s, want one NACK", line)
			}
		}
	})
}

// metricsOf returns the metrics of Envoy Gateway.
func metricsOf(t *testing.T) string {
	t.Helper()
	resp, err := http.Get("http://127.0.0.1:19001/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return string(text)
}
