package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/cmd/tender/get"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// variants maps each variant of the protocol to its flags of tender get.
var variants = map[string][]string{"delta": nil, "sotw": {"--sotw"}}

func TestGetPrintsWhatAControlPlaneSays(t *testing.T) {
	tests := []struct {
		args string
		want string // %v stands for any version
	}{
		{"cds", "# cart, version %v\n- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: cart\n" +
			"# web, version %v\n- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: web\n  alt_stat_name: 'w: eb'\n"},
		{"cds -o name", "cart\nweb\n"},
		{"cds -o name web", "web\n"},
		{"eds -o name", "cart\nweb\n"},
		{"eds -o name web", "web\n"},
		{"eds -o name web cart web", "cart\nweb\n"},
		{"rds -o name", "front\n"},
		{"type.googleapis.com/envoy.config.cluster.v3.Cluster -o name", "cart\nweb\n"},
		{"envoy.config.cluster.v3.Cluster -o name", "cart\nweb\n"},
		{"CDS web -o json", "[\n  {\n    \"@type\": \"type.googleapis.com/envoy.config.cluster.v3.Cluster\",\n    \"name\": \"web\",\n    \"alt_stat_name\": \"w: eb\"\n  }\n]\n"},
		{"cds web -o wide", "NAME  VERSION  BYTES  TYPE\nweb  %v  13  cds\n"},
	}
	for variant, flags := range variants {
		for _, tt := range tests {
			t.Run(variant+" "+tt.args, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					args := append([]string{"get", "-a", shop(t).address}, flags...)
					code, stdout, stderr := execute(append(args, strings.Fields(tt.args)...)...)
					if code != exitOK || stderr != "" || !matches(tt.want, stdout) {
						t.Errorf("code %d, stderr %q, got\n%s\nwant\n%s", code, stderr, stdout, tt.want)
					}
				})
			})
		}
	}
}

// matches reports whether text equals a pattern in which %v stands for any word. If the pattern is a table, which
// begins with NAME, any number of spaces in text equals two.
func matches(pattern, text string) bool {
	if strings.HasPrefix(pattern, "NAME") {
		var lines []string
		for line := range strings.Lines(text) {
			lines = append(lines, strings.Join(strings.Fields(line), "  ")+"\n")
		}
		text = strings.Join(lines, "")
	}
	for part := range strings.SplitSeq(pattern, "%v") {
		i := strings.Index(text, part)
		if i < 0 || strings.ContainsAny(text[:i], " \n") {
			return false
		}
		text = text[i+len(part):]
	}
	return text == ""
}

// TestGetKeepsTheOrderOfFields verifies that YAML has the fields in the order of the protobuf message, and quotes
// values that YAML would misread.
func TestGetKeepsTheOrderOfFields(t *testing.T) {
	t.Parallel()
	address := &corepb.Address{Address: &corepb.Address_SocketAddress{SocketAddress: &corepb.SocketAddress{
		Address: "192.0.2.1", PortSpecifier: &corepb.SocketAddress_PortValue{PortValue: 8080},
	}}}
	web := endpoints("web")
	web.Endpoints = []*endpointpb.LocalityLbEndpoints{{
		Locality: &corepb.Locality{Region: "yes", Zone: strings.Repeat("long ", 30)},
		LbEndpoints: []*endpointpb.LbEndpoint{{HostIdentifier: &endpointpb.LbEndpoint_Endpoint{Endpoint: &endpointpb.Endpoint{
			Address: address, Hostname: "a: b",
		}}}},
	}}
	cp := startControlPlane(t)
	cp.set(t, "1", map[resource.Type][]types.Resource{resource.EndpointType: {web}})
	want := `# web, version %v
- '@type': type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
  cluster_name: web
  endpoints:
  - locality:
      region: "yes"
      zone: '` + strings.Repeat("long ", 30) + `'
    lb_endpoints:
    - endpoint:
        address:
          socket_address:
            address: 192.0.2.1
            port_value: 8080
        hostname: 'a: b'
`
	if code, stdout, stderr := execute("get", "-a", cp.address, "eds", "web"); code != exitOK || !matches(want, stdout) {
		t.Errorf("code %d, stderr %q, got\n%s\nwant\n%s", code, stderr, stdout, want)
	}
}

func TestGetYAMLIsAFileForAFileOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cp := shop(t)
		for _, output := range []string{"yaml", "json"} {
			_, stdout, _ := execute("get", "-a", cp.address, "cds", "-o", output)
			doc, err := schema.ParseFile("mesh."+output, []byte(stdout))
			if err != nil || len(doc.Resources) != 2 {
				t.Errorf("ParseFile of the output of -o %s: %+v, error %v, want both clusters", output, doc, err)
			}
		}
	})
}

func TestGetNamesWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cp := shop(t)
		for variant, flags := range variants {
			args := append([]string{"get", "-a", cp.address, "--timeout=300ms", "-o", "name", "eds", "web", "nope"}, flags...)
			code, stdout, stderr := execute(args...)
			// go-control-plane does not report a name that does not exist. In SotW, it sends no response until all names exist.
			if code != exitFailure || !strings.Contains(stderr, `"nope"`) || !strings.Contains(stderr, "no answer within 300ms") {
				t.Errorf("%s: code %d, stdout %q, stderr %q, want 1 and nope in the error", variant, code, stdout, stderr)
			}
			if variant == "delta" && stdout != "web\n" {
				t.Errorf("%s: stdout %q, want the existing resource", variant, stdout)
			}
		}
		code, stdout, stderr := execute("get", "-a", cp.address, "--sotw", "--timeout=300ms", "cds", "nope")
		if code != exitFailure || !strings.Contains(stderr, `"nope"`) || strings.Contains(stdout, "web") {
			t.Errorf("SotW cds nope: code %d, stdout %q, stderr %q, want 1 and nope in the error", code, stdout, stderr)
		}
	})
}

// TestGetFromDelta verifies the output for Delta responses: several responses, removals, errors, and no resources.
func TestGetFromDelta(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := func(name string) *discoverypb.DeltaDiscoveryResponse {
			return &discoverypb.DeltaDiscoveryResponse{Nonce: name, Resources: []*discoverypb.Resource{{Name: name, Version: "1", Resource: pack(t, cluster(name, ""))}}}
		}
		all := []*discoverypb.DeltaDiscoveryResponse{
			one("a"), one("b"), one("c"), {TypeUrl: "other", RemovedResources: []string{"a"}}, {RemovedResources: []string{"b"}},
		}
		some := []*discoverypb.DeltaDiscoveryResponse{{
			Nonce:            "1",
			Resources:        []*discoverypb.Resource{{Name: "a", Version: "7", Resource: pack(t, endpoints("a"))}, {Name: "unset"}},
			RemovedResources: []string{"gone"},
			ResourceErrors: []*discoverypb.ResourceError{{
				ResourceName: &discoverypb.ResourceName{Name: "secret"},
				ErrorDetail:  &status.Status{Code: 7, Message: "not yours"},
			}},
		}}
		none := []*discoverypb.DeltaDiscoveryResponse{{Nonce: "1"}}
		for _, tt := range []struct {
			responses      []*discoverypb.DeltaDiscoveryResponse
			args           string
			code           int
			stdout, stderr string
		}{
			{all, "-o name cds", exitOK, "a\nc\n", ""},
			{some, "-o name eds a gone unset secret", exitFailure, "a\n", "tender: \"secret\": PermissionDenied: not yours\ntender: not found: \"gone\", \"unset\"\n"},
			{none, "-o yaml cds", exitOK, "[]\n", ""},
			{none, "-o json cds", exitOK, "[]\n", ""},
			{none, "-o name cds", exitOK, "", ""},
			{none, "-o wide cds", exitOK, "NAME  VERSION  BYTES  TYPE\n", ""},
		} {
			address := serveXDS(t, deltaSays(tt.responses...))
			code, stdout, stderr := execute(append([]string{"get", "-a", address}, strings.Fields(tt.args)...)...)
			if code != tt.code || stdout != tt.stdout || stderr != tt.stderr {
				t.Errorf("tender get %s: code %d, stdout %q, stderr %q, want %d, %q, %q", tt.args, code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
			}
		}
	})
}

