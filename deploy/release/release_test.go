package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const date = "2026-11-25T12:00:00+02:00"

func read(t *testing.T, elements ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// file writes a file in a temporary directory of the test, and returns its path.
func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// refused checks that a command fails with an error that contains each of wants.
func refused(t *testing.T, args []string, wants ...string) {
	t.Helper()
	err := run(args, io.Discard)
	for _, want := range wants {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("release %q: %v, want %q in the error", args, err, want)
		}
	}
}

// TestNotes checks the sections of versions and commits, and that links to files of the repository are absolute.
func TestNotes(t *testing.T) {
	changelog := file(t, "# Changelog\n\nAll.\n\n## [Unreleased]\n\n- [next](n.md)\n\n## [1.2.3] - 2026-11-25\n\n### Added\n\n- a [link](x): y, [b](docs/z.md#part), [c](https://example.org/d)\n\n## [1.2.2] - 2026-11-01\n\n\n[1.2.3]: https://example.org/1.2.3\n")
	for version, want := range map[string]string{
		"v1.2.3":         "# Tender v1.2.3\n\n### Added\n\n- a [link](https://github.com/xdstender/tender/blob/v1.2.3/x): y, [b](https://github.com/xdstender/tender/blob/v1.2.3/docs/z.md#part), [c](https://example.org/d)\n",
		"0123456789ab":   "# Tender 0123456789ab\n\n- [next](https://github.com/xdstender/tender/blob/main/n.md)\n",
		"v1.2.3-4-gabcd": "# Tender v1.2.3-4-gabcd\n\n- [next](https://github.com/xdstender/tender/blob/main/n.md)\n",
	} {
		var got strings.Builder
		if err := run([]string{"notes", "-version", version, changelog}, &got); err != nil || got.String() != want {
			t.Errorf("notes of %s: %q, %v, want %q", version, &got, err, want)
		}
	}
	prepared := file(t, "## [Unreleased]\n\n## [1.2.4] - unreleased\n\n- prepared\n\n## Development before 1.2.4\n\n- old\n")
	var got strings.Builder
	if err := run([]string{"notes", "-version", "0123456789ab", prepared}, &got); err != nil || got.String() != "# Tender 0123456789ab\n\n- prepared\n" {
		t.Errorf("notes of a commit that prepares a release: %q, %v", &got, err)
	}
	refused(t, []string{"notes", "-version", "v1.2.4", changelog}, "no section [1.2.4]")
	refused(t, []string{"notes", "-version", "v1.2.3-rc.1", changelog}, "no section [1.2.3-rc.1]")
	refused(t, []string{"notes", "-version", "v1.2.2", changelog}, "an empty one")
}

// TestPackageVersions lists versions of packages in the order of their commits, and checks that dpkg has the same order.
func TestPackageVersions(t *testing.T) {
	before := ""
	for _, tt := range []struct{ version, want string }{
		{"0123456789ab", "0~20261125100000.0123456789ab"},
		{"c123456789ab-dirty", "0~20261125100000.c123456789ab.dirty"},
		{"dev", "0~20261125100000.dev"},
		{"v1.2.3-rc.1", "1.2.3~rc.1"},
		{"v1.2.3-rc.1-5-gabc", "1.2.3~rc.1+5.gabc"},
		{"v1.2.3", "1.2.3"},
		{"v1.2.3-4-gabcdef", "1.2.3+4.gabcdef"},
		{"v1.2.3-12-gabcdef", "1.2.3+12.gabcdef"},
		{"v1.2.3-12-gabcdef-dirty", "1.2.3+12.gabcdef+dirty"},
		{"v1.2.4", "1.2.4"},
		{"v1.2.4-dirty", "1.2.4+dirty"},
	} {
		var got strings.Builder
		if err := run([]string{"package", "-date", date, tt.version}, &got); err != nil || got.String() != "PACKAGE_VERSION='"+tt.want+"'\nSOURCE_DATE_EPOCH=1795600800\n" {
			t.Errorf("package %s: %q, %v, want the version %s", tt.version, &got, err, tt.want)
		}
		if before != "" {
			if out, err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", before, "lt", tt.want).CombinedOutput(); err != nil {
				t.Errorf("dpkg has no order of %s before %s: %v\n%s", before, tt.want, err, out)
			}
		}
		before = tt.want
	}
}

