package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFormerNames checks that Load reads each renamed variable under its former name, and that Renamings returns both
// names.
func TestFormerNames(t *testing.T) {
	renamed := 0
	for _, v := range Variables() {
		if v.Former == "" {
			continue
		}
		renamed++
		value := goodValue(t, strings.TrimPrefix(v.Name, prefix))
		want, err := Load([]string{v.Name + "=" + value})
		if err != nil || len(want.Renamings()) > 0 {
			t.Errorf("Load(%s=%s): %v, with %v, want no error and no renaming", v.Name, value, err, want.Renamings())
		}
		for _, environ := range [][]string{
			{v.Former + "=" + value},
			{v.Former + "=" + value, v.Name + "="},
			{v.Former + "=" + value, v.Name + "= " + value},
		} {
			got, err := Load(environ)
			if err != nil || !cmp.Equal(got.Table(), want.Table()) {
				t.Errorf("Load(%q): %v (-want +got)\n%s", environ, err, cmp.Diff(want.Table(), got.Table()))
			}
			if all := got.Renamings(); !slices.Equal(all, []Renaming{{Former: v.Former, Name: v.Name}}) {
				t.Errorf("Load(%q): renamings %v, want that of %s", environ, all, v.Former)
			}
		}
		if got, err := Load([]string{v.Former + "= "}); err != nil || len(got.Renamings()) > 0 {
			t.Errorf("Load of an empty %s: %v, with %v, want it ignored", v.Former, err, got.Renamings())
		}
	}
	if renamed == 0 {
		t.Error("no variable has a former name: remove the mechanism")
	}
}

// goodValue returns a value of a variable in goodValues that is not the default.
func goodValue(t *testing.T, name string) string {
	t.Helper()
	for _, tt := range goodValues {
		if tt.name == name && tt.value != variable(name).defaultValue {
			return tt.value
		}
	}
	t.Fatalf("no good value of %s", name)
	return ""
}

func TestFormerNameWithAnotherValue(t *testing.T) {
	cfg, err := Load([]string{"TENDER_SEND_STALL=2s", "TENDER_SEND_TIMEOUT=3s"})
	if err == nil || !strings.Contains(err.Error(),
		`TENDER_SEND_TIMEOUT="3s": TENDER_SEND_STALL, its former name, is set to another value; remove TENDER_SEND_STALL; `+
			`allowed: `) {
		t.Errorf("Load = %v, want an error that names both", err)
	}
	defaults, _ := Load(nil)
	if cfg.SendStall != defaults.SendStall {
		t.Errorf("SendStall = %v, want the default", cfg.SendStall)
	}
	if _, err := Load([]string{"TENDER_SEND_STALL=never"}); err == nil ||
		!strings.Contains(err.Error(), `TENDER_SEND_TIMEOUT="never": `) ||
		!strings.Contains(err.Error(), `(set as TENDER_SEND_STALL); allowed: `) {
		t.Errorf("Load of a bad value = %v, want an error that names both", err)
	}
}

// TestFormerNamesAreFree checks that no former name is the name of a variable.
func TestFormerNamesAreFree(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range Variables() {
		seen[v.Name] = true
	}
	for _, v := range Variables() {
		if v.Former != "" && seen[v.Former] {
			t.Errorf("%s is the former name of %s and a variable, or that of two", v.Former, v.Name)
		}
		seen[v.Former] = true
	}
}
