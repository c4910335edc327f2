package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cmd/tender/get"
	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/logs"
)

// secretKey is the private key that no output may contain. canary and canaryNumber are searched for, so that a part of
// the key is found too.
const (
	canaryNumber = "849275610"
	canary       = "Canary7Q2xPrivateKey"
	secretKey    = "-----BEGIN PRIVATE KEY-----\n" + canary + "+/AA==\n-----END PRIVATE KEY-----\n"
)

// forms returns the encodings of the canary: plain, hex, and base64 for each of the three alignments of a text to
// groups of 3 bytes.
func forms() []string {
	forms := []string{canary, canaryNumber, hex.EncodeToString([]byte(canary))}
	for skip := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString(append(bytes.Repeat([]byte{'x'}, skip), canary...))
		forms = append(forms, encoded[4:len(encoded)-4])
	}
	return forms
}

// A canaryTest runs a relay that distributes a private key to clients. It searches for the key in all other output of
// the relay.
type canaryTest struct {
	*testing.T
	origin *relaytest.Origin
	relay  *remote
	log    logs.Log
	spans  *tracetest.InMemoryExporter
	dir    string // snapshot directory, or directory of a file origin
}

// shows verifies that text is not empty, and does not contain the canary in any form. where describes text in errors.
func (c *canaryTest) shows(where, text string) {
	c.Helper()
	if text == "" {
		c.Errorf("%s is empty, want output to search for the private key", where)
	}
	for _, form := range forms() {
		if at := strings.Index(text, form); at >= 0 {
			c.Errorf("%s contains the private key, as %q: …%s…", where, form, text[max(at-300, 0):at])
		}
	}
}

// tender verifies that the output of a command does not contain the canary.
func (c *canaryTest) tender(args ...string) {
	c.Helper()
	_, stdout, stderr := execute(args...)
	c.shows("tender "+strings.Join(args, " "), stdout+stderr)
}

// admin verifies that a response of the admin API does not contain the canary, and returns its body.
func (c *canaryTest) admin(path string) (answer string) {
	c.Helper()
	resp, err := c.http(c.relay.DialAdmin).Get("http://localhost" + path)
	if err != nil {
		c.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		c.Fatalf("GET %s: %s, %v", path, resp.Status, err)
	}
	c.shows("GET "+path, fmt.Sprint(resp.Header)+string(body))
	return string(body)
}

// http returns an HTTP client whose connections dial opens.
func (c *canaryTest) http(dial func(context.Context) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}}
}

// files verifies that no file below dir contains the canary.
func (c *canaryTest) files(dir string) {
	c.Helper()
	var all []byte
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		all = append(all, content...)
		return err
	})
	if err != nil {
		c.Fatal(err)
	}
	c.shows("a snapshot", string(all))
}

// certificateWithKey returns a certificate with the private key, and with the same text as password.
func certificateWithKey() *tlspb.TlsCertificate {
	return &tlspb.TlsCertificate{
		CertificateChain: &corepb.DataSource{Specifier: &corepb.DataSource_InlineString{InlineString: "chain"}},
		PrivateKey:       &corepb.DataSource{Specifier: &corepb.DataSource_InlineBytes{InlineBytes: []byte(secretKey)}},
		Password:         &corepb.DataSource{Specifier: &corepb.DataSource_InlineString{InlineString: secretKey}},
	}
}

// keyed returns a resource named key with the private key for each of four types: in a Secret, inline in the Any of a
// transport socket, and in an Any of an unknown type.
func keyed(t testing.TB) map[string]proto.Message {
	common := &tlspb.CommonTlsContext{TlsCertificates: []*tlspb.TlsCertificate{certificateWithKey()}}
	socket := func(m proto.Message) *corepb.TransportSocket {
		packed, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return &corepb.TransportSocket{Name: "tls", ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: packed}}
	}
	return map[string]proto.Message{
		relaytest.SecretType:  &tlspb.Secret{Name: "key", Type: &tlspb.Secret_TlsCertificate{TlsCertificate: certificateWithKey()}},
		relaytest.ClusterType: &clusterpb.Cluster{Name: "key", TransportSocket: socket(&tlspb.UpstreamTlsContext{CommonTlsContext: common})},
		relaytest.ListenerType: &listenerpb.Listener{Name: "key", FilterChains: []*listenerpb.FilterChain{
			{TransportSocket: socket(&tlspb.DownstreamTlsContext{CommonTlsContext: common})},
		}},
		relaytest.ExtensionConfigType: &corepb.TypedExtensionConfig{Name: "key", TypedConfig: &anypb.Any{
			TypeUrl: "type.googleapis.com/acme.Unknown", Value: []byte(secretKey), // cannot be decoded
		}},
	}
}

