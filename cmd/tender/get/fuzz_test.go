package get

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
)

// FuzzPrinter verifies that output for any resource contains no unprintable characters, which could control a terminal,
// and that JSON output is valid.
func FuzzPrinter(f *testing.F) {
	cluster, err := proto.Marshal(&clusterpb.Cluster{Name: "a\x1b[31m\u202e", AltStatName: "b\nc"})
	if err != nil {
		f.Fatal(err)
	}
	const typeURL = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	f.Add("a\x1b]0;x\a", "1\n2", typeURL, "alias\u2028", cluster)
	f.Add("", "", "", "", []byte(nil))
	f.Add("a", "b", "type.googleapis.com/unknown.Type\r", "\xff", []byte{1, 2, 3})
	f.Add("a", "b", typeURL, "c", []byte{0xff})
	f.Fuzz(func(t *testing.T, name, version, typeURL, alias string, value []byte) {
		it := item{name: name, version: version, typeURL: typeURL, value: value, aliases: []string{alias}}
		for _, output := range Outputs {
			var out, changes, notes bytes.Buffer
			p := &printer{format: output, out: &out, notes: &notes}
			if err := p.all([]item{it}); err != nil {
				t.Errorf("print %q as %s: %v", it, output, err)
			}
			followed := &printer{format: output, out: &changes, notes: &notes}
			if err := followed.changes([]change{{event: "added", item: it, why: name}}); err != nil {
				t.Errorf("print the change of %q as %s: %v", it, output, err)
			}
			p.note(name)
			for _, text := range []string{out.String(), changes.String(), notes.String()} {
				if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
					t.Errorf("output of %q as %s contains unprintable characters: %q", it, output, text)
				}
			}
			if output == "json" && (!json.Valid(out.Bytes()) || !json.Valid(changes.Bytes()) || strings.Count(changes.String(), "\n") != 1) {
				t.Errorf("output of %q as JSON: %q and the change %q, want valid JSON and one line for the change", it, &out, &changes)
			}
		}
	})
}
