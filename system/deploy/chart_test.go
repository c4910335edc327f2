package deploy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"
)

// chartDir is the chart.
const chartDir = root + "/deploy/helm/tender"

// An object is a mapping of a YAML or JSON document.
type object = map[string]any

// run runs a tool without the user's configuration and time zone, and returns its standard output. The error contains
// its standard error.
func run(t *testing.T, tool string, args ...string) (stdout string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TZ=UTC"}
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", filepath.Base(tool), strings.Join(args, " "), err, complaint.String())
	}
	return out.String(), nil
}

// template renders the chart as the release t in the namespace ns.
func template(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return run(t, *helmTool, append([]string{"template", "t", chartDir, "--namespace", "ns"}, args...)...)
}

// A rendering is a set of objects that are applied together.
type rendering struct {
	name    string
	text    string
	objects []manifest
}

// A manifest is a Kubernetes object.
type manifest struct{ object }

func (m manifest) kind() string { return text(m.object, "kind") }
func (m manifest) name() string { return text(m.object, "metadata", "name") }

// of returns the objects of the given kinds.
func (r rendering) of(kinds ...string) (found []manifest) {
	for _, m := range r.objects {
		if slices.Contains(kinds, m.kind()) {
			found = append(found, m)
		}
	}
	return found
}

// decode returns the objects in the YAML output of a tool.
func decode(t *testing.T, name, printed string) rendering {
	t.Helper()
	r := rendering{name: name, text: printed}
	for decoder := yaml.NewDecoder(strings.NewReader(printed)); ; {
		var o object
		if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if o != nil {
			r.objects = append(r.objects, manifest{o})
		}
	}
	if len(r.objects) == 0 {
		t.Fatalf("%s: nothing was rendered", name)
	}
	return r
}

// valuesFiles returns the paths of the values files that the tests render the chart with.
func valuesFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(chartDir + "/ci/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files of values: %v", len(files), err)
	}
	return files
}