// TestGetAcknowledges verifies the first request and the ACK in both variants.
func TestGetAcknowledges(t *testing.T) {
	t.Parallel()
	requests := make(chan proto.Message, 4)
	cds, _ := schema.TypeURLFor("cds")
	address := serveXDS(t, script{
		delta: func(stream discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
			for range 2 {
				req, err := stream.Recv()
				if err != nil {
					return err
				}
				requests <- req
				if req.GetResponseNonce() == "" {
					_ = stream.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: cds, Nonce: "n", SystemVersionInfo: "v"})
				}
			}
			return nil
		},
		sotw: func(stream discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
			for range 2 {
				req, err := stream.Recv()
				if err != nil {
					return err
				}
				requests <- req
				if req.GetResponseNonce() == "" {
					_ = stream.Send(&discoverypb.DiscoveryResponse{TypeUrl: cds, Nonce: "n", VersionInfo: "v"})
				}
			}
			return nil
		},
	})
	node := []string{"--node-id=me", "--cluster=us", "--user-agent=envoy"}

	// The server ends the stream after the ACK, which ends the watch.
	execute(append([]string{"get", "-w", "-a", address, "cds"}, node...)...)
	first, ack := (<-requests).(*discoverypb.DeltaDiscoveryRequest), (<-requests).(*discoverypb.DeltaDiscoveryRequest)
	if n := first.GetNode(); n.GetId() != "me" || n.GetCluster() != "us" || n.GetUserAgentName() != "envoy" || first.GetTypeUrl() != cds || len(first.GetResourceNamesSubscribe()) != 0 {
		t.Errorf("first Delta request: %v, want the Node of the flags and a wildcard subscription to cds", first)
	}
	if want := (&discoverypb.DeltaDiscoveryRequest{TypeUrl: cds, ResponseNonce: "n"}); !proto.Equal(ack, want) {
		t.Errorf("Delta ACK: %v, want %v", ack, want)
	}

	execute(append([]string{"get", "-w", "-a", address, "--sotw", "cds", "a"}, node...)...)
	firstS, ackS := (<-requests).(*discoverypb.DiscoveryRequest), (<-requests).(*discoverypb.DiscoveryRequest)
	if n := firstS.GetNode(); n.GetId() != "me" || n.GetCluster() != "us" || n.GetUserAgentName() != "envoy" || firstS.GetTypeUrl() != cds || firstS.GetResourceNames()[0] != "a" {
		t.Errorf("first SotW request: %v, want the Node of the flags and a subscription to a", firstS)
	}
	if want := (&discoverypb.DiscoveryRequest{TypeUrl: cds, ResponseNonce: "n", VersionInfo: "v", ResourceNames: []string{"a"}}); !proto.Equal(ackS, want) {
		t.Errorf("SotW ACK: %v, want %v", ackS, want)
	}
}

