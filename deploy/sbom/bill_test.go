package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The same checksum in the format of go.sum and in the format of a bill.
const (
	sum    = "h1:rEMyGo6bT7LwXiXRRE8fzwgmF1xJYI3xg5ebFXIjbNg="
	sumHex = "ac43321a8e9b4fb2f05e25d1444f1fcf0826175c49608df183979b1572236cd8"
)

func TestBill(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.8",
		Main:      debug.Module{Path: "example.com/program", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "example.com/One", Version: "v1.2.3", Sum: sum},
			{Path: "example.com/two", Version: "v0.1.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v2.0.0+incompatible", Sum: sum}},
		},
		Settings: []debug.BuildSetting{{Key: "GOOS", Value: "linux"}},
	}
	got, err := newBill(info, release{version: "v9", date: "2026-11-21T10:00:00Z", sum: sha256.Sum256([]byte("program"))})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	const programHex = "1310ca2c8932dbd118668bd97442558a3e1f546b5e15c69699dfbd6024f548d8"
	const program = "pkg:golang/example.com/program@v9"
	want := `{
		"$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6",
		"serialNumber": "urn:uuid:1310ca2c-8932-8bd1-9866-8bd97442558a", "version": 1,
		"metadata": {"timestamp": "2026-11-21T10:00:00Z", "component": {
			"bom-ref": "` + program + `", "type": "application", "name": "example.com/program", "version": "v9", "purl": "` + program + `",
			"hashes": [{"alg": "SHA-256", "content": "` + programHex + `"}],
			"properties": [{"name": "go:build:GOOS", "value": "linux"}]}},
		"components": [
			{"bom-ref": "pkg:golang/std@1.26.8", "type": "library", "name": "std", "version": "1.26.8", "purl": "pkg:golang/std@1.26.8"},
			{"bom-ref": "pkg:golang/example.com/One@v1.2.3", "type": "library", "name": "example.com/One", "version": "v1.2.3",
				"purl": "pkg:golang/example.com/One@v1.2.3", "hashes": [{"alg": "SHA-256", "content": "` + sumHex + `"}]},
			{"bom-ref": "pkg:golang/example.com/fork@v2.0.0%2Bincompatible", "type": "library", "name": "example.com/fork", "version": "v2.0.0+incompatible",
				"purl": "pkg:golang/example.com/fork@v2.0.0%2Bincompatible", "hashes": [{"alg": "SHA-256", "content": "` + sumHex + `"}]}],
		"dependencies": [
			{"ref": "` + program + `", "dependsOn": ["pkg:golang/std@1.26.8", "pkg:golang/example.com/One@v1.2.3", "pkg:golang/example.com/fork@v2.0.0%2Bincompatible"]},
			{"ref": "pkg:golang/std@1.26.8"}, {"ref": "pkg:golang/example.com/One@v1.2.3"}, {"ref": "pkg:golang/example.com/fork@v2.0.0%2Bincompatible"}]
	}`
	if diff := cmp.Diff(decode(t, want), decode(t, string(text))); diff != "" {
		t.Errorf("bill (-want +got):\n%s", diff)
	}
}

func decode(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("decode %s: %v", text, err)
	}
	return v
}

func TestBillWithoutChecksum(t *testing.T) {
	for _, sum := range []string{"", "h1:", "h1:AAAA", sum[:20], "h2" + sum[2:]} {
		info := &debug.BuildInfo{Deps: []*debug.Module{{Path: "example.com/one", Version: "v1.2.3", Sum: sum}}}
		if _, err := newBill(info, release{}); err == nil || !strings.Contains(err.Error(), "example.com/one") {
			t.Errorf("bill of a module with the checksum %q: %v, want an error that names the module", sum, err)
		}
	}
}

