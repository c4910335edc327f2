package page

import (
	"io"
	"net/http"
)

// A pipe is a response that is read while it is written.
type pipe struct {
	*io.PipeWriter
	header http.Header
}

func newPipe() (io.Reader, *pipe) {
	r, w := io.Pipe()
	return r, &pipe{w, make(http.Header)}
}

func (p *pipe) Header() http.Header { return p.header }
func (p *pipe) WriteHeader(int)     {}
func (p *pipe) Flush()              {}
func (p *pipe) end()                { _ = p.Close() }