// TestB36_CanaryNeverLeaks sends a private key through all functions of the relay, and searches for it in all output.
// Add a line here for each new output.
func TestB36_CanaryNeverLeaks(t *testing.T) { synctest.Test(t, testCanary) }

func testCanary(t *testing.T) {
	c := &canaryTest{T: t, origin: relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true}), dir: t.TempDir()}
	for _, m := range keyed(t) {
		c.origin.Put(m)
	}
	end := c.run([]*relaytest.Origin{c.origin}, "TENDER_SNAPSHOT_DIR="+c.dir)
	c.follow()
	c.poll()
	c.refuse()
	c.change()

	for _, output := range get.Outputs {
		for _, short := range []string{"sds", "cds", "lds", "ecds"} {
			for _, variant := range []string{"--sotw", "--sotw=false"} {
				c.tender("get", "-a", c.relay.target, variant, "-o", output, short, "key")
			}
		}
	}
	c.tender("status")
	c.tender("status", "-o", "json")
	c.tender("audit")
	c.tender("audit", "-o", "json")
	for _, typ := range []string{"sds", "cds", "lds", "ecds"} {
		c.tender("history", typ, "key")
		c.tender("history", typ, "key", "-o", "json")
		c.admin("/resource?name=key&type=" + typ)
	}
	c.dump()
	c.tender("freeze")
	c.tender("thaw")
	c.tender("check", "--node", c.bootstrap())
	for _, path := range []string{
		"/", "/readyz", "/metrics", "/api/v1/status", "/api/v1/pending", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1", "/debug/pprof/cmdline",
	} {
		c.admin(path)
	}
	for _, path := range []string{"/clients", "/clients/1", "/resources?type=sds", "/resource?type=sds&name=key", "/resource?type=ecds&name=key"} {
		c.admin(path)
		c.admin(strings.Replace("/api/v1"+path, "/resource?", "/resources?", 1))
	}
	for _, path := range []string{"/resource?type=cds&name=key", "/resource?type=lds&name=key", "/api/v1/resources?type=cds&name=key", "/api/v1/resources?type=lds&name=key&format=yaml"} {
		if answer := c.admin(path); !strings.Contains(answer, "[redacted]") {
			c.Errorf("GET %s: body without [redacted]:\n%s", path, answer)
		}
	}
	c.csds()
	end()
	c.files(c.dir)
	c.traces("origin.receive", "deliver")
	c.shows("the log", c.log.String())
	if log := c.log.String(); !strings.Contains(log, "client rejected a response") || !strings.Contains(log, "origin response refused") || !strings.Contains(log, "secret sent") {
		t.Errorf("the log lacks a NACK of a client, a NACK of the relay, or a sent Secret:\n%s", log)
	}
}

// run starts a relay with all outputs and debug logging. end stops it.
func (c *canaryTest) run(origins []*relaytest.Origin, env ...string) (end func()) {
	c.Helper()
	c.spans = tracetest.NewInMemoryExporter()
	c.relay = startRemote(c.T, instance.Options{
		Origins: origins,
		Env: append(env, "TENDER_REST_LISTEN=127.0.0.1:0", "TENDER_LOG_LEVEL=debug", "TENDER_DEBUG=on",
			"TENDER_SECRETS=loopback", "TENDER_DRAIN=1s", "TENDER_TRACE_DELIVERIES=1"),
		Options: relay.Options{Spans: keeping{c.spans}, Logger: slog.New(slog.NewTextHandler(&c.log, &slog.HandlerOptions{Level: slog.LevelDebug}))},
	})
	return c.relay.Stop
}

// keeping is an exporter whose Shutdown keeps the spans, so that they can be read after the relay has stopped.
type keeping struct{ *tracetest.InMemoryExporter }