// overlays returns the directories of deploy/kubernetes that users apply.
func overlays(t *testing.T) (dirs []string) {
	t.Helper()
	files, err := filepath.Glob(root + "/deploy/kubernetes/*/kustomization.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d overlays: %v", len(files), err)
	}
	for _, file := range files {
		if dir := filepath.Dir(file); filepath.Base(dir) != "base" {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// rendered caches the renderings for all tests.
var rendered = struct {
	sync.Once
	all []rendering
}{}

// renderings returns the chart with each file of values, and each overlay of deploy/kubernetes.
func renderings(t *testing.T) []rendering {
	t.Helper()
	need(t)
	rendered.Do(func() {
		for _, file := range valuesFiles(t) {
			printed, err := template(t, "--values", file)
			if err != nil {
				t.Fatal(err)
			}
			rendered.all = append(rendered.all, decode(t, strings.TrimSuffix(filepath.Base(file), ".yaml"), printed))
		}
		for _, dir := range overlays(t) {
			printed, err := run(t, *kustomize, "build", dir)
			if err != nil {
				t.Fatal(err)
			}
			rendered.all = append(rendered.all, decode(t, filepath.Base(dir), printed))
		}
	})
	return rendered.all
}

// renderingOf returns the rendering with that name.
func renderingOf(t *testing.T, name string) rendering {
	t.Helper()
	all := renderings(t)
	i := slices.IndexFunc(all, func(r rendering) bool { return r.name == name })
	if i < 0 {
		t.Fatalf("no rendering has the name %s", name)
	}
	return all[i]
}

// at returns the value at a path in an object, or nil.
func at(o any, path ...string) any {
	for _, key := range path {
		fields, _ := o.(object)
		o = fields[key]
	}
	return o
}

// text returns the string at a path, or an empty string.
func text(o any, path ...string) string {
	s, _ := at(o, path...).(string)
	return s
}

// number returns the number at a path, or 0.
func number(o any, path ...string) int {
	n, _ := at(o, path...).(int)
	return n
}

// list returns the list at a path, or nil.
func list(o any, path ...string) []any {
	l, _ := at(o, path...).([]any)
	return l
}

// matches reports whether labels contain all labels of a selector. An empty selector matches nothing.
func matches(selector, labels any) bool {
	want, _ := selector.(object)
	have, _ := labels.(object)
	return len(want) > 0 && !slices.ContainsFunc(keys(want), func(key string) bool { return have[key] != want[key] })
}

// keys returns the keys of an object, sorted.
func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// TestChart_Lint runs helm lint on the chart with each file of values.
func TestChart_Lint(t *testing.T) {
	need(t)
	for _, file := range valuesFiles(t) {
		if printed, err := run(t, *helmTool, "lint", "--strict", chartDir, "--values", file); err != nil {
			t.Errorf("%v\n%s", err, printed)
		}
	}
}

// TestChart_Package checks that the packed chart renders the same objects as the directory.
func TestChart_Package(t *testing.T) {
	need(t)
	dir := t.TempDir()
	if _, err := run(t, *helmTool, "package", chartDir, "--destination", dir); err != nil {
		t.Fatal(err)
	}
	packed, err := filepath.Glob(dir + "/*.tgz")
	if err != nil || len(packed) != 1 {
		t.Fatalf("Helm packed %q: %v", packed, err)
	}
	got, err := run(t, *helmTool, "template", "t", packed[0], "--namespace", "ns", "--values", chartDir+"/ci/everything.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got != renderingOf(t, "everything").text {
		t.Error("the packed chart renders other objects than the directory")
	}
}

// example matches a YAML block of a page.
var example = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// TestChart_ExamplesRender checks that the chart renders with the example values on the page for Kubernetes.
func TestChart_ExamplesRender(t *testing.T) {
	need(t)
	found := 0
	for _, match := range example.FindAllStringSubmatch(readText(t, root+"/deploy/docs/kubernetes.md"), -1) {
		if strings.HasPrefix(match[1], "rules:") {
			continue // values of the metrics adapter
		}
		found++
		name := filepath.Join(t.TempDir(), "values.yaml")
		write(t, name, match[1])
		printed, err := template(t, "--values", chartDir+"/ci/minimal.yaml", "--values", name)
		if err != nil {
			t.Errorf("%v\n%s", err, match[1])
			continue
		}
		r := decode(t, "example", printed)
		w := r.of("Deployment", "StatefulSet")[0]
		template := at(w.object, "spec", "template").(object)
		container := list(template, "spec", "containers")[0].(object)
		relayPod{r, w, template, container, r.environ(t, container)}.config(t)
	}
	if found < 4 {
		t.Errorf("the page has %d examples of values, want 4 at least", found)
	}
}

// TestChart_Notes compares the notes that Helm prints after an installation with the values.
func TestChart_Notes(t *testing.T) {
	need(t)
	for file, wants := range map[string][]string{
		"minimal":   {"(plaintext)", "rollout status statefulset/t-tender", `allows clients from: [{"podSelector":{}}]`, "WARNING: connections of clients are not encrypted", "WARNING: any client can read"},
		"mtls":      {"(TLS)", "t-tender.ns.svc:18443"},
		"istiod":    {"rollout status deployment/t-tender", "WARNING: snapshots are lost with their pod"},
		"directory": {"WARNING: there is one relay", "WARNING: ports.probe is 0"},
	} {
		printed, err := run(t, *helmTool, "install", "t", chartDir, "--dry-run=client", "--namespace", "ns", "--values", chartDir+"/ci/"+file+".yaml")
		if err != nil {
			t.Fatal(err)
		}
		_, notes, _ := strings.Cut(printed, "NOTES:")
		for _, want := range wants {
			if !strings.Contains(notes, want) {
				t.Errorf("%s: the notes are\n%s\nwhich lack %q", file, notes, want)
			}
		}
		if headless, service := strings.Index(notes, "t-tender-headless.ns.svc:"), strings.Index(notes, "t-tender.ns.svc:"); headless < 0 || headless > service {
			t.Errorf("%s: the notes do not begin with the headless Service:\n%s", file, notes)
		}
		if got := strings.Count(notes, "WARNING"); file == "mtls" && got != 0 {
			t.Errorf("%s: the notes have %d warnings, want none:\n%s", file, got, notes)
		}
	}
}

// versions are the versions of Kubernetes that TestChart_Valid uses: the oldest that the chart supports,
// and the newest that kubectl-validate includes.
var versions = []string{"1.27", "1.30"}

// TestChart_Valid validates the renderings with the schemas of Kubernetes, cert-manager and Prometheus
// Operator.
func TestChart_Valid(t *testing.T) {
	need(t)
	for _, version := range versions {
		dir := t.TempDir()
		for _, r := range renderings(t) {
			if version == versions[0] && r.name == "sidecar" {
				continue // it needs 1.29
			}
			text := r.text
			if version == versions[0] { // this version does not support trafficDistribution in Services
				text = regexp.MustCompile(`(?m)^ *trafficDistribution: .*\n`).ReplaceAllLiteralString(text, "")
			}
			write(t, filepath.Join(dir, r.name+".yaml"), text)
		}
		if printed, err := run(t, *validateTool, dir, "--version", version, "--local-crds", *definitions); err != nil {
			t.Errorf("%v\n%s", err, printed)
		}
	}
}

// write writes a file.
func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