// TestGetAsksForEverythingInBothWays verifies the fallback of a SotW client for servers that ignore the legacy
// wildcard, an empty list of names. It subscribes to "*" on the same stream.
func TestGetAsksForEverythingInBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eds, _ := schema.TypeURLFor("eds")
		address := serveXDS(t, script{sotw: func(stream discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
			for {
				req, err := stream.Recv()
				if err != nil {
					return err
				}
				if len(req.GetResourceNames()) == 0 || req.GetResponseNonce() != "" {
					continue
				}
				if err := stream.Send(&discoverypb.DiscoveryResponse{TypeUrl: eds, Nonce: "1", Resources: []*anypb.Any{pack(t, endpoints(req.GetResourceNames()[0]))}}); err != nil {
					return err
				}
			}
		}})
		code, stdout, stderr := execute("get", "-a", address, "--sotw", "-o", "name", "eds")
		if code != exitOK || stdout != "*\n" || stderr != "" {
			t.Errorf("code %d, stdout %q, stderr %q, want the response to *", code, stdout, stderr)
		}
	})
}

// TestB36_GetShowsUnknownTypesByDigest verifies that only the size and the digest of a resource of an unknown type are
// printed, because it may contain a secret.
func TestB36_GetShowsUnknownTypesByDigest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		foo := &anypb.Any{TypeUrl: "type.googleapis.com/acme.Foo", Value: []byte{1, 2, 3}}
		wrapped := pack(t, &discoverypb.Resource{Name: "x", Version: "7", Resource: foo})
		address := serveXDS(t, script{
			delta: deltaSays(&discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{{Name: "x", Version: "7", Resource: foo}}}).delta,
			sotw: func(stream discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
				req, err := stream.Recv()
				if err != nil {
					return err
				}
				if err := stream.Send(&discoverypb.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), VersionInfo: "9", Resources: []*anypb.Any{wrapped, foo}}); err != nil {
					return err
				}
				<-stream.Context().Done()
				return nil
			},
		})
		content := "- '@type': type.googleapis.com/acme.Foo\n  value: 3 bytes, sha256 039058c6f2c0cb492c533b0a4d14ef77cc0f78abccced5287d84a1a2011cfb81\n"
		for variant, want := range map[string]string{
			"delta": "# x, version 7\n" + content,
			"sotw":  "# #1, version 9\n" + content + "# x, version 7\n" + content,
		} {
			code, stdout, stderr := execute(append([]string{"get", "-a", address, "acme.Foo"}, variants[variant]...)...)
			if code != exitOK || stdout != want || stderr != "" {
				t.Errorf("%s: code %d, stderr %q, got\n%swant\n%s", variant, code, stderr, stdout, want)
			}
		}
	})
}

