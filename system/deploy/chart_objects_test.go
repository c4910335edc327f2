package deploy_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/telemetry"
)

// TestChart_PortsAreThoseOfListeners checks that the ports of pods are those on which relays listen, and that
// Services refer to ports of the pods.
func TestChart_PortsAreThoseOfListeners(t *testing.T) {
	relayPods(t, func(t *testing.T, p relayPod) {
		got := map[string]int{}
		for _, port := range list(p.relay, "ports") {
			got[text(port, "name")] = number(port, "containerPort")
		}
		want := p.ports(t)
		if !maps.Equal(got, want) {
			t.Errorf("%v: the ports are %v, the relay listens on %v", p, got, want)
		}
		for _, service := range p.of("Service") {
			for _, port := range list(service.object, "spec", "ports") {
				if name := text(port, "targetPort"); want[name] == 0 || want[name] != number(port, "port") {
					t.Errorf("%v: the Service %s leads to %v, the relay listens on %v", p, service.name(), port, want)
				}
			}
		}
		clients := slices.Sorted(maps.Keys(want))
		clients = slices.DeleteFunc(clients, func(name string) bool { return name == "probe" || name == "admin" })
		for _, service := range p.of("Service") {
			var has []string
			for _, port := range list(service.object, "spec", "ports") {
				has = append(has, text(port, "name"))
			}
			slices.Sort(has)
			isHeadless := text(service.object, "spec", "clusterIP") == "None"
			if !isHeadless && !slices.Equal(has, clients) || isHeadless && !slices.Equal(has, slices.Sorted(maps.Keys(want))) {
				t.Errorf("%v: the Service %s has the ports %v, the pod %v", p, service.name(), has, keys(want))
			}
		}
	})
}

// TestChart_SelectorsMatchPods checks that each selector matches the labels of the pods, and that the selector of a
// ServiceMonitor matches one Service. Autoscalers and StatefulSets must refer to rendered objects.
func TestChart_SelectorsMatchPods(t *testing.T) {
	selectorOf := map[string][]string{
		"Service": {"spec", "selector"}, "NetworkPolicy": {"spec", "podSelector", "matchLabels"}, "PodDisruptionBudget": {"spec", "selector", "matchLabels"},
		"Deployment": {"spec", "selector", "matchLabels"}, "StatefulSet": {"spec", "selector", "matchLabels"}, "DaemonSet": {"spec", "selector", "matchLabels"},
	}
	relayPods(t, func(t *testing.T, p relayPod) {
		labels := at(p.template, "metadata", "labels")
		for _, m := range p.objects {
			path := selectorOf[m.kind()]
			if selector := at(m.object, path...); path != nil && !matches(selector, labels) {
				t.Errorf("%v: the selector of %s %s is %v, the labels of the pod are %v", p, m.kind(), m.name(), selector, labels)
			}
		}
		for _, spread := range list(p.template, "spec", "topologySpreadConstraints") {
			if !matches(at(spread, "labelSelector", "matchLabels"), labels) {
				t.Errorf("%v: topologySpreadConstraints have %v, the labels of the pod are %v", p, spread, labels)
			}
		}
		services := p.of("Service")
		for _, m := range p.of("ServiceMonitor") {
			others := slices.DeleteFunc(slices.Clone(services), func(s manifest) bool {
				return matches(at(m.object, "spec", "selector", "matchLabels"), at(s.object, "metadata", "labels"))
			})
			if len(services)-len(others) != 1 {
				t.Errorf("%v: the ServiceMonitor selects %d Services, want 1", p, len(services)-len(others))
			}
		}
		for _, m := range p.of("HorizontalPodAutoscaler") {
			target := at(m.object, "spec", "scaleTargetRef")
			if text(target, "kind") != p.workload.kind() || text(target, "name") != p.workload.name() || at(p.workload.object, "spec", "replicas") != nil {
				t.Errorf("%v: the autoscaler scales %v; the workload must not set replicas as well", p, target)
			}
		}
		if name := text(p.workload.object, "spec", "serviceName"); name != "" && !slices.ContainsFunc(services, func(s manifest) bool {
			return s.name() == name && text(s.object, "spec", "clusterIP") == "None"
		}) {
			t.Errorf("%v: there is no headless Service %s", p, name)
		}
	})
}

