package relay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/xdstender/tender/relay/config"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/rollout"
)

// settingsFile lists the settings that each value of a variable sets. With -update, TestSettingsArrive writes it.
const settingsFile = "testdata/settings.txt"

// A tenderVariable is a variable with its field of Config, found by reflection.
type tenderVariable struct {
	name  string
	field reflect.StructField
	index []int // of the field in Config
}

// tenderVariables returns the variables of all fields of a struct. Their names have a prefix.
func tenderVariables(of reflect.Type, prefix string, index []int) (all []tenderVariable) {
	for field := range of.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("env"), ",")
		at := append(slices.Clip(index), field.Index...)
		if nested, ok := strings.CutPrefix(options, "prefix="); ok {
			all = append(all, tenderVariables(field.Type, prefix+nested, at)...)
		} else if name != "" {
			all = append(all, tenderVariable{prefix + name, field, at})
		}
	}
	return all
}

// samples has a value of each type that the tag oneof does not describe. %d makes values of variables differ.
var samples = map[reflect.Type]string{
	reflect.TypeFor[config.Addresses]():     "127.0.0.1:%[1]d,192.0.2.1:%[1]d",
	reflect.TypeFor[config.CheckURL]():      "http://check.example:%d",
	reflect.TypeFor[config.Headers]():       "x-other=%d",
	reflect.TypeFor[config.Locality]():      "other-%d",
	reflect.TypeFor[config.Metadata]():      `{"other":%d}`,
	reflect.TypeFor[config.NodeFields]():    "metadata.other-%d",
	reflect.TypeFor[config.Origins]():       "other=other.example:%d",
	reflect.TypeFor[config.Path]():          "/other-%d",
	reflect.TypeFor[config.Patterns]():      "other-%d",
	reflect.TypeFor[config.PeerTargets]():   "peer.example:%d",
	reflect.TypeFor[config.PushIntervals](): "*=%dms",
	reflect.TypeFor[config.Required]():      "cds:c%d",
	reflect.TypeFor[rollout.Stages]():       "id=other-%d 1m",
	reflect.TypeFor[config.Routes]():        "type:example.com/a.b.C%[1]d=other;authority:a%[1]d=other",
	reflect.TypeFor[config.ServerName]():    "other-%d.example",
	reflect.TypeFor[config.Size]():          "%dMiB",
	reflect.TypeFor[config.StagedTypes]():   "example.com/a.b.C%d",
	reflect.TypeFor[config.Targets]():       "other.example:%d",
	reflect.TypeFor[config.Text]():          "other-%d",
	reflect.TypeFor[config.TrustDomains]():  "other-%d.example=/other",
	reflect.TypeFor[config.WildcardTypes](): "example.com/a.b.C%d",
	reflect.TypeFor[int]():                  "%d",
	reflect.TypeFor[time.Duration]():        "%ds",
}

// values returns valid values: all words of an enumeration or a switch, or the sample of the type. before has the
// variables before v. The samples of two variables of a type differ, so that each setting shows whose value it has.
func (v tenderVariable) values(t *testing.T, before []tenderVariable) (all []string) {
	tag := func(name string) []string {
		return strings.FieldsFunc(v.field.Tag.Get(name), func(r rune) bool { return r == ',' })
	}
	n := 61 // within the bounds of all numbers
	for _, other := range before {
		if other.field.Type == v.field.Type {
			n++
		}
	}
	sample := samples[v.field.Type]
	switch words := tag("oneof"); {
	case len(words) > 0:
		all = words
	case v.field.Type.Kind() == reflect.Bool:
		all = []string{"on", "off"}
	case sample != "":
		all = []string{fmt.Sprintf(sample, n)}
	default:
		t.Fatalf("samples has no value of %v, the type of TENDER_%s", v.field.Type, v.name)
	}
	return append(all, tag("zero")...)
}

// in returns the field of a configuration.
func (v tenderVariable) in(cfg *Config) reflect.Value {
	return reflect.ValueOf(cfg).Elem().FieldByIndex(v.index)
}

// differs reports whether the field has different values in two configurations.
func (v tenderVariable) differs(a, b *Config) bool {
	return !reflect.DeepEqual(v.in(a).Interface(), v.in(b).Interface())
}

var namedVariable = regexp.MustCompile(`TENDER_([A-Z_]+)`)

