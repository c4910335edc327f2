package deploy_test

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// imageContents lists the contents of an image: its files, and the directory for snapshots.
var imageContents = []string{
	"etc/group",
	"etc/passwd",
	"etc/ssl/certs/ca-certificates.crt",
	"usr/local/bin/tender",
	"usr/share/doc/tender/LICENSE",
	"var/lib/tender",
}

// A descriptor is a reference to a blob (OCI image specification).
type descriptor struct {
	MediaType   string
	Digest      string
	Size        int64
	Annotations map[string]string
	Platform    struct{ OS, Architecture string }
}

// A layout is an OCI image layout: a directory with images.
type layout struct {
	t   *testing.T
	dir string
}

// blob returns the blob of a descriptor. It fails the test if the digest or the size differs.
func (l layout) blob(d descriptor) []byte {
	l.t.Helper()
	algorithm, sum, _ := strings.Cut(d.Digest, ":")
	content := readText(l.t, filepath.Join(l.dir, "blobs", algorithm, sum))
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content))); got != d.Digest || int64(len(content)) != d.Size {
		l.t.Fatalf("a blob has the digest %s and %d bytes, but its descriptor has %s and %d", got, len(content), d.Digest, d.Size)
	}
	return []byte(content)
}

// decodeJSON decodes JSON, and fails the test on errors.
func decodeJSON(t *testing.T, text []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

// manifests returns the manifests of a version, one per platform.
func (l layout) manifests(version string) []descriptor {
	l.t.Helper()
	var top, index struct{ Manifests []descriptor }
	decodeJSON(l.t, []byte(readText(l.t, filepath.Join(l.dir, "index.json"))), &top)
	if len(top.Manifests) != 1 || top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != version {
		l.t.Fatalf("the layout has %+v, want one with the name %s", top.Manifests, version)
	}
	decodeJSON(l.t, l.blob(top.Manifests[0]), &index)
	return index.Manifests
}

// TestImage_Runs checks the images that make image has built, and runs the one for this platform.
func TestImage_Runs(t *testing.T) {
	need(t)
	dir, version, _ := strings.Cut(*imageFlag, ":")
	l := layout{t, dir}
	root := ""
	for _, m := range l.manifests(version) {
		if m.Platform.OS != "linux" {
			t.Errorf("an image is for %+v", m.Platform)
		}
		if unpacked := l.checkImage(m, version); m.Platform.Architecture == runtime.GOARCH {
			root = unpacked
		}
	}
	if root == "" {
		t.Fatalf("the layout has no image for linux/%s", runtime.GOARCH)
	}
	t.Run("version", func(t *testing.T) { testVersion(t, root, version) })
	t.Run("serve", func(t *testing.T) { testServe(t, root) })
}

// checkImage checks the configuration of an image, and unpacks it into a directory, which it returns.
func (l layout) checkImage(d descriptor, version string) (root string) {
	l.t.Helper()
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decodeJSON(l.t, l.blob(d), &manifest)
	var config struct {
		OS, Architecture string
		Config           struct {
			User            string
			Entrypoint, Cmd []string
			Labels          map[string]string
		}
	}
	decodeJSON(l.t, l.blob(manifest.Config), &config)
	if config.Architecture != d.Platform.Architecture || config.OS != d.Platform.OS {
		l.t.Errorf("the image for %+v says that it is for %s/%s", d.Platform, config.OS, config.Architecture)
	}
	c := config.Config
	if got := fmt.Sprint([]any{c.User, c.Entrypoint, c.Cmd, c.Labels["org.opencontainers.image.version"]}); got != "[65532:65532 [/usr/local/bin/tender] [serve] "+version+"]" {
		l.t.Errorf("the configuration of the image is %s", got)
	}
	if len(manifest.Layers) != 1 {
		l.t.Fatalf("the image has %d layers, want 1", len(manifest.Layers))
	}
	return l.unpack(manifest.Layers[0])
}

// unpack unpacks a layer as root, and checks its contents. All files but the directory for snapshots
// must belong to root and be writable by root only.
func (l layout) unpack(d descriptor) (root string) {
	l.t.Helper()
	root = l.t.TempDir()
	l.blob(d) // checks the digest
	file, err := os.Open(filepath.Join(l.dir, "blobs", strings.Replace(d.Digest, ":", "/", 1)))
	if err != nil {
		l.t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		l.t.Fatal(err)
	}
	var found []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			l.t.Fatal(err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		if snapshots := name == "var/lib/tender"; snapshots || h.Typeflag != tar.TypeDir {
			found = append(found, name)
			if want := map[bool]int{true: 65532}[snapshots]; h.Uid != want || h.Gid != want || h.Mode&0o022 != 0 {
				l.t.Errorf("%s belongs to %d:%d with mode %o, want %d and not writable by others", name, h.Uid, h.Gid, h.Mode, want)
			}
		}
		l.place(filepath.Join(root, name), h, r)
	}
	slices.Sort(found)
	if diff := cmp.Diff(imageContents, found); diff != "" {
		l.t.Errorf("contents of the image (-want +got):\n%s", diff)
	}
	checkCertificates(l.t, readText(l.t, filepath.Join(root, "etc/ssl/certs/ca-certificates.crt")))
	return root
}

// place creates a file or a directory of a layer.
func (l layout) place(name string, h *tar.Header, content io.Reader) {
	l.t.Helper()
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		err = os.Mkdir(name, 0o700)
	case tar.TypeReg:
		var b []byte
		if b, err = io.ReadAll(content); err == nil {
			err = os.WriteFile(name, b, 0o600)
		}
	default:
		l.t.Fatalf("%s is of type %c", h.Name, h.Typeflag)
	}
	if err == nil {
		err = os.Chown(name, h.Uid, h.Gid)
	}
	if err == nil {
		err = os.Chmod(name, h.FileInfo().Mode().Perm())
	}
	if err != nil {
		l.t.Fatalf("unpack as root: %v", err)
	}
}

// checkCertificates checks that text contains the certificates of public CAs.
func checkCertificates(t *testing.T, text string) {
	t.Helper()
	count := 0
	for rest := []byte(text); ; count++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			t.Errorf("parse a CA certificate: %v", err)
		}
	}
	if count < 50 {
		t.Errorf("the image has %d CAs, want 50 at least", count)
	}
}
