package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A descriptor is a reference to a blob of an OCI image layout.
type descriptor struct {
	Digest   string
	Platform struct{ Architecture string }
}

// A layout is the path of an OCI image layout with one image per architecture, as deploy/image/build.sh writes it.
type layout string

// decode decodes the JSON blob of a descriptor into a value.
func (l layout) decode(d descriptor, into any) error {
	text, err := l.blob(d)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// blob returns the blob of a descriptor. Errors: the content does not match the digest.
func (l layout) blob(d descriptor) ([]byte, error) {
	algorithm, sum, _ := strings.Cut(d.Digest, ":")
	content, err := os.ReadFile(filepath.Join(string(l), "blobs", algorithm, filepath.Base(sum)))
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(content)); err == nil && got != d.Digest {
		err = fmt.Errorf("blob %s has the digest %s", d.Digest, got)
	}
	return content, err
}

// manifest returns the descriptor of the manifest for an architecture.
func (l layout) manifest(arch string) (descriptor, error) {
	var top, index struct{ Manifests []descriptor }
	text, err := os.ReadFile(filepath.Join(string(l), "index.json"))
	if err == nil {
		err = json.Unmarshal(text, &top)
	}
	if err != nil {
		return descriptor{}, err
	}
	if len(top.Manifests) != 1 {
		return descriptor{}, fmt.Errorf("%s has %d indexes, want 1", l, len(top.Manifests))
	}
	if err := l.decode(top.Manifests[0], &index); err != nil {
		return descriptor{}, err
	}
	for _, d := range index.Manifests {
		if d.Platform.Architecture == arch {
			return d, nil
		}
	}
	return descriptor{}, fmt.Errorf("%s has no image for %q", l, arch)
}

// readImage returns the bill of an image: its files, and the modules of those that are Go programs. It sets r.sum to
// the digest of the manifest.
func readImage(l layout, arch string, r release) (bill, error) {
	found, err := l.manifest(arch)
	if err != nil {
		return bill{}, err
	}
	if _, err := hex.Decode(r.sum[:], []byte(strings.TrimPrefix(found.Digest, "sha256:"))); err != nil {
		return bill{}, fmt.Errorf("digest %s: %w", found.Digest, err)
	}
	var manifest struct{ Layers []descriptor }
	if err := l.decode(found, &manifest); err != nil {
		return bill{}, err
	}
	image := container("tender", r.version)
	image.Hashes = hashes(r.sum)
	image.Properties = []property{{"architecture", arch}}
	all := part{top: image, dependencies: []dependency{{Ref: image.Ref}}}
	for _, d := range manifest.Layers {
		archive, err := l.blob(d)
		if err != nil {
			return bill{}, err
		}
		err = readTarGz(archive, func(name string, content []byte) error { return all.addFile(name, content, r.version) })
		if err != nil {
			return bill{}, fmt.Errorf("layer %s: %w", d.Digest, err)
		}
	}
	return r.bill(all), nil
}

// addFile adds a file of the image. version is used for the main module if the file is a Go program.
func (p *part) addFile(name string, content []byte, version string) error {
	sum := sha256.Sum256(content)
	of := component{Ref: "file:/" + name, Type: "file", Name: "/" + name, Hashes: hashes(sum)}
	file := needing(of)
	if info, err := buildinfo.Read(bytes.NewReader(content)); err == nil {
		if file, err = program(info, version, sum); err != nil {
			return err
		}
		file.top.Properties = append(file.top.Properties, property{"path", "/" + name})
	}
	p.dependencies[0].DependsOn = append(p.dependencies[0].DependsOn, file.top.Ref)
	p.components = append(append(p.components, file.top), file.components...)
	p.dependencies = append(p.dependencies, file.dependencies...)
	return nil
}