// TestWrite checks that the bill describes the file, and that repeated runs write the same bill.
func TestWrite(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, w := range []*bytes.Buffer{&first, &second} {
		if err := write(w, self, "", release{version: "v1"}); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() {
		t.Errorf("two bills of one file differ:\n%s\n%s", &first, &second)
	}
	if std := `"pkg:golang/std@` + runtime.Version()[len("go"):]; !strings.Contains(first.String(), std) {
		t.Errorf("the bill lacks %s:\n%s", std, &first)
	}
	if err := write(&first, "bill_test.go", "", release{version: "v1"}); err == nil {
		t.Error("write wrote a bill of a file that is not a program")
	}
}

// archive returns a gzipped tar archive of files, like a layer or a chart. files alternates names and contents. It does
// not compress them: the test binary is among them.
func archive(t *testing.T, files ...string) []byte {
	t.Helper()
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.NoCompression)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for i := 0; i < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: files[i], Size: int64(len(files[i+1])), Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// decoded returns the decoded output of write for a file or a directory.
func decoded(t *testing.T, name, arch string) (b bill) {
	t.Helper()
	var text bytes.Buffer
	if err := write(&text, name, arch, release{version: "v1.2.3"}); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text.Bytes(), &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestChart checks that the bill of a chart lists the image in its values. The tag is the one in the values, or the
// appVersion if that is empty.
func TestChart(t *testing.T) {
	const chart = "name: tender\nversion: 1.0.0\nappVersion: v1.2.3\n"
	for values, want := range map[string]string{
		"image: {repository: registry.example/tender, tag: ''}": "pkg:oci/tender?repository_url=registry.example/tender&tag=v1.2.3",
		"image: {repository: tender, tag: v9}":                  "pkg:oci/tender?tag=v9",
	} {
		name := filepath.Join(t.TempDir(), "tender.tgz")
		content := archive(t, "tender/Chart.yaml", chart, "tender/values.yaml", values, "tender/templates/values.yaml", "{{ not YAML")
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		b := decoded(t, name, "")
		if len(b.Components) != 1 || b.Components[0].PURL != want || b.Metadata.Component.Version != "1.0.0" {
			t.Errorf("the bill has the components %+v of %+v, want %s", b.Components, b.Metadata.Component, want)
		}
	}
}

// TestImage checks that the bill of an image lists each file and the modules of programs, and that a modified blob is
// an error.
func TestImage(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o700); err != nil {
		t.Fatal(err)
	}
	add := func(content []byte) string {
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		if err := os.WriteFile(filepath.Join(dir, "blobs/sha256", sum), content, 0o600); err != nil {
			t.Fatal(err)
		}
		return "sha256:" + sum
	}
	layer := add(archive(t, "etc/passwd", "root", "usr/local/bin/tender", string(program)))
	manifest := add(fmt.Appendf(nil, `{"layers": [{"digest": %q}]}`, layer))
	index := add(fmt.Appendf(nil, `{"manifests": [{"digest": %q, "platform": {"architecture": "amd64"}}]}`, manifest))
	if err := os.WriteFile(filepath.Join(dir, "index.json"), fmt.Appendf(nil, `{"manifests": [{"digest": %q}]}`, index), 0o600); err != nil {
		t.Fatal(err)
	}
	b := decoded(t, dir, "amd64")
	var names []string
	for _, c := range b.Components {
		names = append(names, c.Type+" "+c.Name)
	}
	all := strings.Join(names, "\n")
	for _, want := range []string{"file /etc/passwd", "application github.com/xdstender/tender", "library std"} {
		if !strings.Contains(all, want) {
			t.Errorf("the bill lacks %s:\n%s", want, all)
		}
	}
	if needs := b.Dependencies[0].DependsOn; b.Metadata.Component.Hashes[0].Content != manifest[len("sha256:"):] || len(needs) != 2 {
		t.Errorf("the image is %+v, and depends on %q", b.Metadata.Component, needs)
	}
	if err := write(io.Discard, dir, "riscv64", release{version: "v1.2.3"}); err == nil || !strings.Contains(err.Error(), `no image for "riscv64"`) {
		t.Errorf("bill of a nonexistent image for riscv64: %v, want an error that names the architecture", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "blobs/sha256", layer[len("sha256:"):]), []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(io.Discard, dir, "amd64", release{version: "v1.2.3"}); err == nil || !strings.Contains(err.Error(), "has the digest") {
		t.Errorf("bill of an image with a modified layer: %v, want an error about its digest", err)
	}
}