func (keeping) Shutdown(context.Context) error { return nil }

// traces verifies that no span contains the canary, and that spans with these names were exported.
func (c *canaryTest) traces(names ...string) {
	c.Helper()
	var all strings.Builder
	seen := map[string]bool{}
	for _, s := range c.spans.GetSpans() {
		seen[s.Name] = true
		fmt.Fprintf(&all, "%s %+v %+v %+v %s\n", s.Name, s.Attributes, s.Events, s.Links, s.Status.Description)
	}
	c.shows("a trace", all.String())
	for _, name := range names {
		if !seen[name] {
			c.Errorf("no span %s was exported", name)
		}
	}
}

// csds verifies that the CSDS response does not contain the canary. It describes each client, and the relay as a client
// of its origin.
func (c *canaryTest) csds() {
	c.Helper()
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return c.relay.DialAdmin(ctx) }))
	if err != nil {
		c.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	resp, err := statuspb.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(c.Context(), &statuspb.ClientStatusRequest{})
	if err != nil {
		c.Fatal(err)
	}
	encoded, err := proto.Marshal(resp)
	if err != nil {
		c.Fatal(err)
	}
	c.shows("CSDS", string(encoded))
	if answer := prototext.Format(resp); !strings.Contains(answer, "[redacted]") || !strings.Contains(answer, "key") {
		c.Errorf("CSDS: response without [redacted] or without the resource key:\n%s", answer)
	}
}

// follow subscribes clients to the key on streams of each variant and each service. Other clients reject it with an
// error detail that contains the key, as Envoy does for a resource that it cannot use.
func (c *canaryTest) follow() {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), relaytest.Patience)
	defer cancel()
	follow := func(opts relaytest.ClientOptions, typeURLs ...string) {
		opts.AutoAck = true
		client := c.relay.Client(opts)
		for _, typeURL := range typeURLs {
			client.Subscribe(typeURL, "key")
		}
		if opts.Reject == nil {
			client.WaitState(ctx, func(s relaytest.State) bool {
				for _, typeURL := range typeURLs {
					if !s.Has(typeURL, "key") {
						return false
					}
				}
				return true
			})
		}
	}
	var all []string
	for typeURL := range keyed(c) {
		all = append(all, typeURL)
	}
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		follow(relaytest.ClientOptions{Variant: v}, all...)
		follow(relaytest.ClientOptions{Variant: v, TypeURL: relaytest.SecretType}, relaytest.SecretType)
		follow(relaytest.ClientOptions{Variant: v, Reject: func(r *relaytest.Response) error {
			// Envoy includes the resource in its error if validation fails.
			return fmt.Errorf("Proto constraint validation failed (field: %s): name: \"key\" private_key { inline_bytes: %q }", r.TypeURL, secretKey)
		}}, all...)
	}
	c.log.Await(c, 0, "client rejected a response")
}

// poll requests the key over REST, and rejects it.
func (c *canaryTest) poll() {
	c.Helper()
	for _, body := range []string{
		`{"node": {"id": "x"}, "resource_names": ["key"]}`,
		`{"node": {"id": "x"}, "resource_names": ["key"], "version_info": "0", "error_detail": {"code": 3, "message": "private_key { inline_string: ` + canary + ` }"}}`,
	} {
		resp, err := c.http(c.relay.DialREST).Post("http://localhost/v3/discovery:secrets", "application/json", strings.NewReader(body))
		if err != nil {
			c.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), canary) {
			c.Fatalf("REST request: %s, error %v, want a response with the Secret", resp.Status, err)
		}
	}
}

// refuse makes the origin send responses with the key that the relay refuses.
func (c *canaryTest) refuse() {
	c.Helper()
	key := &discoverypb.Resource{Name: "other", Version: "1", Resource: relaytest.Opaque(relaytest.ListenerType, "other", []byte(secretKey))}
	for _, resources := range [][]*discoverypb.Resource{
		{key}, // of another type than the response
		{{Version: "1", Resource: &anypb.Any{TypeUrl: relaytest.ClusterType, Value: []byte("\xff" + secretKey)}}}, // malformed, without a name
	} {
		c.origin.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.ClusterType, Resources: resources})
	}
	c.log.Await(c, 0, "origin response refused")
}

