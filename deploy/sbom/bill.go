package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"runtime/debug"
	"strings"
)

// The parts of a CycloneDX 1.6 bill of materials that this program writes.
//
// Source: https://cyclonedx.org/docs/1.6/json/
type (
	bill struct {
		Schema       string       `json:"$schema"`
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		SerialNumber string       `json:"serialNumber"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Timestamp string    `json:"timestamp,omitempty"`
		Component component `json:"component"`
	}
	component struct {
		Ref        string     `json:"bom-ref"`
		Type       string     `json:"type"`
		Name       string     `json:"name"`
		Version    string     `json:"version,omitempty"`
		Hashes     []hash     `json:"hashes,omitempty"`
		PURL       string     `json:"purl,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn,omitempty"`
	}
)

// A release holds the parts of a bill that cannot be read from the contents of the file.
type release struct {
	version string            // of the main module, or of the image
	date    string            // RFC 3339; empty leaves it out
	sum     [sha256.Size]byte // of the file, or of the manifest of the image
}

// A part is a component of a bill with all of its dependencies. components is in the order of the bill, and each
// component has an entry in dependencies.
type part struct {
	top          component
	components   []component
	dependencies []dependency
}

// bill returns the bill of a part.
func (r release) bill(p part) bill {
	return bill{
		Schema:       "http://cyclonedx.org/schema/bom-1.6.schema.json",
		Format:       "CycloneDX",
		SpecVersion:  "1.6",
		SerialNumber: serial(r.sum),
		Version:      1,
		Metadata:     metadata{Timestamp: r.date, Component: p.top},
		Components:   p.components,
		Dependencies: p.dependencies,
	}
}

// newBill returns the bill of a program. The result depends on its arguments only, so that equal programs have equal
// bills.
func newBill(info *debug.BuildInfo, r release) (bill, error) {
	p, err := program(info, r.version, r.sum)
	if err != nil {
		return bill{}, err
	}
	return r.bill(p), nil
}

// program returns the part of a Go program: the modules that were linked into it, and the standard library. Errors: a
// module has no checksum, such as one that a directory replaces.
func program(info *debug.BuildInfo, version string, sum [sha256.Size]byte) (part, error) {
	top := module("application", info.Main.Path, version)
	top.Hashes = hashes(sum)
	for _, s := range info.Settings {
		top.Properties = append(top.Properties, property{"go:build:" + s.Key, s.Value})
	}
	components := []component{module("library", "std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		sum, err := contentHash(m)
		if err != nil {
			return part{}, err
		}
		c := module("library", m.Path, m.Version)
		c.Hashes = []hash{sum}
		components = append(components, c)
	}
	return needing(top, components...), nil
}

// needing returns a part in which top depends on components, and these have no dependencies.
func needing(top component, components ...component) part {
	p := part{top: top, components: components, dependencies: []dependency{{Ref: top.Ref}}}
	for _, c := range components {
		p.dependencies[0].DependsOn = append(p.dependencies[0].DependsOn, c.Ref)
		p.dependencies = append(p.dependencies, dependency{Ref: c.Ref})
	}
	return p
}

// hashes returns a checksum in the form that component.Hashes needs.
func hashes(sum [sha256.Size]byte) []hash { return []hash{{"SHA-256", hex.EncodeToString(sum[:])}} }

// module returns a Go module as a component that its package URL identifies.
//
// Source: https://github.com/package-url/purl-spec, type golang.
func module(kind, path, version string) component {
	purl := "pkg:golang/" + path + "@" + url.QueryEscape(version)
	return component{Ref: purl, Type: kind, Name: path, Version: version, PURL: purl}
}

// contentHash returns the checksum of a module in go.sum: SHA-256 over the names and
// checksums of its files. Errors: the module has no such checksum.
func contentHash(m *debug.Module) (hash, error) {
	encoded, ok := strings.CutPrefix(m.Sum, "h1:")
	sum, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(sum) != sha256.Size {
		return hash{}, fmt.Errorf("module %s %s: checksum %q, want h1: and %d bytes in base64", m.Path, m.Version, m.Sum, sha256.Size)
	}
	return hash{"SHA-256", hex.EncodeToString(sum)}, nil
}

// serial returns the serial number of the bill of a file: a UUID derived from the file's checksum.
//
// Source: RFC 9562, section 5.8.
func serial(sum [sha256.Size]byte) string {
	id := sum[:16]
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
