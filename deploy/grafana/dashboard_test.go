package main

import (
	"bytes"
	"os"
	"testing"
)

// TestFileIsWritten checks that tender.json is the output of the code.
func TestFileIsWritten(t *testing.T) {
	var want bytes.Buffer
	if err := write(&want); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile("tender.json"); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("tender.json differs from the output of the code (%v); run\n\tgo run ./deploy/grafana >deploy/grafana/tender.json", err)
	}
}