// configWith returns the configuration with a value of a variable. If LoadConfig refuses it, the error names the
// variables that must be set too; they get other values than their defaults.
func configWith(t *testing.T, all []tenderVariable, name, value string) Config {
	t.Helper()
	base := check.Must(LoadConfig(nil))
	environ := map[string]string{name: value}
	for {
		var entries []string
		for name, value := range environ {
			entries = append(entries, "TENDER_"+name+"="+value)
		}
		cfg, err := LoadConfig(entries)
		if err == nil {
			return cfg
		}
		before := len(environ)
		for line := range strings.Lines(err.Error()) {
			cause, _, _ := strings.Cut(line, "; allowed:")
			for _, match := range namedVariable.FindAllStringSubmatch(cause, -1) {
				i := slices.IndexFunc(all, func(v tenderVariable) bool { return v.name == match[1] })
				if _, set := environ[match[1]]; set || i < 0 {
					continue
				}
				values := all[i].values(t, all[:i])
				environ[match[1]] = values[max(0, slices.IndexFunc(values, func(value string) bool {
					with, _ := LoadConfig([]string{"TENDER_" + match[1] + "=" + value})
					return all[i].differs(&base, &with)
				}))]
			}
		}
		if len(environ) == before {
			t.Fatalf("TENDER_%s=%s: LoadConfig(%q): %v", name, value, entries, err)
		}
	}
}

// settingLeaves returns all settings by path: those of the relay, of its credentials, and of the parts that the relay
// creates from single settings.
func settingLeaves(t *testing.T, cfg *Config) map[string]string {
	t.Helper()
	s := settingsOf(cfg, "")
	leaves := check.Leaves("credentials", config.CredentialSettingsOf(cfg))
	var node map[string]any
	check.OK(t, json.Unmarshal(check.Must(protojson.Marshal(s.node)), &node))
	for field, value := range node {
		leaves["node."+field] = string(check.Must(json.Marshal(value)))
	}
	maps.Copy(leaves, check.Leaves("listeners", new(listeners).configured(s.addresses)))
	maps.Copy(leaves, check.Leaves("router", newRouter(s)))
	s.node, s.addresses, s.routes = nil, addresses{}, nil // the leaves have them
	maps.Copy(leaves, check.Leaves("relay", *s))
	if s.pushInterval != nil {
		leaves["relay.pushInterval"] = s.pushInterval("example.com/a.b.C").String()
	}
	return leaves
}

// TestSettingsArrive sets each variable to all words of its tags, or to a value of its type that no other variable has.
// It compares what the relay hands to its parts with testdata/settings.txt: which settings the variable changes, and
// their values. So no setting can lose one of its uses, be inverted, or have the value of another variable. Variables
// that are no settings of the relay are read by tender serve (cmd/tender/serve.go).
func TestSettingsArrive(t *testing.T) {
	base := check.Must(LoadConfig(nil))
	all := tenderVariables(reflect.TypeFor[Config](), "", nil)
	inServe := selectors(t, "cmd/tender/serve.go")
	var text strings.Builder
	changed := map[string]bool{}
	for i, v := range all {
		values := v.values(t, all[:i])
		arrived, paths := make([]map[string]string, len(values)), map[string]bool{}
		isDefault := 0
		for j, value := range values {
			cfg := configWith(t, all, v.name, value)
			arrived[j] = settingLeaves(t, &cfg)
			if !v.differs(&cfg, &base) {
				isDefault++
				continue
			}
			v.in(&cfg).Set(v.in(&base))
			differ := differences(settingLeaves(t, &cfg), arrived[j])
			if len(differ) == 0 && inServe["cfg."+v.field.Name] {
				arrived[j]["cmd/tender/serve.go"] = "reads it"
				differ = map[string]bool{"cmd/tender/serve.go": true}
			}
			if len(differ) == 0 {
				t.Errorf("TENDER_%s=%s changes no setting of the relay", v.name, value)
			}
			maps.Copy(paths, differ)
		}
		if isDefault == len(values) {
			t.Errorf("TENDER_%s: all of the values %q are its default", v.name, values)
		}
		maps.Copy(changed, paths)
		for j, value := range values {
			fmt.Fprintf(&text, "TENDER_%s=%s\n", v.name, value)
			for _, path := range slices.Sorted(maps.Keys(paths)) {
				if is, ok := arrived[j][path]; ok {
					fmt.Fprintf(&text, "\t%s = %s\n", path, cmp.Or(is, `""`))
				}
			}
		}
	}
	text.WriteString("\nSet by the relay, or by no variable:\n")
	for _, path := range slices.Sorted(maps.Keys(settingLeaves(t, &base))) {
		if !changed[path] {
			text.WriteString("\t" + path + "\n")
		}
	}
	compareSettings(t, text.String())
}

