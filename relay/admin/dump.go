package admin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime/pprof"
	"time"
)

// maxDumpClients is the maximum number of clients in a dump, the longest lag first.
const maxDumpClients = maxLimit

// A dumper serves dumps.
type dumper struct{ cfg *Config }

// A dumpFile is a file of a dump: its name, its description, and a function that writes it.
type dumpFile struct {
	name, description string
	write             func(io.Writer, *http.Request) error
}

// files returns the files of a dump. They do not contain resources, but may contain their names.
func (d dumper) files() []dumpFile {
	files := []dumpFile{
		{
			"status.json", "/api/v1/status: the version, origins, views, and TLS files",
			func(w io.Writer, _ *http.Request) error { return encode(w, d.cfg.Status()) },
		},
		{
			"goroutines.txt", "stacks of all goroutines, with the number of goroutines of each",
			func(w io.Writer, _ *http.Request) error { return pprof.Lookup("goroutine").WriteTo(w, 1) },
		},
		{
			"configuration.txt", "configuration variables, their values and sources, without secrets",
			func(w io.Writer, _ *http.Request) error {
				_, err := io.WriteString(w, d.cfg.Settings())
				return err
			},
		},
		{
			"clients.json",
			fmt.Sprintf("/api/v1/clients: totals, and at most %d clients, the longest lag first", maxDumpClients),
			d.writeClients,
		},
		{
			"pending.json", "/api/v1/pending: pending changes",
			func(w io.Writer, r *http.Request) error {
				all, err := d.cfg.Pending(r.Context(), PendingChoice{})
				if err != nil {
					return err
				}
				return encode(w, all)
			},
		},
		{"metrics.txt", "/metrics", d.writeMetrics},
	}
	if d.cfg.Debug {
		files = append(files, dumpFile{
			"heap.pprof", "heap profile: go tool pprof heap.pprof",
			func(w io.Writer, _ *http.Request) error { return pprof.Lookup("heap").WriteTo(w, 0) },
		})
	}
	return files
}

// encode writes a value as indented JSON.
func encode(w io.Writer, value any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(value)
}

// writeClients writes the first page of /api/v1/clients.
func (d dumper) writeClients(w io.Writer, _ *http.Request) error {
	clients, err := d.cfg.Fleet.Clients(ClientQuery{Sort: ByLag, Page: Page{Limit: maxDumpClients}})
	if err != nil {
		return err
	}
	return encode(w, clients)
}

// writeMetrics writes /metrics in the plain text format.
func (d dumper) writeMetrics(w io.Writer, r *http.Request) error {
	inner, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "/metrics", nil)
	if err != nil {
		return err
	}
	d.cfg.Metrics.ServeHTTP(&capturedResponse{Writer: w, header: make(http.Header)}, inner)
	return nil
}

// A capturedResponse is an http.ResponseWriter that writes the body to a Writer.
type capturedResponse struct {
	io.Writer
	header http.Header
}

func (c *capturedResponse) Header() http.Header { return c.header }
func (c *capturedResponse) WriteHeader(int)     {}

// ServeHTTP serves a gzipped tar archive for remote diagnosis.
func (d dumper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	name := "tender-dump-" + now.UTC().Format("20060102-150405")
	var out bytes.Buffer
	if err := d.write(&out, r, name, now); err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/gzip")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`.tar.gz"`)
	_, _ = w.Write(out.Bytes()) // fails only if the client disconnected
}

// write writes the archive of a dump, with all files in dir.
func (d dumper) write(w io.Writer, r *http.Request, dir string, now time.Time) error {
	zipped := gzip.NewWriter(w)
	archive := tar.NewWriter(zipped)
	put := func(name string, content []byte) error {
		header := &tar.Header{Name: dir + "/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: now}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("dump %s: %w", name, err)
		}
		if _, err := archive.Write(content); err != nil {
			return fmt.Errorf("dump %s: %w", name, err)
		}
		return nil
	}
	readme := fmt.Sprintf("A dump of a Tender relay of %s.\n"+
		"It contains neither resources nor secrets of the configuration.\n"+
		"It contains node IDs, addresses of clients, and names of resources.\n\n", now.UTC().Format(time.RFC3339))
	for _, f := range d.files() {
		var content bytes.Buffer
		if err := f.write(&content, r); err != nil {
			fmt.Fprintf(&content, "\nincomplete: %v\n", err) // the other files are still useful
		}
		if err := put(f.name, content.Bytes()); err != nil {
			return err
		}
		readme += fmt.Sprintf("%-18s %s\n", f.name, f.description)
	}
	if err := put("README.txt", []byte(readme)); err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	return zipped.Close()
}
