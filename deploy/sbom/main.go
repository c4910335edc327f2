// Command sbom writes the bill of materials of a release file as CycloneDX JSON. It reads the contents of that file, so
// it lists exactly what the file contains:
//
//	sbom -version v1.2.3 -date 2026-11-21T10:00:00Z dist/tender_linux_amd64    # a Go program: modules that were linked
//	sbom -version v1.2.3 dist/tender-1.2.3.tgz                                 # a Helm chart: the image that it installs
//	sbom -version v1.2.3 -arch amd64 dist/image                                # an image: its files, and modules in them
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	version := flag.String("version", "", "version of the program or the image")
	date := flag.String("date", "", "time of that version, as RFC 3339 has it")
	arch := flag.String("arch", "", "architecture of the image, if it is a directory with images")
	flag.Parse()
	if flag.NArg() != 1 || *version == "" {
		fmt.Fprintln(os.Stderr, "usage: sbom -version VERSION [-date TIME] PROGRAM | CHART.tgz | -arch ARCH LAYOUT")
		os.Exit(2)
	}
	if err := write(os.Stdout, flag.Arg(0), *arch, release{version: *version, date: *date}); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// write writes the bill of a file or a directory.
func write(w io.Writer, name, arch string, r release) error {
	b, err := read(name, arch, r)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(b)
}

// read returns the bill of a file, or of the image for arch in the layout name if arch is not empty.
func read(name, arch string, r release) (bill, error) {
	if arch != "" {
		return readImage(layout(name), arch, r)
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return bill{}, err
	}
	r.sum = sha256.Sum256(content)
	if strings.HasSuffix(name, ".tgz") {
		return readChart(content, r)
	}
	info, err := buildinfo.ReadFile(name)
	if err != nil {
		return bill{}, err
	}
	return newBill(info, r)
}
