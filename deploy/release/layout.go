package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"
)

// The media types of a chart in a registry.
//
// Source: https://helm.sh/docs/topics/registries/
const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
	configType   = "application/vnd.cncf.helm.config.v1+json"
	chartType    = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// The parts of an OCI image layout that this program writes, with fields in the order in which Helm writes them.
//
// Source: https://github.com/opencontainers/image-spec, image-layout.md and manifest.md.
type (
	descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int               `json:"size"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	manifest struct {
		SchemaVersion int               `json:"schemaVersion"`
		Config        descriptor        `json:"config"`
		Layers        []descriptor      `json:"layers"`
		Annotations   map[string]string `json:"annotations"`
	}
	index struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Manifests     []descriptor `json:"manifests"`
	}
)

// A layout is the path of an OCI image layout: a directory with OCI artefacts.
type layout string

// writeLayout writes a packed chart as an OCI layout, and returns the digest of its manifest. The manifest is identical
// to the one that helm push writes.
func writeLayout(dir string, chart metadata, archive []byte, at time.Time) (string, error) {
	l := layout(dir)
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		return "", err
	}
	config, err := l.addJSON(configType, chart)
	if err != nil {
		return "", err
	}
	content, err := l.add(chartType, archive)
	if err != nil {
		return "", err
	}
	top, err := l.addJSON(manifestType, manifest{SchemaVersion: 2, Config: config, Layers: []descriptor{content}, Annotations: annotations(chart, at)})
	if err != nil {
		return "", err
	}
	top.Annotations = map[string]string{"org.opencontainers.image.ref.name": chart.Version}
	text, err := json.Marshal(index{2, indexType, []descriptor{top}})
	if err != nil {
		return "", err
	}
	if err := writeFile(filepath.Join(dir, "index.json"), text); err != nil {
		return "", err
	}
	return top.Digest, writeFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`))
}

// add writes a blob, and returns its descriptor.
func (l layout) add(mediaType string, content []byte) (descriptor, error) {
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	err := writeFile(filepath.Join(string(l), "blobs", "sha256", sum), content)
	return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(content)}, err
}

// addJSON writes a value as a blob of JSON.
func (l layout) addJSON(mediaType string, value any) (descriptor, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, err
	}
	return l.add(mediaType, text)
}

// annotations returns the annotations that Helm adds to the manifest of a chart.
func annotations(chart metadata, at time.Time) map[string]string {
	all := maps.Clone(chart.Annotations)
	if all == nil {
		all = map[string]string{}
	}
	for name, value := range map[string]string{
		"title": chart.Name, "version": chart.Version, "description": chart.Description, "url": chart.Home,
		"source": first(chart.Sources), "created": at.Format(time.RFC3339),
	} {
		if value != "" {
			all["org.opencontainers.image."+name] = value
		}
	}
	return all
}

// first returns the first element, or an empty string.
func first(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[0]
}
