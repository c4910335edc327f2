package main

import (
	"bytes"
	"os"
	"testing"
)

// TestFileIsWritten holds tender.json to the code.
func TestFileIsWritten(t *testing.T) {
	var want bytes.Buffer
	if err := write(&want); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile("tender.json"); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("tender.json is not what the code writes (%v); run\n\tgo run ./deploy/grafana >deploy/grafana/tender.json", err)
	}
}