// change makes the origin update all resources with the key, and verifies that the history contains the changes.
func (c *canaryTest) change() {
	c.Helper()
	time.Sleep(time.Minute) // otherwise the history may read the first state together with the first change
	for typeURL, m := range keyed(c) {
		switch m := m.(type) {
		case *clusterpb.Cluster:
			m.AltStatName = "changed"
		case *listenerpb.Listener:
			m.StatPrefix = "changed"
		case *corepb.TypedExtensionConfig:
			m.TypedConfig.Value = append(m.TypedConfig.Value, secretKey...)
		case *tlspb.Secret:
			m.GetTlsCertificate().CertificateChain = nil
		}
		c.origin.Put(m)
		time.Sleep(time.Minute)              // the history reads changes at intervals
		if typeURL != relaytest.SecretType { // has no history
			must(c.T, exitOK, []string{" added ", " changed "}, "history", typeURL, "key")
		}
	}
}

// dump verifies that a dump does not contain the canary, and that it contains the files that its README.txt lists.
func (c *canaryTest) dump() {
	c.Helper()
	path := filepath.Join(c.TempDir(), "dump.tar.gz")
	if code, stdout, stderr := execute("dump", "-f", path); code != exitOK {
		c.Fatalf("tender dump: code %d, %s%s", code, stdout, stderr)
	}
	if code, _, stderr := execute("dump", "-f", path); code != exitFailure || !strings.Contains(stderr, "file exists") {
		c.Errorf("tender dump to an existing file: code %d, %s, want an error", code, stderr)
	}
	file, err := os.Open(path)
	if err != nil {
		c.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	plain, err := gzip.NewReader(file)
	if err != nil {
		c.Fatal(err)
	}
	files := make(map[string]string)
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			c.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			c.Fatal(err)
		}
		files[filepath.Base(header.Name)] = string(content)
		c.shows("tender dump: "+header.Name, string(content))
	}
	for name, want := range map[string]string{
		"configuration.txt": "TENDER_SECRETS=loopback (environment)\n", "status.json": `"go_version"`, "clients.json": `"rejecting": true`, "pending.json": `"pending"`,
		"metrics.txt": "tender_client_streams", "goroutines.txt": "goroutine profile", "heap.pprof": "\x1f\x8b",
	} {
		if !strings.Contains(files[name], want) || !strings.Contains(files["README.txt"], name+" ") {
			c.Errorf("tender dump: %s does not contain %q, or README.txt does not list it:\n%.300s\n%s", name, want, files[name], files["README.txt"])
		}
	}
	if len(files) != 8 {
		c.Errorf("tender dump contains %d files, want 8, as in README.txt:\n%s", len(files), files["README.txt"])
	}
}

// bootstrap writes the bootstrap of an Envoy that contains the canary, and returns its path.
func (c *canaryTest) bootstrap() string {
	return certs.WriteFile(c, c.TempDir(), "bootstrap.yaml", []byte("node: {id: a, cluster: b}\nstatic_resources:\n  secrets:\n  - name: key\n    generic_secret: {secret: {inline_string: "+canary+"}}\n"))
}

// TestB36_CanaryInFiles verifies that errors about an invalid file of a file origin do not contain the key in the file.
func TestB36_CanaryInFiles(t *testing.T) {
	for name, file := range map[string]string{
		"text instead of bytes":     `inline_bytes: "` + strings.ReplaceAll(secretKey, "\n", `\n`) + `"`,
		"unknown field":             "inline_strng: " + canary,
		"list":                      "inline_string: [" + canary + "]",
		"not YAML":                  "inline_string: \"" + canary + "\n",
		"text instead of an object": canary,
		"number instead of a text":  "inline_string: 1" + canaryNumber,
	} {
		t.Run(name, func(t *testing.T) {
			c := &canaryTest{T: t, dir: t.TempDir()}
			certs.WriteFile(t, c.dir, "a.yaml", []byte("- \"@type\": "+relaytest.SecretType+"\n  name: key\n  generic_secret:\n    secret:\n      "+file+"\n"))
			end := c.run(nil, "TENDER_ORIGIN=file://"+c.dir)
			c.log.Await(c, 0, "a.yaml:")
			c.tender("status", "-o", "json")
			end()
			c.shows("the log", c.log.String())
		})
	}
}
