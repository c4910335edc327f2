package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"sigs.k8s.io/yaml"
)

// readChart returns the bill of a packed Helm chart, which depends on the image in its values.
func readChart(archive []byte, r release) (bill, error) {
	var chart struct{ Name, Version, AppVersion string }
	var values struct {
		Image struct{ Repository, Tag string }
	}
	err := readTarGz(archive, func(name string, content []byte) error {
		switch _, file, _ := strings.Cut(name, "/"); file {
		case "Chart.yaml":
			return yaml.Unmarshal(content, &chart)
		case "values.yaml":
			return yaml.Unmarshal(content, &values)
		}
		return nil
	})
	if err != nil {
		return bill{}, err
	}
	if chart.Name == "" || values.Image.Repository == "" {
		return bill{}, errors.New("no Chart.yaml, or no image.repository in values.yaml")
	}
	tag := values.Image.Tag
	if tag == "" {
		tag = chart.AppVersion
	}
	purl := fmt.Sprintf("pkg:generic/%s@%s", chart.Name, chart.Version)
	top := component{Ref: purl, Type: "application", Name: chart.Name, Version: chart.Version, PURL: purl, Hashes: hashes(r.sum)}
	return r.bill(needing(top, container(values.Image.Repository, tag))), nil
}

// container returns an image as a component, identified by its tag, since a chart does not contain the digest.
//
// Source: https://github.com/package-url/purl-spec, type oci.
func container(repository, tag string) component {
	name := strings.ToLower(path.Base(repository))
	purl := fmt.Sprintf("pkg:oci/%s?", name)
	if name != repository {
		purl += "repository_url=" + repository + "&"
	}
	purl += "tag=" + tag
	return component{Ref: purl, Type: "container", Name: repository, Version: tag, PURL: purl}
}

// readTarGz calls each for each regular file of an archive.
func readTarGz(archive []byte, each func(name string, content []byte) error) error {
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	for files := tar.NewReader(z); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(files)
		if err != nil {
			return err
		}
		if err := each(header.Name, content); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
}
