// Command sbom writes the bill of materials of a Go program as CycloneDX JSON: which
// modules, in which versions, were linked into that file. It reads what the linker left in
// the program, so it says nothing that was not built in.
//
//	sbom -version v1.2.3 -date 2026-11-21T10:00:00Z dist/tender_linux_amd64
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	version := flag.String("version", "", "the version of the program")
	date := flag.String("date", "", "when that version was made, as RFC 3339 has it")
	flag.Parse()
	if flag.NArg() != 1 || *version == "" {
		fmt.Fprintln(os.Stderr, "usage: sbom -version VERSION [-date TIME] PROGRAM")
		os.Exit(2)
	}
	if err := write(os.Stdout, flag.Arg(0), release{version: *version, date: *date}); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// write writes the bill of the program in a file.
func write(w io.Writer, file string, r release) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	r.sum = sha256.Sum256(content)
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return err
	}
	b, err := newBill(info, r)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(b)
}