// TestGetPrintsNothingThatSteersATerminal verifies that escape sequences in any text from a server are not printed.
func TestGetPrintsNothingThatSteersATerminal(t *testing.T) {
	t.Parallel()
	const evil = "a\x1b[31m\u0085\u202e\n\r\U000e0041z"
	broken := &anypb.Any{TypeUrl: "type.googleapis.com/\x1b[31m", Value: []byte("\x1b")}
	a := &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{
		{Name: evil, Version: evil, Aliases: []string{evil}, Resource: pack(t, cluster(evil, evil))},
		{Name: "b", Resource: broken},
		{Name: "c", Resource: &anypb.Any{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster", Value: []byte("\x1b")}},
	}, ResourceErrors: []*discoverypb.ResourceError{{ResourceName: &discoverypb.ResourceName{Name: "z"}, ErrorDetail: &status.Status{Message: evil}}}}
	address := serveXDS(t, deltaSays(a))
	unprintable := func(s string) bool {
		return strings.ContainsAny(s, "\x1b\u0085\u202e\r\U000e0041")
	}
	for _, output := range get.Outputs {
		code, stdout, stderr := execute("get", "-a", address, "-o", output, "cds", evil, "b", "c", "z")
		if code != exitFailure || unprintable(stdout) || unprintable(stderr) || !strings.Contains(stdout, `\u001b[31m`) {
			t.Errorf("-o %s: code %d, want 1 and escaped control characters:\n%q\n%q", output, code, stdout, stderr)
		}
		lines := watch(t, "-a", address, "-o", output, "cds", evil, "b", "c", "z")
		for line := range lines {
			if unprintable(line) {
				t.Errorf("-w -o %s prints control characters: %q", output, line)
			}
			if strings.Contains(line, `OK: a\u001b`) || output == "name" && line == "missing z" || output == "wide" && strings.HasPrefix(line, "missing") {
				break
			}
		}
	}
}

func TestGetRedactsSecrets(t *testing.T) {
	t.Parallel()
	secret := &tlspb.Secret{Name: "s", Type: &tlspb.Secret_TlsCertificate{TlsCertificate: &tlspb.TlsCertificate{
		PrivateKey: &corepb.DataSource{Specifier: &corepb.DataSource_InlineString{InlineString: "hush"}},
	}}}
	cp := startControlPlane(t)
	cp.set(t, "1", map[resource.Type][]types.Resource{resource.SecretType: {secret}})
	for _, output := range get.Outputs {
		code, stdout, stderr := execute("get", "-a", cp.address, "-o", output, "sds", "s")
		if code != exitOK || strings.Contains(stdout, "hush") || stderr != "" {
			t.Errorf("-o %s: code %d, stderr %q, want 0 and no private key in\n%s", output, code, stderr, stdout)
		}
		if (output == "yaml" || output == "json") && !strings.Contains(stdout, "[redacted]") {
			t.Errorf("-o %s does not print [redacted]:\n%s", output, stdout)
		}
	}
}

func TestGetOverAUnixSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	serveGRPC(t, l, deltaSays(&discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{{Name: "a", Resource: pack(t, cluster("a", ""))}}}))
	for _, address := range []string{"unix:" + path, "unix://" + path} {
		code, stdout, stderr := execute("get", "-a", address, "-o", "name", "cds", "a")
		if code != exitOK || stdout != "a\n" || stderr != "" {
			t.Errorf("-a %s: code %d, stdout %q, stderr %q, want 0, a", address, code, stdout, stderr)
		}
	}
}

func TestGetOverTLS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, dir := certs.NewCA(t), t.TempDir()
		cp := startControlPlane(t, mutualTLS(t, ca))
		cp.set(t, "v1", map[resource.Type][]types.Resource{resource.ClusterType: {cluster("web", "")}})

		certFile, keyFile := ca.Sign(certs.Leaf{Names: []string{"client"}}).Write(t, dir)
		trust, name := "--tls-ca="+certs.WriteFile(t, dir, "ca.pem", ca.PEM), "--server-name=xds.example.com"
		cert, key := "--cert="+certFile, "--key="+keyFile
		for variant, flags := range variants {
			args := append([]string{"get", "-a", cp.address, "-o", "name", "cds", trust, name, cert, key}, flags...)
			if code, stdout, stderr := execute(args...); code != exitOK || stdout != "web\n" || stderr != "" {
				t.Errorf("%s: code %d, stdout %q, stderr %q, want web", variant, code, stdout, stderr)
			}
		}
		// The TLS alert of a server that rejects a client may get lost when the server closes the connection.
		if code, stdout, _ := execute("get", "-a", cp.address, "cds", trust, name); code != exitFailure || stdout != "" {
			t.Errorf("tender get without a certificate: code %d, stdout %q, want 1", code, stdout)
		}
		for why, args := range map[string][]string{
			"unknown authority":       {name, cert, key},
			"cannot validate":         {trust, cert, key},
			"not other.example.com":   {trust, cert, key, "--server-name=other.example.com"},
			"no certificate in":       {"--tls-ca=" + keyFile},
			"failed to find any PEM ": {cert, "--key=" + os.DevNull},
		} {
			code, stdout, stderr := execute(append([]string{"get", "-a", cp.address, "cds"}, args...)...)
			if code != exitFailure || stdout != "" || !strings.Contains(stderr, why) {
				t.Errorf("%q: code %d, stdout %q, stderr %q, want %q", args, code, stdout, stderr, why)
			}
		}
	})
}
