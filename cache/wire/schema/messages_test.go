package schema_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire/schema"
)

// parseNodes returns the nodes of a file as "line:id".
func parseNodes(name, data string) (found []string, err error) {
	var nodes []*corepb.Node
	var lines []int
	err = schema.ParseMessages(name, []byte(data), "node", func(line int) proto.Message {
		n := new(corepb.Node)
		nodes, lines = append(nodes, n), append(lines, line)
		return n
	})
	for i, n := range nodes {
		found = append(found, fmt.Sprintf("%d:%s", lines[i], n.GetId()))
	}
	return found, err
}

func TestParseMessages(t *testing.T) {
	tests := []struct{ name, data, want string }{
		{"one", "id: a", "1:a"},
		{"JSON", "\n{\n\t\"id\": \"a\"}", "2:a"},
		{"in a field", "admin: {}\nnode:\n  id: a\n", "2:a"},
		{"in a field of JSON", "{\"admin\": 1,\n\t\"node\": {\"id\": \"a\"}}", "2:a"},
		{"several", "id: a\n---\nid: b\n--- # c\n\nid: c\n", "1:a 3:b 6:c"},
		{"on the line of the mark", "--- {id: a}\n---\t\n{id: b}\n---\r\nid: c\r\n", "1:a 3:b 5:c"},
		{"empty ones between", "---\n---\n# nothing\n---\nid: a\n---\n", "5:a"},
		{"a text that looks like a mark", "id: |-\n  a\n  ---\n", "1:a\n---"},
		{"more than a mark", "id: a\n----: b\n", ""},
		{"merged keys", "x: &x {id: a}\nnode:\n  <<: *x\n  id: b\n", "2:b"},
		{"all fields at their defaults", "{}", "1:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			found, err := parseNodes("n.yaml", tt.data)
			if tt.want == "" {
				if err == nil || !strings.HasPrefix(err.Error(), "n.yaml:") {
					t.Fatalf("got %q, %v, want an error that names the file", found, err)
				}
				return
			}
			if got := strings.Join(found, " "); err != nil || got != tt.want {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// FuzzParseMessages: no content may panic, every error names the file, and every
// message has a line that there is.
func FuzzParseMessages(f *testing.F) {
	for _, seed := range []string{"id: a\n---\nnode: {id: b}\n", "{\"node\": {\"metadata\": {\"é\": [1]}}}", "a: &a [*a]\n", "? [a]\n: b\n", "\n---\n---\n", "node:\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data string) {
		found, err := parseNodes("f", data)
		if err != nil && !strings.HasPrefix(err.Error(), "f:") {
			t.Errorf("ParseMessages(%q): %v, want the name in front", data, err)
		}
		if err == nil && len(found) == 0 {
			t.Errorf("ParseMessages(%q) finds nothing and no error", data)
		}
		if strings.ContainsAny(data, "\r\u0085\u2028\u2029") || strings.HasPrefix(data, "\xfe\xff") || strings.HasPrefix(data, "\xff\xfe") {
			return // YAML has more ends of a line, and may be UTF-16
		}
		most := strings.Count(data, "\n") + 1
		if slices.ContainsFunc(found, func(s string) bool {
			var line int
			_, _ = fmt.Sscanf(s, "%d:", &line)
			return line < 0 || line > most
		}) {
			t.Errorf("ParseMessages(%q): lines %q of %d", data, found, most)
		}
	})
}