// newKey writes a new key to a PEM file, and returns its path.
func newKey(t *testing.T, curve elliptic.Curve, marshal func(*ecdsa.PrivateKey) ([]byte, error), name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	return file(t, string(pem.EncodeToMemory(&pem.Block{Type: name, Bytes: der})))
}

func pkcs8(key *ecdsa.PrivateKey) ([]byte, error) { return x509.MarshalPKCS8PrivateKey(key) }

// TestSignature checks that OpenSSL verifies a signature, and rejects it after the file was changed.
func TestSignature(t *testing.T) {
	sums := file(t, "0123  tender_v1.2.3_linux_amd64\n")
	for _, key := range []string{
		newKey(t, elliptic.P256(), pkcs8, "PRIVATE KEY"),
		newKey(t, elliptic.P256(), x509.MarshalECPrivateKey, "EC PRIVATE KEY"),
	} {
		if err := run([]string{"sign", "-key", key, sums}, io.Discard); err != nil {
			t.Fatal(err)
		}
		signature := read(t, sums+".sig")
		if err := run([]string{"sign", "-key", key, sums}, io.Discard); err != nil || read(t, sums+".sig") != signature {
			t.Errorf("the second signature of the same file differs from the first (%v)", err)
		}
		if out, err := verify(t, sums, sums); err != nil {
			t.Errorf("openssl: %v\n%s", err, out)
		}
		if out, err := verify(t, sums, file(t, read(t, sums)+"x")); err == nil {
			t.Errorf("openssl verifies a changed file:\n%s", out)
		}
		var b bundle
		if err := json.Unmarshal([]byte(read(t, sums+".sigstore.json")), &b); err != nil || len(b.Message.Digest.Digest) != 32 {
			t.Errorf("the bundle is %+v, %v", b, err)
		}
	}
}

// verify verifies content against the signature of a file with the command on the page on releases.
func verify(t *testing.T, signed, content string) (string, error) {
	t.Helper()
	script := `base64 -d <"$0.sig" >"$0.der" && openssl dgst -sha256 -verify "$0.pub" -signature "$0.der" "$1"`
	out, err := exec.CommandContext(t.Context(), "sh", "-euc", script, signed, content).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Fatal(err)
	}
	return string(out), err
}

func TestKeysAreRefused(t *testing.T) {
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x509.MarshalPKCS8PrivateKey(weak)
	if err != nil {
		t.Fatal(err)
	}
	sums := file(t, "sums")
	for key, want := range map[string]string{
		"/none":           "/none",
		file(t, "no key"): "no PEM block",
		file(t, "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n"): "unencrypted",
		file(t, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):                                       "signing key",
		newKey(t, elliptic.P384(), pkcs8, "PRIVATE KEY"):                                                                "not ECDSA P-256",
		file(t, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: other}))):                              "not ECDSA P-256",
	} {
		refused(t, []string{"sign", "-key", key, sums}, key, want)
		if _, err := os.Stat(sums + ".sig"); err == nil {
			t.Errorf("%s: a signature was written", want)
		}
	}
}

// chartArgs returns the arguments that pack the chart for a version.
func chartArgs(version, out string) []string {
	return []string{"chart", "-version", version, "-commit", "0123456789ab", "-date", date, "-out", out, "../helm/tender"}
}

// unpacked returns the contents of the files in a packed chart, by name.
func unpacked(t *testing.T, name string) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(read(t, name)))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "tender/")] = string(content)
	}
}

