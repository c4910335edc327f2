package config

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnknownVariables(t *testing.T) {
	tests := []struct{ name, want string }{
		{"TENDER_ORIGN", "TENDER_ORIGN: unknown variable; did you mean TENDER_ORIGIN?"},
		{"TENDER_LISTENER", "TENDER_LISTENER: unknown variable; did you mean TENDER_LISTEN?"},
		{"TENDER_MAX_CONNECTION_PER_ADDRESS",
			"TENDER_MAX_CONNECTION_PER_ADDRESS: unknown variable; did you mean TENDER_MAX_CONNECTIONS_PER_ADDRESS?"},
		{"TENDER_PROXY_WASM", "TENDER_PROXY_WASM: unknown variable; allowed: the variables that tender check lists"},
		{"TENDER_", "TENDER_: unknown variable; allowed: the variables that tender check lists"},
		{"TENDER_\x1b[31m", `"TENDER_\x1b[31m": unknown variable; allowed: the variables that tender check lists`},
		{"TENDER_ORIGIN_EAST_1_TLS_CA", `TENDER_ORIGIN_EAST_1_TLS_CA: TENDER_ORIGINS has no origin "east-1"`},
		{"TENDER_ORIGIN_PROXY", "TENDER_ORIGIN_PROXY: not supported by this version; allowed: the variables that tender " +
			"check lists"},
	}
	for _, tt := range tests {
		_, err := Load([]string{tt.name + "=secret"})
		if err == nil || err.Error() != tt.want {
			t.Errorf("Load(%q) = %v, want %s", tt.name, err, tt.want)
		}
	}
}

// TestPlannedVariables checks that variables of later versions have an error of their own, and that none of them
// exists.
func TestPlannedVariables(t *testing.T) {
	for _, name := range []string{
		"ORIGIN_PROXY",
	} {
		_, err := Load([]string{prefix + name + "=x"})
		if err == nil || !strings.Contains(err.Error(), prefix+name+": not supported by this version") {
			t.Errorf("Load(%s%s) = %v, want not supported", prefix, name, err)
		}
		if kubernetes.MatchString(name) {
			t.Errorf("%s%s is a name that Kubernetes sets", prefix, name)
		}
	}
	for _, v := range variables {
		if planned.MatchString(v.name) {
			t.Errorf("%s%s is planned, but exists", prefix, v.name)
		}
	}
}

// TestKubernetesVariables checks that the variables that Kubernetes sets for Services named tender or tender-x are
// ignored, and that no variable of Tender has such a name.
func TestKubernetesVariables(t *testing.T) {
	environ := []string{
		"TENDER_SERVICE_HOST=10.96.0.7", "TENDER_SERVICE_PORT=18000", "TENDER_SERVICE_PORT_XDS=18000",
		"TENDER_PORT=tcp://10.96.0.7:18000", "TENDER_PORT_18000_TCP=tcp://10.96.0.7:18000",
		"TENDER_PORT_18000_TCP_PROTO=tcp", "TENDER_PORT_18000_TCP_PORT=18000", "TENDER_PORT_18000_TCP_ADDR=10.96.0.7",
		"TENDER_PORT_53_UDP_ADDR=10.96.0.7", "TENDER_PORT_99_SCTP=x",
		"TENDER_X_SERVICE_HOST=10.96.0.8", "TENDER_X_SERVICE_PORT=18080", "TENDER_X_SERVICE_PORT_HTTP_ADMIN=18080",
		"TENDER_X_PORT=tcp://10.96.0.8:18080", "TENDER_X_PORT_18080_TCP_ADDR=10.96.0.8",
	}
	if _, err := Load(environ); err != nil {
		t.Errorf("Load of the variables of Kubernetes: %v", err)
	}
	for _, name := range []string{"TENDER_PORTS=1", "TENDER_SERVICE=1", "TENDER_PORT_X=1"} {
		if _, err := Load([]string{name}); err == nil {
			t.Errorf("Load(%q) returns no error, although Kubernetes sets no such name", name)
		}
	}
	for _, v := range variables {
		if kubernetes.MatchString(v.name) {
			t.Errorf("%s%s is a name that Kubernetes sets", prefix, v.name)
		}
	}
}

// advises matches the sentence of a text that describes when to change the variable.
var advises = regexp.MustCompile(`\b(Set|Change|Raise|Lower|Turn|Use|Add) (it|targets|` + "`none`" +
	`)\b.*\b(when|always|together)\b`)

