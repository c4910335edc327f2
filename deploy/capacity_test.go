package deploy_test

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// clientsOfARelay is the number of clients that one relay was measured with.
const clientsOfARelay = 5000

// A plan is the number of relays for a number of clients, and the cost of one of them by the model. Clients have 1,000
// clusters of 1 KiB by the wildcard, of which one changes per second.
type plan struct {
	Clients, Needed, Pods float64
	Each, Busy            float64 // clients of a pod, and those while another pod is down
	Usual, Failed         load    // their cost
}

// plan returns the plan by the rules of docs/capacity.md: one relay for each 5,000 clients, and a spare one.
func (r *results) plan(clients float64) (p plan, err error) {
	p = plan{Clients: clients, Needed: math.Ceil(clients / clientsOfARelay)}
	p.Pods = p.Needed + 1
	p.Each, p.Busy = math.Ceil(clients/p.Pods), math.Ceil(clients/p.Needed)
	if p.Usual, err = r.cost(p.Each, 1000, 1024, 0, 1); err != nil {
		return p, err
	}
	p.Failed, err = r.cost(p.Busy, 1000, 1024, 0, 1)
	return p, err
}

// Limit returns the limit of memory in MiB, by the rule of docs/capacity.md.
func (p plan) Limit() float64 { return 1.5*p.Failed.MiB + 128 }

// A podSize has the resources of a container, as in a manifest.
type podSize struct {
	Requests struct{ CPU, Memory string }
	Limits   struct{ CPU, Memory string }
}

// podSizes are the sizes of the manifests and of the chart, and how many relays they start.
type podSizes struct {
	Base, Chart, Node, Sidecar podSize
	Replicas, ChartReplicas    float64
}

// A container is the part of a container that has its size.
type container struct {
	Name      string
	Resources podSize
}

// relay returns the size of the relay, which may be a sidecar.
func (w *workload) relay() (size podSize) {
	pod := w.Spec.Template.Spec
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if c.Name == "tender" {
			size = c.Resources
		}
	}
	return size
}

// A workload is the part of a manifest that has its sizes.
type workload struct {
	Spec struct {
		Replicas float64
		Template struct {
			Spec struct{ Containers, InitContainers []container }
		}
	}
}

// readSizes reads the sizes of the manifests and of the chart.
func readSizes(t *testing.T) (s podSizes) {
	t.Helper()
	var base, sidecar workload
	readYAML(t, "kubernetes/base/statefulset.yaml", &base)
	readYAML(t, "kubernetes/sidecar/deployment.yaml", &sidecar)
	var chart struct {
		Replicas  float64
		Resources podSize
	}
	readYAML(t, "helm/tender/values.yaml", &chart)
	s.Base, s.Replicas = base.relay(), base.Spec.Replicas
	s.Chart, s.ChartReplicas = chart.Resources, chart.Replicas
	s.Sidecar = sidecar.relay()
	_, patch, _ := strings.Cut(readText(t, "kubernetes/node/daemonset.yaml"), "containers/0/resources\n")
	decodeYAML(t, strings.TrimPrefix(strings.TrimSpace(patch), "value:"), &s.Node)
	return s
}

// quantity returns a number of cores, or of MiB, in the notation of Kubernetes.
func quantity(t *testing.T, text string) float64 {
	t.Helper()
	for unit, factor := range map[string]float64{"m": 0.001, "Mi": 1, "Gi": 1024, "": 1} {
		number := strings.TrimSuffix(text, unit)
		if n, err := strconv.ParseFloat(number, 64); err == nil && number+unit == text {
			return n * factor
		}
	}
	t.Fatalf("%q is not a quantity", text)
	return 0
}

// TestSizesFitTheExample holds the manifests and the chart to the example of docs/capacity.md: with the number of relays
// that they start, the requests are what a pod uses, and the limit of memory is that of the page. No pod has a limit of
// CPU.
func TestSizesFitTheExample(t *testing.T) {
	r, s := publishedResults(t), readSizes(t)
	p, err := r.plan(10_000)
	if err != nil {
		t.Fatal(err)
	}
	if s.Replicas != p.Pods || s.ChartReplicas != p.Pods || s.Chart != s.Base {
		t.Errorf("the manifest starts %v relays with %+v, and the chart %v with %+v; the example needs %v",
			s.Replicas, s.Base, s.ChartReplicas, s.Chart, p.Pods)
	}
	node, err := r.cost(110, 1000, 1024, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := r.cost(1, 1000, 1024, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name                  string
		size                  podSize
		cores, request, limit float64
	}{
		{"base", s.Base, p.Failed.Cores, p.Usual.MiB, p.Limit()},
		{"node", s.Node, node.Cores, node.MiB, 1.5*node.MiB + 128},
		{"sidecar", s.Sidecar, alone.Cores, alone.MiB, 1.5 * alone.MiB}, // one client is no herd
	} {
		if c.size.Limits.CPU != "" {
			t.Errorf("%s has a limit of CPU, %s", c.name, c.size.Limits.CPU)
		}
		cores, request, limit := quantity(t, c.size.Requests.CPU), quantity(t, c.size.Requests.Memory), quantity(t, c.size.Limits.Memory)
		if cores < c.cores || request < math.Floor(c.request) || limit < c.limit {
			t.Errorf("%s has %+v; want %.2f cores, %.0f MiB and a limit of %.0f MiB", c.name, c.size, c.cores, c.request, c.limit)
		}
	}
}