// TestChartOfACommit packs the chart for a commit between two releases. The chart installs the image of the commit;
// everything else is as in the repository.
func TestChartOfACommit(t *testing.T) {
	out := t.TempDir()
	if err := run(chartArgs("abcdef012345", out), io.Discard); err != nil {
		t.Fatal(err)
	}
	packs, err := filepath.Glob(out + "/tender-*-dev.g0123456789ab.tgz")
	if err != nil || len(packs) != 1 {
		t.Fatalf("the packed charts are %q, want one (%v)", packs, err)
	}
	files := unpacked(t, packs[0])
	if chart := files["Chart.yaml"]; !strings.Contains(chart, "\nappVersion: \"abcdef012345\"\n") || !strings.Contains(chart, "-dev.g0123456789ab\n") {
		t.Errorf("Chart.yaml is\n%s", chart)
	}
	for _, name := range []string{"values.yaml", "templates/workload.yaml", "files/tender.rules.yaml"} {
		if diff := cmp.Diff(read(t, "../helm/tender", name), files[name]); diff != "" {
			t.Errorf("%s (-repository +chart):\n%s", name, diff)
		}
	}
	if _, ok := files["ci/minimal.yaml"]; ok {
		t.Error("the chart has ci, which .helmignore excludes")
	}
}

// TestChartOfARelease packs the chart of a release. Its Chart.yaml must already contain the version of the release.
func TestChartOfARelease(t *testing.T) {
	var chart metadata
	o := options{version: "abc", commit: "abc"}
	if _, got, err := o.stamp([]byte(read(t, "../helm/tender/Chart.yaml"))); err != nil {
		t.Fatal(err)
	} else {
		chart = got
	}
	committed := strings.TrimSpace(strings.TrimPrefix(appVersionLine.FindString(read(t, "../helm/tender/Chart.yaml")), "appVersion:"))
	out := t.TempDir()
	if err := run(chartArgs(committed, out), io.Discard); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(out, "tender-"+strings.TrimSuffix(chart.Version, "-dev.gabc")+".tgz")
	if diff := cmp.Diff(read(t, "../helm/tender/Chart.yaml"), unpacked(t, name)["Chart.yaml"]); diff != "" {
		t.Errorf("Chart.yaml (-repository +chart):\n%s", diff)
	}
	refused(t, chartArgs("v99.0.0", out), "appVersion is "+committed, "the release is v99.0.0")
}

// TestChartIsReproducible packs the chart twice, from files with different modification times, and compares all output.
func TestChartIsReproducible(t *testing.T) {
	copied := filepath.Join(t.TempDir(), "tender")
	if err := os.CopyFS(copied, os.DirFS("../helm/tender")); err != nil {
		t.Fatal(err)
	}
	one, two := t.TempDir(), t.TempDir()
	args := chartArgs("abcdef012345", two)
	args[len(args)-1] = copied
	for _, args := range [][]string{chartArgs("abcdef012345", one), args} {
		if err := run(args, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "diff", "-r", one, two).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestBadArguments(t *testing.T) {
	for want, args := range map[string][]string{
		"no command":           nil,
		`"publish" is unknown`: {"publish", "x"},
		"0 arguments":          {"notes", "-version", "v1.2.3"},
		"not a time":           {"package", "-date", "today", "v1.2.3"},
		"RFC 3339":             {"chart", "-version", "abc", "-commit", "abc", "-date", "today", "../helm/tender"},
		"-commit is missing":   {"chart", "-version", "abc", "-date", date, "../helm/tender"},
	} {
		refused(t, args, want)
	}
	dir := filepath.Join(t.TempDir(), "chart")
	if err := os.CopyFS(dir, os.DirFS("../helm/tender")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".helmignore"), []byte("!kept\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, append(chartArgs("abc", t.TempDir())[:9], dir), `"!kept" is not supported`)
}
