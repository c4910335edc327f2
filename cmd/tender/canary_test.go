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
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	"github.com/xdstender/tender/relay/relaytest/logs"
)

// secretKey is what must be seen nowhere: a private key, of which also a part would be too
// much.
const (
	canaryNumber = "84927561038"
	canary       = "Canary7Q2xPrivateKey"
	secretKey    = "-----BEGIN PRIVATE KEY-----\n" + canary + "+/AA==\n-----END PRIVATE KEY-----\n"
)

// forms are how the canary may be written somewhere. Base64 has one for each place at which a
// text may begin.
func forms() []string {
	forms := []string{canary, canaryNumber, hex.EncodeToString([]byte(canary))}
	for skip := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString(append(bytes.Repeat([]byte{'x'}, skip), canary...))
		forms = append(forms, encoded[4:len(encoded)-4])
	}
	return forms
}

// A canaryTest runs a relay through which a private key goes, and collects what it shows to
// anybody but its clients.
type canaryTest struct {
	*testing.T
	origin *relaytest.Origin
	relay  *relaytest.Relay
	log    logs.Log
	spans  *tracetest.InMemoryExporter
	dir    string // of snapshots
}

// shows holds that a text does not have the canary.
func (c *canaryTest) shows(where, text string) {
	c.Helper()
	if text == "" {
		c.Errorf("%s shows nothing, so nothing was tested", where)
	}
	for _, form := range forms() {
		if at := strings.Index(text, form); at >= 0 {
			c.Errorf("%s shows the private key, as %q: …%s…", where, form, text[max(at-300, 0):at])
		}
	}
}

// tender holds that a command does not show the canary.
func (c *canaryTest) tender(args ...string) {
	c.Helper()
	_, stdout, stderr := execute(args...)
	c.shows("tender "+strings.Join(args, " "), stdout+stderr)
}

// admin holds that an answer to operators does not show the canary, and returns it.
func (c *canaryTest) admin(path string) (answer string) {
	c.Helper()
	resp, err := http.Get("http://" + c.relay.AdminAddrs()[0].String() + path)
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

// files holds that no file of a directory has the canary.
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

func certificateWithKey() *tlspb.TlsCertificate {
	return &tlspb.TlsCertificate{
		CertificateChain: &corepb.DataSource{Specifier: &corepb.DataSource_InlineString{InlineString: "chain"}},
		PrivateKey:       &corepb.DataSource{Specifier: &corepb.DataSource_InlineBytes{InlineBytes: []byte(secretKey)}},
		Password:         &corepb.DataSource{Specifier: &corepb.DataSource_InlineString{InlineString: secretKey}},
	}
}

// keyed are resources with the key in them: in a Secret, and inline in an Any in others.
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
			TypeUrl: "type.googleapis.com/acme.Unknown", Value: []byte(secretKey), // which nobody can look into
		}},
	}
}