// TestChart_PeersAreTheRelease checks that the peers of a relay are the pods behind the headless Service, at the port on
// which they serve operators, and that the policy admits them. A certificate of cert-manager must have the name of that
// Service, and the rules must list the identity with which relays connect.
func TestChart_PeersAreTheRelease(t *testing.T) {
	found := 0
	relayPods(t, func(t *testing.T, p relayPod) {
		cfg := p.config(t)
		if len(cfg.Peers) == 0 {
			return
		}
		found++
		var host string
		for _, service := range p.of("Service") {
			if text(service.object, "spec", "clusterIP") == "None" {
				host = service.name() + ".ns.svc"
			}
		}
		if want := fmt.Sprintf("dns:///%s:%d", host, p.ports(t)["admin"]); !slices.Equal(cfg.Peers, []string{want}) {
			t.Errorf("%v: the peers are %q, want %s", p, cfg.Peers, want)
		}
		for _, m := range p.of("Certificate") {
			names, uris, usages := list(m.object, "spec", "dnsNames"), list(m.object, "spec", "uris"), list(m.object, "spec", "usages")
			if slices.Contains(usages, any("server auth")) && cfg.PeersTLSServerName == "" && !slices.Contains(names, any(host)) {
				t.Errorf("%v: the certificate %s is for %v, which lack %s", p, m.name(), names, host)
			}
			if _, source := p.volume(string(cfg.PeersTLSCert)); text(source, "secret", "secretName") == text(m.object, "spec", "secretName") &&
				(!slices.Contains(usages, any("client auth")) || len(uris) != 1) {
				t.Errorf("%v: the certificate for peers, %s, is for %v and has the URIs %v", p, m.name(), usages, uris)
			}
		}
		own := object{"podSelector": object{"matchLabels": at(p.workload.object, "spec", "selector", "matchLabels")}}
		for _, policy := range p.of("NetworkPolicy") {
			for _, rule := range list(policy.object, "spec", "ingress") {
				if number(list(rule, "ports")[0], "port") == p.ports(t)["admin"] && !slices.ContainsFunc(list(rule, "from"), func(from any) bool { return reflect.DeepEqual(from, own) }) {
					t.Errorf("%v: the policy admits to the port of operators %v, which lack the relays %v", p, list(rule, "from"), own)
				}
			}
		}
	})
	if found < 2 {
		t.Errorf("%d renderings have peers, want 2: with certificates from Secrets, and from cert-manager", found)
	}
}

// TestChart_PoliciesAllowTraffic checks that a NetworkPolicy allows ingress to the ports of the relay only. A policy for
// egress must allow DNS and the control planes.
func TestChart_PoliciesAllowTraffic(t *testing.T) {
	egress := 0
	relayPods(t, func(t *testing.T, p relayPod) {
		for _, policy := range p.of("NetworkPolicy") {
			if in, want := policyPorts(policy, "ingress"), slices.Sorted(maps.Values(p.ports(t))); !slices.Equal(in, want) {
				t.Errorf("%v: the policy allows ingress to ports %v, the relay listens on %v", p, in, want)
			}
			if !slices.Contains(list(policy.object, "spec", "policyTypes"), any("Egress")) {
				continue
			}
			egress++
			cfg, out := p.config(t), policyPorts(policy, "egress")
			addresses := append([]string{"dns:53"}, cfg.Origin...)
			if p.name == "everything" { // originPorts and extra replace the ports derived from the addresses
				addresses = []string{"dns:53", "origin:8000", "collector:4317"}
			}
			for _, origin := range cfg.Origins {
				addresses = append(addresses, origin.Targets...)
			}
			addresses = append(addresses, cfg.Peers...)
			for _, address := range addresses {
				if port, _ := strconv.Atoi(address[strings.LastIndex(address, ":")+1:]); !slices.Contains(out, port) {
					t.Errorf("%v: the policy allows egress to ports %v, and not to %s", p, out, address)
				}
			}
		}
	})
	if egress == 0 {
		t.Error("no rendering has a policy for egress")
	}
}