// TestTextsMatchFields checks that each field has a text and each text a field, that texts are single lines, and that the
// values of tags are valid.
func TestTextsMatchFields(t *testing.T) {
	cfg, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	fields := cfg.fields()
	for i := range variables {
		v := &variables[i]
		field, ok := fields[v.name]
		if !ok {
			t.Fatalf("%s%s has no field in Config", prefix, v.name)
		}
		delete(fields, v.name)
		if shown := show(field); v.preset != "" && shown != v.preset {
			t.Errorf("%s%s: the default %q is shown as %q", prefix, v.name, v.preset, shown)
		}
		if (v.bounds != nil || v.words != nil) == (syntaxes[v.typ] != "") {
			t.Errorf("%s%s of type %v must have a syntax, or the tag oneof or range", prefix, v.name, v.typ)
		}
		for _, bound := range v.bounds {
			if _, err := number(v.typ, bound); err != nil || len(v.bounds) != 2 {
				t.Errorf("%s%s: the bounds %q: %v", prefix, v.name, v.bounds, err)
			}
		}
		for _, text := range []string{v.meaning, v.allowed(), v.advice} {
			if text == "" || strings.Contains(text, "\n") || strings.HasSuffix(v.meaning, ".") {
				t.Errorf("%s%s: %q, want one line, and no period after the meaning", prefix, v.name, text)
			}
		}
		if !advises.MatchString(v.advice) {
			t.Errorf("%s%s: %q does not describe when to change it", prefix, v.name, v.advice)
		}
	}
	for name := range fields {
		t.Errorf("the field for %s%s has no text", prefix, name)
	}
	for field := range reflect.TypeFor[Config]().Fields() {
		if field.IsExported() && field.Tag.Get("env") == "" {
			t.Errorf("the field %s has no variable", field.Name)
		}
	}
	described := slices.Sorted(maps.Keys(unset))
	texts := slices.Concat(slices.Collect(maps.Values(needs))...)
	for _, name := range append(described, texts...) {
		if !slices.ContainsFunc(variables, func(v variable) bool { return v.name == name }) {
			t.Errorf("there is a text for %s%s, which does not exist", prefix, name)
		}
	}
	if slices.Sort(texts); len(slices.Compact(slices.Clone(texts))) < len(texts) {
		t.Errorf("two texts of needs have the same variable: %q", texts)
	}
}

func TestTableEscapes(t *testing.T) {
	cfg, err := Load([]string{`TENDER_NODE_METADATA={"a":"\u001b[31m"}`, "TENDER_ORIGIN=unix:/tmp/\x1b[2J"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range cfg.Table() {
		if strings.Contains(s.Value, "\x1b") {
			t.Errorf("%s has the value %q with a control character", s.Variable, s.Value)
		}
	}
}

func TestSize(t *testing.T) {
	tests := []struct {
		text string
		want Size
		back string
	}{
		{"0", 0, "0B"},
		{"1", 1, "1B"},
		{"1B", 1, "1B"},
		{"1024", 1024, "1KiB"},
		{"1025", 1025, "1025B"},
		{"3 MiB", 3 << 20, "3MiB"},
		{"8589934591GiB", (1<<33 - 1) << 30, "8589934591GiB"},
	}
	for _, tt := range tests {
		var s Size
		if err := s.UnmarshalText([]byte(tt.text)); err != nil || s != tt.want || s.String() != tt.back {
			t.Errorf("UnmarshalText(%q) = %d (%s), %v, want %d (%s)", tt.text, int64(s), s, err, int64(tt.want), tt.back)
		}
	}
	for _, text := range []string{"", "B", "KiB", "1K", "1kib", "+1", "-1", "1.5MiB", "8589934592GiB", "0x10"} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("UnmarshalText(%q) = %d, want an error", text, s)
		}
	}
}

// TestConfigurationPage checks that deploy/docs/configuration.md has the table of variables. With -update, it writes
// the table.
func TestConfigurationPage(t *testing.T) {
	const name = "../../deploy/docs/configuration.md"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), tableBegins)
	table, after, ok2 := strings.Cut(rest, tableEnds)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the lines %s and %s: insert them at the place of the table of variables, then run\n\tgo test "+
			"./relay/config -run TestConfigurationPage -update",
			name, strings.TrimSpace(tableBegins), tableEnds)
	}
	want := Page()
	if strings.TrimSpace(table) == strings.TrimSpace(want) {
		return
	}
	if !*update {
		t.Fatalf("%s has an outdated table of variables; run\n\tgo test ./relay/config -run TestConfigurationPage "+
			"-update\n(-want +got)\n%s",
			name, cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(table)))
	}
	if err := os.WriteFile(name, []byte(before+tableBegins+"\n"+want+"\n"+tableEnds+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestTableIsPlainText checks that the table of tender check contains no Markdown.
func TestTableIsPlainText(t *testing.T) {
	for _, s := range (Config{}).Table() {
		if strings.ContainsRune(s.Meaning, '`') || strings.Contains(s.Meaning, "](") {
			t.Errorf("%s: the meaning has Markdown: %s", s.Variable, s.Meaning)
		}
	}
}

// initialisms are the words of variables that the names of fields have in capitals.
var initialisms = []string{"CA", "CDS", "EDS", "ID", "LRS", "REST", "TLS"}

// TestFieldNames checks that a field has the name of its variable in CamelCase, in Config as in Access.
func TestFieldNames(t *testing.T) {
	for _, of := range []reflect.Type{reflect.TypeFor[Config](), reflect.TypeFor[Access]()} {
		for field := range of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("env"), ",")
			want := ""
			for word := range strings.SplitSeq(name, "_") {
				if !slices.Contains(initialisms, word) && word != "" {
					word = word[:1] + strings.ToLower(word[1:])
				}
				want += word
			}
			if name != "" && !strings.HasSuffix(name, "_") && field.Name != want {
				t.Errorf("%s.%s has the variable %s%s, want the name %s", of.Name(), field.Name, prefix, name, want)
			}
		}
	}
}