// TestB36_CanaryNeverLeaks pushes a private key through all that the relay does, and looks for it
// in all that it shows. What is new adds a line.
func TestB36_CanaryNeverLeaks(t *testing.T) {
	c := &canaryTest{T: t, origin: relaytest.NewOrigin(t, relaytest.OriginOptions{}), dir: t.TempDir()}
	for _, m := range keyed(t) {
		c.origin.Put(m)
	}
	end := c.run("TENDER_ORIGIN="+c.origin.Addr(), "TENDER_SNAPSHOT_DIR="+c.dir)
	c.follow()
	c.poll()
	c.refuse()
	c.change()

	for _, output := range get.Outputs {
		for _, short := range []string{"sds", "cds", "lds", "ecds"} {
			for _, variant := range []string{"--sotw", "--sotw=false"} {
				c.tender("get", "-a", c.relay.Addrs()[0].String(), variant, "-o", output, short, "key")
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
		"/", "/readyz", "/metrics", "/api/v1/status", "/api/v1/holds", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1", "/debug/pprof/cmdline",
	} {
		c.admin(path)
	}
	for _, path := range []string{"/clients", "/clients/1", "/resources?type=sds", "/resource?type=sds&name=key", "/resource?type=ecds&name=key"} {
		c.admin(path)
		c.admin(strings.Replace("/api/v1"+path, "/resource?", "/resources?", 1))
	}
	for _, path := range []string{"/resource?type=cds&name=key", "/resource?type=lds&name=key", "/api/v1/resources?type=cds&name=key", "/api/v1/resources?type=lds&name=key&format=yaml"} {
		if answer := c.admin(path); !strings.Contains(answer, "[redacted]") {
			c.Errorf("GET %s does not show that something is redacted:\n%s", path, answer)
		}
	}
	c.csds()
	end()
	c.files(c.dir)
	c.traces("origin.receive", "deliver")
	c.shows("the log", c.log.String())
	if log := c.log.String(); !strings.Contains(log, "client refused a response") || !strings.Contains(log, "origin response rejected") || !strings.Contains(log, "secret sent") {
		t.Errorf("the log has no NACK of a client, none of the relay, or no Secret:\n%s", log)
	}
}

// run runs a relay that shows as much as it can, until end is called.
func (c *canaryTest) run(env ...string) (end func()) {
	c.Helper()
	c.spans = tracetest.NewInMemoryExporter()
	c.relay = relaytest.StartRelay(c, relaytest.RelayOptions{
		Env: append(env, "TENDER_REST_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=127.0.0.1:0", "TENDER_LOG_LEVEL=debug", "TENDER_DEBUG=on",
			"TENDER_SECRETS=loopback", "TENDER_DRAIN=1s", "TENDER_TRACE_DELIVERIES=1"),
		Options: relay.Options{Spans: keeping{c.spans}, Logger: slog.New(slog.NewTextHandler(&c.log, &slog.HandlerOptions{Level: slog.LevelDebug}))},
	})
	c.Setenv(adminVariable, c.relay.AdminAddrs()[0].String())
	return c.relay.Stop
}

// keeping is an exporter that forgets nothing when it is shut down.
type keeping struct{ *tracetest.InMemoryExporter }

func (keeping) Shutdown(context.Context) error { return nil }

// traces holds that no span shows the canary, and that there are such.
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
			c.Errorf("there is no span %s, so nothing was tested", name)
		}
	}
}

// csds holds that the CSDS does not show the canary: with all that it says of each client, and of the
// relay as one.
func (c *canaryTest) csds() {
	c.Helper()
	conn, err := grpc.NewClient(c.relay.AdminAddrs()[0].String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
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
		c.Errorf("CSDS does not show that something is redacted:\n%s", answer)
	}
}

// follow has clients take the key by every way that streams have, and refuse it with the key in
// what they say of it, as Envoy does with what it cannot use.
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
			// As Envoy dumps what does not validate.
			return fmt.Errorf("Proto constraint validation failed (field: %s): name: \"key\" private_key { inline_bytes: %q }", r.TypeURL, secretKey)
		}}, all...)
	}
	c.log.Await(c, 0, "client refused a response")
}

// poll has the key polled for, and refused.
func (c *canaryTest) poll() {
	c.Helper()
	for _, body := range []string{
		`{"node": {"id": "x"}, "resource_names": ["key"]}`,
		`{"node": {"id": "x"}, "resource_names": ["key"], "version_info": "0", "error_detail": {"code": 3, "message": "private_key { inline_string: ` + canary + ` }"}}`,
	} {
		resp, err := http.Post("http://"+c.relay.RESTAddrs()[0].String()+"/v3/discovery:secrets", "application/json", strings.NewReader(body))
		if err != nil {
			c.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), canary) {
			c.Fatalf("a poll was answered %s, %v, want the Secret, which its client may have", resp.Status, err)
		}
	}
}

// refuse has the origin say what the relay refuses, with the key in it.
func (c *canaryTest) refuse() {
	c.Helper()
	key := &discoverypb.Resource{Name: "other", Version: "1", Resource: relaytest.Opaque(relaytest.ListenerType, "other", []byte(secretKey))}
	for _, resources := range [][]*discoverypb.Resource{
		{key}, // of another type than the response
		{{Version: "1", Resource: &anypb.Any{TypeUrl: relaytest.ClusterType, Value: []byte("\xff" + secretKey)}}}, // malformed, without a name
	} {
		c.origin.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.ClusterType, Resources: resources})
	}
	c.log.Await(c, 0, "origin response rejected")
}