// compareSettings compares the settings with settingsFile, or updates it.
func compareSettings(t *testing.T, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(settingsFile, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(settingsFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s differs; review it and run go test ./relay -run TestSettingsArrive -update (-file +got):\n%s",
			settingsFile, diff)
	}
}

// differences returns the paths whose values differ.
func differences(a, b map[string]string) map[string]bool {
	differ := map[string]bool{}
	for _, leaves := range []map[string]string{a, b} {
		for path := range leaves {
			was, is := a[path], b[path]
			differ[path] = was != is
		}
	}
	maps.DeleteFunc(differ, func(_ string, is bool) bool { return !is })
	return differ
}

// selectors returns the selectors x.Name in the files of the program that match a pattern, except settings.go.
func selectors(t *testing.T, pattern string) map[string]bool {
	found := map[string]bool{}
	for name, file := range parseModule(t) {
		if is, _ := path.Match(pattern, name); !is || strings.HasSuffix(name, "_test.go") || path.Base(name) == "settings.go" {
			continue
		}
		for n := range ast.Preorder(file) {
			if selector, ok := n.(*ast.SelectorExpr); ok {
				on, _ := selector.X.(*ast.Ident)
				if inner, ok := selector.X.(*ast.SelectorExpr); ok {
					on = inner.Sel
				}
				if on != nil {
					found[on.Name+"."+selector.Sel.Name] = true
				}
			}
		}
	}
	return found
}

// TestSettingsAreUsed checks that the relay uses each field of settings, and reads no field of Config elsewhere, so that
// TestSettingsArrive sees all that arrives.
func TestSettingsAreUsed(t *testing.T) {
	used := selectors(t, "relay/*.go")
	for field := range reflect.TypeFor[settings]().Fields() {
		if !used["settings."+field.Name] && !used["s."+field.Name] {
			t.Errorf("the relay does not use settings.%s", field.Name)
		}
	}
	for name, file := range parseModule(t) {
		if path.Dir(name) != "relay" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		for n := range ast.Preorder(file) {
			field, ok := n.(*ast.Field)
			if !ok {
				continue
			}
			kind := field.Type
			if pointer, ok := kind.(*ast.StarExpr); ok {
				kind = pointer.X
			}
			if id, ok := kind.(*ast.Ident); ok && id.Name == "Config" && !slices.Contains(
				[]string{"relay/settings.go", "relay/configuration.go"}, name) && !isParameterOfNew(file, field) {
				t.Errorf("%s: a field or parameter %v is a Config; use settings", name, field.Names)
			}
		}
	}
}

// isParameterOfNew reports whether a field is a parameter of New.
func isParameterOfNew(file *ast.File, field *ast.Field) bool {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "New" && slices.Contains(f.Type.Params.List, field) {
			return true
		}
	}
	return false
}

// ownDefault matches a default that a package applies to a field of its own configuration.
var ownDefault = regexp.MustCompile(`(\w+)(?::| =)\s+cmp\.Or\(\w+\.\w+, (\S.*)\),?\n`)

// TestDefaultsAgree checks that the defaults of other packages, which programs and tests without Config use, are those of
// the variables that set the same fields.
func TestDefaultsAgree(t *testing.T) {
	cfg := check.Must(LoadConfig(nil))
	leaves, compared := settingLeaves(t, &cfg), 0
	for file, part := range map[string]string{
		"downstream/config.go": "downstream", "downstream/guard/limits.go": "downstream", "upstream/config.go": "upstream",
		"upstream/files/config.go": "files",
	} {
		text := string(check.Must(os.ReadFile("../" + file)))
		for _, match := range ownDefault.FindAllStringSubmatch(text, -1) {
			leaf := leaves["relay."+part+"."+match[1]]
			if d, err := time.ParseDuration(leaf); err == nil {
				leaf = fmt.Sprint(int64(d))
			}
			units := strings.NewReplacer("time.Second", fmt.Sprint(int64(time.Second)), "time.Minute", fmt.Sprint(int64(time.Minute)))
			value, err := types.Eval(token.NewFileSet(), nil, token.NoPos, units.Replace(match[2]))
			if leaf == "0" || leaf == "" || err != nil {
				continue // no variable sets it
			}
			if compared++; value.Value.ExactString() != leaf {
				t.Errorf("%s: the default of %s is %s, and its variable sets %s", file, match[1], match[2], leaf)
			}
		}
	}
	if compared < 10 {
		t.Errorf("compared %d defaults, want 10 at least", compared)
	}
}
