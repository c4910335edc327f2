package transport_test

import (
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/bench/transport"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// envoyADS is a handler that sends an Envoy all resources of each type that it subscribes to, and records NACKs.
type envoyADS struct {
	*ads
	resources map[string][]*discoverypb.Resource // by type
	nacks     chan string
}

func newEnvoyADS(a *ads) *envoyADS {
	return &envoyADS{ads: a, resources: map[string][]*discoverypb.Resource{}, nacks: make(chan string, 100)}
}

// add adds a resource to the served ones. It must not be called while the server runs.
func (a *envoyADS) add(t *testing.T, name string, m proto.Message) {
	t.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	a.resources[packed.GetTypeUrl()] = append(a.resources[packed.GetTypeUrl()], &discoverypb.Resource{Name: name, Version: "1", Resource: packed})
}

// Message implements transport.Handler.
func (a *envoyADS) Message(s *transport.Stream, b []byte) error {
	var m discoverypb.DeltaDiscoveryRequest
	if err := proto.Unmarshal(b, &m); err != nil {
		return err
	}
	if e := m.GetErrorDetail(); e != nil {
		a.nacks <- e.GetMessage()
	}
	if m.GetResponseNonce() != "" {
		return nil
	}
	response, err := proto.Marshal(&discoverypb.DeltaDiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "1", Resources: a.resources[m.GetTypeUrl()]})
	if err != nil {
		return err
	}
	s.Queue(response)
	return nil
}

// TestEnvoy checks that a real Envoy applies resources and removals, and sends no NACK.
func TestEnvoy(t *testing.T) {
	a := newEnvoyADS(newADS(t))
	want := []string{}
	for i := range 300 {
		name := fmt.Sprintf("cluster-%03d", i)
		a.add(t, name, relaytest.Cluster(name))
		a.add(t, name, relaytest.Endpoints(name, "127.0.0.1:9"))
		want = append(want, name)
	}
	a.add(t, "web", relaytest.Listener("web", "web"))
	a.add(t, "web", relaytest.Route("web", []string{"*"}, want[0]))
	_, address := listen(t, a, transport.DefaultLimits(), nil)
	e := envoytest.Start(t, envoytest.Options{Server: address, Node: relaytest.EnvoyNode("edge")})
	e.AwaitReady()
	e.Listener("web")
	if got := e.Config().Names("dynamic_active_clusters"); !slices.Equal(got, want) {
		t.Errorf("Envoy has %d clusters, want %d", len(got), len(want))
	}
	response, err := proto.Marshal(&discoverypb.DeltaDiscoveryResponse{
		TypeUrl: relaytest.ClusterType, Nonce: "2", RemovedResources: want[1:],
	})
	if err != nil {
		t.Fatal(err)
	}
	a.send(response)
	e.Await("clusters removed", func() error {
		if got := e.Config().Names("dynamic_active_clusters"); !slices.Equal(got, want[:1]) {
			return fmt.Errorf("Envoy has %d clusters, want 1", len(got))
		}
		return nil
	})
	select {
	case nack := <-a.nacks:
		t.Errorf("NACK: %s", nack)
	default:
	}
}

// core is a Python client, which uses the C core of gRPC. It opens a stream, sends requests of 900 kB, and receives
// responses of which one has 5 MiB.
const core = `
import sys, grpc, queue
requests = queue.Queue()
channel = grpc.insecure_channel(sys.argv[1], options=[("grpc.max_receive_message_length", -1)])
call = channel.stream_stream(sys.argv[2])(iter(requests.get, None))
requests.put(b"\x12\x01t")
for n in range(3):
    response = next(call)
    print(len(response), flush=True)
    requests.put(b"\x12\x01t\x32\x01" + str(n).encode() + b"\x1a\x01x" * 300000)
requests.put(None)
print(list(call), call.code(), flush=True)
`

func TestCCore(t *testing.T) {
	const interpreter = "/usr/bin/python3"
	if out, err := exec.CommandContext(t.Context(), interpreter, "-I", "-c", "import grpc").CombinedOutput(); err != nil {
		t.Fatalf("%s cannot import grpc: run make deps: %v\n%s", interpreter, err, out)
	}
	a, _, address := serve(t, transport.DefaultLimits(), nil)
	cmd := exec.CommandContext(t.Context(), interpreter, "-I", "-c", core, address, path)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	wantOutput := fmt.Sprintln(len(a.response))
	for i, size := range []int{5 << 20, 1000} {
		if got := <-a.acks; got != fmt.Sprint(i) {
			t.Errorf("ACK of %q, want %d", got, i)
		}
		r := response(t, "n", size)
		wantOutput += fmt.Sprintln(len(r))
		a.send(r)
	}
	wantOutput += "[] StatusCode.OK\n"
	got, _ := io.ReadAll(out) // Wait returns the error
	if err := cmd.Wait(); err != nil || string(got) != wantOutput {
		t.Errorf("output %q, %v, want %q\n%s", got, err, wantOutput, stderr.String())
	}
}