// change has the origin change all that has the key, but not the key, and waits until that is
// remembered.
func (c *canaryTest) change() {
	c.Helper()
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
		c.remembers(typeURL, "added")
		c.origin.Put(m)
		c.remembers(typeURL, "changed")
	}
}

// remembers waits until the history of a type's key has something of a kind; of a Secret there
// is none.
func (c *canaryTest) remembers(typeURL, kind string) {
	c.Helper()
	for end := time.Now().Add(relaytest.Patience); typeURL != relaytest.SecretType; time.Sleep(5 * time.Millisecond) {
		_, stdout, _ := execute("history", typeURL, "key")
		if strings.Contains(stdout, "  "+kind+"  ") {
			return
		}
		if time.Now().After(end) {
			c.Fatalf("that the %s was %s is not remembered:\n%s", typeURL, kind, stdout)
		}
	}
}

// dump holds that a dump does not have the canary, and that it has what it says.
func (c *canaryTest) dump() {
	c.Helper()
	path := filepath.Join(c.TempDir(), "dump.tar.gz")
	if code, stdout, stderr := execute("dump", "-f", path); code != exitOK {
		c.Fatalf("tender dump: code %d, %s%s", code, stdout, stderr)
	}
	if code, _, stderr := execute("dump", "-f", path); code != exitFailure || !strings.Contains(stderr, "file exists") {
		c.Errorf("tender dump to a file that exists: code %d, %s", code, stderr)
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
		"configuration.txt": "TENDER_SECRETS=loopback (environment)\n", "status.json": `"go_version"`, "clients.json": `"refusing": true`, "holds.json": `"holds"`,
		"metrics.txt": "tender_client_streams", "goroutines.txt": "goroutine profile", "heap.pprof": "\x1f\x8b",
	} {
		if !strings.Contains(files[name], want) || !strings.Contains(files["README.txt"], name+" ") {
			c.Errorf("tender dump: %s has no %q, or README.txt does not name it:\n%.300s\n%s", name, want, files[name], files["README.txt"])
		}
	}
	if len(files) != 8 {
		c.Errorf("tender dump has %d files, README.txt says\n%s", len(files), files["README.txt"])
	}
}

// bootstrap returns a file with an Envoy's bootstrap, which has the key.
func (c *canaryTest) bootstrap() string {
	return certs.WriteFile(c, c.TempDir(), "bootstrap.yaml", []byte("node: {id: a, cluster: b}\nstatic_resources:\n  secrets:\n  - name: key\n    generic_secret: {secret: {inline_string: "+canary+"}}\n"))
}

// TestB36_CanaryInFiles holds that what is wrong with a file is told without the key that the
// file has.
func TestB36_CanaryInFiles(t *testing.T) {
	for name, file := range map[string]string{
		"a text in the place of bytes":     `inline_bytes: "` + strings.ReplaceAll(secretKey, "\n", `\n`) + `"`,
		"an unknown field":                 "inline_strng: " + canary,
		"a list":                           "inline_string: [" + canary + "]",
		"no YAML":                          "inline_string: \"" + canary + "\n",
		"a text in the place of an object": canary,
		"a number in the place of a text":  "inline_string: 1" + canaryNumber,
	} {
		t.Run(name, func(t *testing.T) {
			c := &canaryTest{T: t, dir: t.TempDir()}
			certs.WriteFile(t, c.dir, "a.yaml", []byte("- \"@type\": "+relaytest.SecretType+"\n  name: key\n  generic_secret:\n    secret:\n      "+file+"\n"))
			end := c.run("TENDER_ORIGIN=file://" + c.dir)
			c.log.Await(c, 0, "a.yaml:")
			c.tender("status", "-o", "json")
			end()
			c.shows("the log", c.log.String())
		})
	}
}
