package main

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/relaytest/jsonspec"
)

// outputs are the types that commands print with -o json and that are no response of the admin API alone, by command.
var outputs = map[string]reflect.Type{
	"clients":    reflect.TypeFor[listedClients](),
	"clients ID": reflect.TypeFor[foundClients](),
	"status":     reflect.TypeFor[wholeStatus](),
	"wait":       reflect.TypeFor[waitState](),
}

// outputFile has the schemas of outputs.
const outputFile = "../../deploy/docs/output.schema.json"

// TestOutputSchemas compares output.schema.json with the types. With -update it writes the file.
func TestOutputSchemas(t *testing.T) {
	s := jsonspec.New(t, "#/$defs/", map[string]string{".": "", "../../relay/admin": "", "../../relay/rollout": "Rollout"})
	commands := jsonspec.Object{}
	for command, of := range outputs {
		commands["tender "+command] = s.Ref(of, false)
	}
	text, err := json.MarshalIndent(jsonspec.Object{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Output of Tender's commands with -o json",
		"properties": commands, "$defs": s.All,
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	got, err := os.ReadFile(outputFile)
	if *update {
		err = os.WriteFile(outputFile, text, 0o644)
	} else if diff := cmp.Diff(string(text), string(got)); diff != "" {
		t.Errorf("%s differs from the commands; run\n\tgo test ./cmd/tender -run TestOutputSchemas -update\n(-want +got)\n%s", outputFile, diff)
	}
	if err != nil {
		t.Error(err)
	}
}

// checkOutput fails the test unless the output of a command matches its schema.
func checkOutput(t *testing.T, command, output string) {
	t.Helper()
	text, err := os.ReadFile(outputFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := jsonspec.NewValidator(t, text, "#/$defs/").Check(outputs[command].Name(), []byte(output)); err != nil {
		t.Errorf("tender %s -o json: %v\n%s", command, err, output)
	}
}
