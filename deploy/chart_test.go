package deploy_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/config"
)

// The files of the chart.
const (
	chartDir   = "helm/tender"
	chartFile  = chartDir + "/Chart.yaml"
	valuesFile = chartDir + "/values.yaml"
	schemaFile = chartDir + "/values.schema.json"
	readmeFile = chartDir + "/README.md"
)

// TestChartFilesAreCopies checks that the chart's copies of files equal the originals. They are copies because Helm packs
// only files in the directory of the chart, and some tools that fetch charts from Git ignore symbolic links.
func TestChartFilesAreCopies(t *testing.T) {
	for copied, original := range map[string]string{
		"tender.rules.yaml": "prometheus/tender.rules.yaml",
		"tender.json":       "grafana/tender.json",
	} {
		hold(t, chartDir+"/files/"+copied, readText(t, original))
	}
}

// released matches the heading of a release in the changelog.
var released = regexp.MustCompile(`(?m)^## \[([0-9]+\.[0-9]+\.[0-9]+)\]`)

// imageVersion matches a version in an image reference, in the name of a release file, or in a make image command.
var imageVersion = regexp.MustCompile(`(?:tender[:_]|VERSION=|dist/image:|newTag: )(v[0-9][0-9a-zA-Z.]*)`)

// TestChartVersions checks that the chart, the manifests and the pages install the same version of the image, which is the
// appVersion of the chart. It must be the newest release, if any. deploy/release rejects a release of another version.
func TestChartVersions(t *testing.T) {
	var chart object
	readYAML(t, chartFile, &chart)
	if version, _ := chart["appVersion"].(string); !regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+$`).MatchString(version) {
		t.Errorf("%s: appVersion is %q, want a tag such as v1.2.3", chartFile, version)
	}
	newest := released.FindStringSubmatch(readText(t, root+"/CHANGELOG.md"))
	if newest != nil && chart["appVersion"] != "v"+newest[1] {
		t.Errorf("%s: appVersion is %v, and the newest release of CHANGELOG.md is %s", chartFile, chart["appVersion"], newest[1])
	}
	for file, least := range map[string]int{
		"docs/install.md": 5, "docs/kubernetes.md": 1, "kubernetes/base/kustomization.yaml": 1, "kubernetes/sidecar/kustomization.yaml": 1,
	} {
		found := imageVersion.FindAllStringSubmatch(readText(t, file), -1)
		for _, match := range found {
			if match[1] != chart["appVersion"] {
				t.Errorf("%s has %q, and appVersion of the chart is %v", file, match[0], chart["appVersion"])
			}
		}
		if len(found) < least {
			t.Errorf("%s names %d versions of the image, want %d at least", file, len(found), least)
		}
	}
}

// variableLines matches the lines of values.schema.json that are generated from the table of variables.
var variableLines = regexp.MustCompile(`(?m)(^ *"TENDER_[A-Z0-9_]+": .*\n)+`)

// TestChartSchemaHasEveryVariable checks that the schema of config accepts each variable of Tender, and no
// other.
func TestChartSchemaHasEveryVariable(t *testing.T) {
	var lines []string
	for _, v := range config.Variables() {
		lines = append(lines, fmt.Sprintf(`        %q: {"$ref": "#/definitions/text"}`, v.Name))
	}
	schema := readText(t, schemaFile)
	if n := len(variableLines.FindAllString(schema, -1)); n != 1 {
		t.Fatalf("%s has %d runs of variables, want 1", schemaFile, n)
	}
	hold(t, schemaFile, variableLines.ReplaceAllLiteralString(schema, strings.Join(lines, ",\n")+"\n"))
}

// typedValue matches a variable in the template tender.typed, the format of its value if that is a number, and the path of
// the value of the chart.
var typedValue = regexp.MustCompile(`"(TENDER_\w+)" \(?(?:printf "([^"]+)" \(int )?\$v\.([\w.]+)\)*\s`)

// TestChartFollowsVariables checks that the default of each value of the chart that sets a variable is empty or the
// default of the variable, and that the schema of the value has the words or the bounds of the variable.
func TestChartFollowsVariables(t *testing.T) {
	variables := map[string]config.Variable{}
	for _, v := range config.Variables() {
		variables[v.Name] = v
	}
	var values, schema object
	readYAML(t, valuesFile, &values)
	readYAML(t, schemaFile, &schema)
	template := readText(t, chartDir+"/templates/_config.tpl")
	found := typedValue.FindAllStringSubmatch(template, -1)
	if len(found) < 10 {
		t.Errorf("the template sets %d variables by values, want 10 at least", len(found))
	}
	for _, match := range found {
		v, format, path := variables[match[1]], match[2], match[3]
		value, property := any(values), schema
		for name := range strings.SplitSeq(path, ".") {
			value = value.(object)[name]
			property = property["properties"].(object)[name].(object)
		}
		if format != "" {
			value = fmt.Sprintf(strings.ReplaceAll(format, "%d", "%v"), value)
		}
		if value != "" && value != v.Preset {
			t.Errorf("%s: the default of %s sets %s=%v, want %s", valuesFile, path, v.Name, value, v.Preset)
		}
		if words := fmt.Sprint(append([]string{""}, v.Words...)); v.Words != nil && fmt.Sprint(property["enum"]) != words {
			t.Errorf("%s: the words of %s are %v, want those of %s: %s", schemaFile, path, property["enum"], v.Name, words)
		}
		if v.Bounds == nil || property["$ref"] != nil {
			continue
		}
		for i, name := range []string{"minimum", "maximum"} {
			bound, err := time.ParseDuration(v.Bounds[i])
			if n, _ := property[name].(float64); err != nil || n != bound.Seconds() {
				t.Errorf("%s: the %s of %s is %v, want %s of %s", schemaFile, name, path, property[name], v.Bounds[i], v.Name)
			}
		}
	}
	if admin := fmt.Sprintf(`"TENDER_ADMIN_LISTEN" (printf "%s,`, variables["TENDER_ADMIN_LISTEN"].Preset); !strings.Contains(template, admin) {
		t.Errorf("the template does not contain %s", admin)
	}
}

// A described is a value of the chart with the description for its row in the README.
type described struct{ path, meaning string }

var (
	keyLine     = regexp.MustCompile(`^( *)([A-Za-z]\w*):`)
	meaningLine = regexp.MustCompile(`^ *# -- (.*)$`)
)

// describedValues returns the values with a description, in the order of the file. It fails the test if a
// value inside a described value has its own description.
func describedValues(t *testing.T) (all []described) {
	t.Helper()
	var path []string
	meaning, inside := "", -1 // inside is the depth of the enclosing described value, or -1
	for line := range strings.Lines(readText(t, valuesFile)) {
		line = strings.TrimRight(line, "\n")
		if match := meaningLine.FindStringSubmatch(line); match != nil {
			meaning = match[1]
			continue
		}
		match := keyLine.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		depth := len(match[1]) / 2
		path = append(path[:depth:depth], match[2])
		if inside >= 0 && depth > inside {
			if meaning != "" {
				t.Errorf("%s describes %s, which is inside a described value", valuesFile, strings.Join(path, "."))
			}
			continue
		}
		inside = -1
		if meaning != "" {
			all = append(all, described{strings.Join(path, "."), meaning})
			meaning, inside = "", depth
		} else if strings.TrimSpace(strings.TrimPrefix(line, match[0])) != "" {
			t.Errorf("%s does not describe %s", valuesFile, strings.Join(path, "."))
		}
	}
	return all
}

// TestChartREADMEHasEveryValue checks that the table in the chart's README lists all described values.
func TestChartREADMEHasEveryValue(t *testing.T) {
	var values object
	readYAML(t, valuesFile, &values)
	var table strings.Builder
	table.WriteString("\n| Value | Default | Meaning |\n| --- | --- | --- |\n")
	for _, v := range describedValues(t) {
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", v.path, preset(t, values, v.path), v.meaning)
	}
	const begin, end = "<!-- values -->\n", "\n<!-- /values -->"
	readme := readText(t, readmeFile)
	before, rest, isBegun := strings.Cut(readme, begin)
	_, after, isEnded := strings.Cut(begin+rest, strings.TrimPrefix(end, "\n"))
	if !isBegun || !isEnded {
		t.Fatalf("%s has no place for the table of values", readmeFile)
	}
	hold(t, readmeFile, before+begin+table.String()+end+after)
}

// preset returns the default of a value in the format of the table; for a wide one, a link.
func preset(t *testing.T, values object, path string) string {
	t.Helper()
	value := any(values)
	for name := range strings.SplitSeq(path, ".") {
		value = value.(object)[name]
	}
	if slices.Contains([]any{nil, ""}, value) {
		return ""
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	const widest = 60 // characters, so that the table fits a page
	if len(text) > widest {
		return "in [values.yaml](values.yaml)"
	}
	return "`" + strings.Trim(string(text), `"`) + "`"
}
