package conformance_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestH11_BadFilesAreVisible: of a directory of which four of five files are bad, the relay serves the
// fifth, and says of each of the others what is wrong with it, in the log with its line, in the status, and in a metric;
// until they are mended, whether or not a client is there.
func TestH11_BadFilesAreVisible(t *testing.T) {
	t.Parallel()
	cluster := func(name string) string { return "- {'@type': " + streamCDS + ", name: " + name + "}\n" }
	dir := t.TempDir()
	badWrite(t, dir, "a.yaml", cluster("a"))
	for _, name := range []string{"b", "c", "d", "e"} {
		badWrite(t, dir, name+".yaml", cluster(name)+"- {'@type': "+streamCDS+", nome: x}\n")
	}
	r := startFiles(t, dir, operated)
	bad := func(n int) func(admin.Status) bool {
		return func(s admin.Status) bool {
			d := s.Origins[0].Directory
			return d != nil && d.FileCount == 5 && d.BadCount == n && len(d.Bad) == n
		}
	}
	s := awaitStatus(t, r, "four bad files", bad(4))
	for i, f := range s.Origins[0].Directory.Bad {
		name := fmt.Sprintf("%c.yaml", 'b'+i)
		if f.File != name || !strings.Contains(f.Error, name+":2") || f.LastGood != 0 {
			t.Errorf("bad file %d is %+v, want %s with its line", i, f, name)
		}
		if !strings.Contains(r.Log.String(), name+":2") {
			t.Errorf("the log does not have %s with its line", name)
		}
	}
	if m := metricsOf(t, r); m["tender_origin_files default bad"] != 4 || m["tender_origin_files default good"] != 1 {
		t.Errorf("metrics: %v bad and %v good, want 4 and 1", m["tender_origin_files default bad"], m["tender_origin_files default good"])
	}
	for _, name := range []string{"b", "c", "d", "e"} {
		badWrite(t, dir, name+".yaml", cluster(name))
	}
	awaitStatus(t, r, "no bad file", bad(0))
	c := r.Client(relaytest.ClientOptions{AutoAck: true})
	c.Subscribe(streamCDS)
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(streamCDS, "a", "b", "c", "d", "e") })
	badWrite(t, dir, "b.yaml", "nonsense: [\n")
	s = awaitStatus(t, r, "one bad file", bad(1))
	if f := s.Origins[0].Directory.Bad[0]; f.File != "b.yaml" || f.LastGood != 1 {
		t.Errorf("the bad file is %+v, want b.yaml with the one resource that it had", f)
	}
	if got := c.State().Names(streamCDS); len(got) != 5 {
		t.Errorf("the client has %q, want all five", got)
	}
}
