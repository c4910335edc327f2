package deploy_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// A registry implements the part of the OCI distribution specification that helm push and helm template use.
type registry struct {
	mu        sync.Mutex
	blobs     map[string][]byte // by digest
	manifests map[string][]byte // by digest and by tag
}

// newRegistry starts an empty registry that runs until the end of the test, and returns its host and port.
func newRegistry(t *testing.T) (r *registry, host string) {
	t.Helper()
	r = &registry{blobs: map[string][]byte{}, manifests: map[string][]byte{}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return r, strings.TrimPrefix(server.URL, "http://")
}

// ServeHTTP implements http.Handler.
func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	dir, name := filepath.Split(req.URL.Path)
	kind := filepath.Base(dir)
	switch {
	case req.URL.Path == "/v2/":
	case req.Method == http.MethodPost && kind == "uploads":
		w.Header().Set("Location", req.URL.Path+"one")
		w.WriteHeader(http.StatusAccepted)
	case req.Method == http.MethodPut:
		r.put(w, req, kind, name)
	case kind == "blobs":
		serve(w, r.blobs[name], "application/octet-stream")
	case kind == "manifests":
		serve(w, r.manifests[name], "application/vnd.oci.image.manifest.v1+json")
	default:
		http.NotFound(w, req)
	}
}

// put stores a blob or a manifest.
func (r *registry) put(w http.ResponseWriter, req *http.Request, kind, name string) {
	content, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if kind == "manifests" {
		r.manifests[name], r.manifests[digestOf(content)] = content, content
	} else {
		r.blobs[req.URL.Query().Get("digest")] = content
	}
	w.WriteHeader(http.StatusCreated)
}

func digestOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// serve responds with content, or with 404 if it is nil.
func serve(w http.ResponseWriter, content []byte, mediaType string) {
	if content == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", digestOf(content))
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	_, _ = w.Write(content) // the client detects a truncated response
}

// load copies the artefact of an OCI layout into the registry, like skopeo, and returns its digest.
func (r *registry) load(t *testing.T, layout, tag string) (digest string) {
	t.Helper()
	var index struct{ Manifests []struct{ Digest string } }
	if err := json.Unmarshal([]byte(readText(t, filepath.Join(layout, "index.json"))), &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("the layout has the manifests %+v, want one (%v)", index, err)
	}
	files, err := os.ReadDir(filepath.Join(layout, "blobs/sha256"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		r.blobs["sha256:"+file.Name()] = []byte(readText(t, filepath.Join(layout, "blobs/sha256", file.Name())))
	}
	digest = index.Manifests[0].Digest
	r.manifests[tag], r.manifests[digest] = r.blobs[digest], r.blobs[digest]
	return digest
}

// TestChart_IsWhatHelmPushes pushes the chart of make release with Helm. The manifest in the registry must equal the
// manifest of the OCI layout beside the chart. Helm then renders the chart from a registry with that layout.
func TestChart_IsWhatHelmPushes(t *testing.T) {
	need(t)
	dist := t.TempDir()
	args := []string{"run", root + "/deploy/release", "chart", "-version", "0123456789ab", "-commit", "0123456789ab", "-date", "2026-11-25T10:00:00Z", "-out", dist, chartDir}
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	packed, err := filepath.Glob(dist + "/tender-*.tgz")
	if err != nil || len(packed) != 1 {
		t.Fatalf("make release packs %q: %v", packed, err)
	}
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(packed[0]), "tender-"), ".tgz")

	pushed, host := newRegistry(t)
	if printed, err := run(t, *helmTool, "push", packed[0], "oci://"+host+"/charts", "--plain-http"); err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	copied, host := newRegistry(t)
	digest := copied.load(t, filepath.Join(dist, "chart"), version)
	if got := digestOf(pushed.manifests[version]); got != digest {
		t.Errorf("helm push writes the manifest %s\n%s\nbut the layout has %s\n%s", got, pushed.manifests[version], digest, copied.manifests[digest])
	}

	values := []string{"--namespace", "ns", "--values", chartDir + "/ci/everything.yaml"}
	fromRegistry, err := run(t, *helmTool, append([]string{"template", "t", "oci://" + host + "/charts/tender", "--version", version, "--plain-http"}, values...)...)
	if err != nil {
		t.Fatal(err)
	}
	fromFile, err := run(t, *helmTool, append([]string{"template", "t", packed[0]}, values...)...)
	if err != nil {
		t.Fatal(err)
	}
	if fromRegistry != fromFile || !strings.Contains(fromFile, "helm.sh/chart: tender-"+version) {
		t.Errorf("the chart from the registry renders\n%s\nbut the chart file renders\n%s", fromRegistry, fromFile)
	}
}
