package page

import (
	"io"
	"net/http"
)

// A pipe is an http.ResponseWriter whose body a test reads while the handler writes it.
type pipe struct {
	*io.PipeWriter
	header http.Header
}

// newPipe returns a pipe and the reader of its body.
func newPipe() (io.Reader, *pipe) {
	r, w := io.Pipe()
	return r, &pipe{w, make(http.Header)}
}

func (p *pipe) Header() http.Header { return p.header }
func (p *pipe) WriteHeader(int)     {}
func (p *pipe) Flush()              {}
func (p *pipe) end()                { _ = p.Close() }