// policyPorts returns the ports that a policy allows in a direction, sorted.
func policyPorts(policy manifest, direction string) (ports []int) {
	for _, rule := range list(policy.object, "spec", direction) {
		for _, port := range list(rule, "ports") {
			ports = append(ports, number(port, "port"))
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// TestChart_ProbesAreAnswered checks that the relay serves the paths of probes and of Prometheus, on the
// ports that they use.
func TestChart_ProbesAreAnswered(t *testing.T) {
	need(t)
	codes := probe(t, "/livez", "/readyz", "/metrics", "/healthz")
	if codes["/healthz"] != http.StatusNotFound {
		t.Fatalf("the relay answers %d for a nonexistent path, want 404", codes["/healthz"])
	}
	relayPods(t, func(t *testing.T, p relayPod) {
		if p.ports(t)["probe"] == 0 {
			return
		}
		wanted := map[string]string{"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
		if p.name == "sidecar" { // the readiness of its pod depends on the application only
			delete(wanted, "readinessProbe")
		}
		for name, path := range wanted {
			get := at(p.relay, name, "httpGet")
			if text(get, "path") != path || text(get, "port") != "probe" || codes[path] != http.StatusOK {
				t.Errorf("%v: %s requests %v, want %s on port probe; the relay answers %d", p, name, get, path, codes[path])
			}
		}
		for _, m := range p.of("ServiceMonitor") {
			for _, endpoint := range list(m.object, "spec", "endpoints") {
				if path := text(endpoint, "path"); text(endpoint, "port") != "probe" || codes[path] != http.StatusOK {
					t.Errorf("%v: Prometheus requests %v; the relay answers %d", p, endpoint, codes[path])
				}
			}
		}
	})
}

// probe starts a relay with a directory as origin, requests paths at its probe address, and returns the status codes.
func probe(t *testing.T, paths ...string) (codes map[string]int) {
	t.Helper()
	r := instance.Start(t, instance.Options{Env: []string{"TENDER_ORIGIN=file://" + t.TempDir(), "TENDER_PROBE_LISTEN=127.0.0.1:0"}})
	r.AwaitReady() // it must read its origin first
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	codes = map[string]int{}
	for _, path := range paths {
		resp, err := client.Get("http://" + r.ProbeAddrs()[0].String() + path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		codes[path] = resp.StatusCode
	}
	return codes
}

// TestChart_ScalesByAMetricThatThereIs checks that the autoscaler uses a metric that relays export.
func TestChart_ScalesByAMetricThatThereIs(t *testing.T) {
	found := 0
	for _, m := range renderingOf(t, "everything").of("HorizontalPodAutoscaler") {
		for _, metric := range list(m.object, "spec", "metrics") {
			name := text(metric, "pods", "metric", "name")
			if name == "" {
				continue
			}
			found++
			if !strings.Contains(telemetry.Page(), "\n- `"+name+"` (") {
				t.Errorf("the autoscaler uses the metric %s, which relays do not export", name)
			}
		}
	}
	if found != 1 {
		t.Errorf("the autoscaler uses %d metrics of pods, want 1", found)
	}
}

// TestChart_EveryVariableIsReachable checks that config can set each variable that no other value always
// sets, with values of each YAML type.
func TestChart_EveryVariableIsReachable(t *testing.T) {
	need(t)
	always := []string{"TENDER_ORIGIN", "TENDER_LISTEN", "TENDER_PROBE_LISTEN", "TENDER_SNAPSHOT_DIR", "TENDER_DRAIN"}
	cfg, err := relay.LoadConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	want, config := map[string]string{}, object{}
	for i, v := range cfg.Table() {
		if slices.Contains(always, v.Variable) || strings.HasSuffix(v.Variable, "_HEADERS") {
			continue
		}
		kind := i % 4
		if strings.Contains(v.Variable, "TLS") || v.Variable == "TENDER_AUTHZ" { // these variables depend on each other
			kind = 0
		}
		switch kind {
		case 0:
			config[v.Variable], want[v.Variable] = "some text, \"quoted\"", "some text, \"quoted\""
		case 1:
			config[v.Variable], want[v.Variable] = 10_000_000, "10000000"
		case 2:
			config[v.Variable], want[v.Variable] = i%8 == 2, map[bool]string{true: "on", false: "off"}[i%8 == 2]
		default:
			config[v.Variable], want[v.Variable] = 1.3, "1.3"
		}
	}
	printed, err := template(t, "--values", valuesWith(t, config), "--set", "origin.addresses={a.example:1}")
	if err != nil {
		t.Fatal(err)
	}
	r := decode(t, "config", printed)
	got := r.environ(t, list(r.of("StatefulSet")[0].object, "spec", "template", "spec", "containers")[0].(object))
	for _, name := range always {
		if got[name] == "" {
			t.Errorf("%s is not set", name)
		}
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q, want %q", name, got[name], value)
		}
	}
}

// valuesWith writes a file of values with a config, and returns its path.
func valuesWith(t *testing.T, config object) string {
	t.Helper()
	printed, err := yaml.Marshal(object{"config": config})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "values.yaml")
	write(t, name, string(printed))
	return name
}
