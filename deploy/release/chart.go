package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// A metadata holds the fields of Chart.yaml, in the order in which Helm encodes them in the configuration of an OCI
// artefact.
type metadata struct {
	Name        string            `json:"name"`
	Home        string            `json:"home,omitempty"`
	Sources     []string          `json:"sources,omitempty"`
	Version     string            `json:"version"`
	Description string            `json:"description,omitempty"`
	Keywords    []string          `json:"keywords,omitempty"`
	APIVersion  string            `json:"apiVersion"`
	AppVersion  string            `json:"appVersion"`
	Annotations map[string]string `json:"annotations,omitempty"`
	KubeVersion string            `json:"kubeVersion,omitempty"`
	Type        string            `json:"type,omitempty"`
}

// writeChart packs a chart into OUT/NAME-VERSION.tgz, and writes it to OUT/chart as an OCI artefact. Unlike helm
// package, it produces identical output for identical files.
func (o options) writeChart(dir string, w io.Writer) error {
	at, err := o.time()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, "Chart.yaml"))
	if err != nil {
		return err
	}
	text, chart, err := o.stamp(text)
	if err != nil {
		return fmt.Errorf("%s/Chart.yaml: %w", dir, err)
	}
	archive, err := pack(dir, chart.Name, text, at)
	if err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	name := filepath.Join(o.out, fmt.Sprintf("%s-%s.tgz", chart.Name, chart.Version))
	if err := writeFile(name, archive); err != nil {
		return err
	}
	// helm push uses the modification time of the file as the time of the artefact.
	if err := os.Chtimes(name, at, at); err != nil {
		return err
	}
	layout := filepath.Join(o.out, "chart")
	manifest, err := writeLayout(layout, chart, archive, at)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s, and %s: %s:%s, %s\n", name, layout, chart.Name, chart.Version, manifest)
	return err
}

var (
	versionLine    = regexp.MustCompile(`(?m)^version: .*$`)
	appVersionLine = regexp.MustCompile(`(?m)^appVersion: .*$`)
)

// stamp returns the Chart.yaml to pack, as text and decoded. For a release, appVersion must already be the version of
// the release, so that the chart installs that image. For another commit, it sets a version that sorts before the next
// release.
func (o options) stamp(text []byte) ([]byte, metadata, error) {
	var chart metadata
	if err := yaml.UnmarshalStrict(text, &chart); err != nil {
		return nil, chart, err
	}
	if _, ok := o.released(); ok {
		if chart.AppVersion != o.version {
			return nil, chart, fmt.Errorf("appVersion is %s, and the release is %s; commit the version of the release first", chart.AppVersion, o.version)
		}
		return text, chart, nil
	}
	if o.commit == "" {
		return nil, chart, fmt.Errorf("-commit is missing: %q is not the version of a release", o.version)
	}
	chart.Version += "-dev.g" + o.commit
	chart.AppVersion = o.version
	text = versionLine.ReplaceAllLiteral(text, []byte("version: "+chart.Version))
	text = appVersionLine.ReplaceAllLiteral(text, fmt.Appendf(nil, "appVersion: %q", chart.AppVersion))
	return text, chart, nil
}

// pack returns the archive of a chart. Chart.yaml is first, as Helm does it, and the other files are sorted by name.
func pack(dir, name string, chartYAML []byte, at time.Time) ([]byte, error) {
	files, err := chartFiles(dir)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	archive := tar.NewWriter(compressed)
	for _, file := range append([]string{"Chart.yaml"}, files...) {
		content := chartYAML
		if file != "Chart.yaml" {
			if content, err = os.ReadFile(filepath.Join(dir, file)); err != nil {
				return nil, err
			}
		}
		header := &tar.Header{Name: path.Join(name, file), Mode: 0o644, Size: int64(len(content)), ModTime: at, Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(content); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	if err := compressed.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// chartFiles returns the files of a chart except Chart.yaml and those in .helmignore, sorted by name.
func chartFiles(dir string) (files []string, err error) {
	ignored, err := readIgnored(filepath.Join(dir, ".helmignore"))
	if err != nil {
		return nil, err
	}
	err = fs.WalkDir(os.DirFS(dir), ".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case file != "." && ignored.match(entry):
			if entry.IsDir() {
				return fs.SkipDir
			}
		case entry.IsDir() || file == "Chart.yaml":
		case !entry.Type().IsRegular():
			return fmt.Errorf("%s is not a regular file", file)
		default:
			files = append(files, file)
		}
		return nil
	})
	return files, err
}

// ignored holds the patterns of a .helmignore. It supports names with wildcards, and names of directories with a slash
// at the end. Other patterns are an error.
type ignored []string

// readIgnored reads a .helmignore. Errors: a pattern is not supported.
func readIgnored(name string) (patterns ignored, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern := strings.TrimSuffix(line, "/")
		if _, err := path.Match(pattern, ""); err != nil || strings.ContainsAny(pattern, "/!") {
			return nil, fmt.Errorf("%s: pattern %q is not supported; use a name with wildcards, or a directory with a slash at its end", name, line)
		}
		patterns = append(patterns, line)
	}
	return patterns, nil
}

// match reports whether Helm excludes a file or directory.
func (patterns ignored) match(entry fs.DirEntry) bool {
	return slices.ContainsFunc(patterns, func(line string) bool {
		pattern, isDir := strings.CutSuffix(line, "/")
		matched, _ := path.Match(pattern, entry.Name()) // readIgnored has validated the patterns
		return matched && (!isDir || entry.IsDir())
	})
}
