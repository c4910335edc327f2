package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"
)

// maxCommandBytes bounds the body of a command.
const maxCommandBytes = 1 << 20

// A Command is an action of operators: POST /api/v1/NAME with a JSON object as arguments. The response is another JSON
// object. [NewCommand] returns a Command.
type Command struct {
	Name string // a-z, - and /

	// Long is the timeout of a command that takes longer than the server's timeouts. Zero means that the command does
	// not need one.
	Long time.Duration

	// Forwarded permits peers to forward the command on behalf of an operator.
	Forwarded bool

	do func(ctx context.Context, args []byte) (answer any, err error)
}

// NewCommand returns a command whose arguments are the fields of A. All are optional, and others are rejected. The
// response is what do returns, as JSON. An error has the code 500, or that of [Refuse]. do may be called from several
// goroutines at once.
func NewCommand[A, R any](name string, do func(ctx context.Context, args A) (R, error)) Command {
	return Command{Name: name, do: func(ctx context.Context, text []byte) (any, error) {
		var args A
		if err := decode(text, &args); err != nil {
			return nil, Refuse(http.StatusBadRequest, fmt.Errorf("read arguments: %w", err))
		}
		return do(ctx, args)
	}}
}

// decode reads one JSON object, and rejects data after it. An empty text is an empty object.
func decode(text []byte, into any) error {
	if len(text) == 0 {
		return nil
	}
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return errors.New("not a JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is data after the JSON object")
	}
	return nil
}

// A refusal is an error with the HTTP code of its response.
type refusal struct {
	code  int
	cause error
}

func (r refusal) Error() string { return r.cause.Error() }
func (r refusal) Unwrap() error { return r.cause }

// Refuse returns an error that is answered with an HTTP code: 404 for something that does not exist, 409 for an action
// that the current state does not permit.
func Refuse(code int, cause error) error { return refusal{code, cause} }

// CodeOf returns the HTTP code that an error is answered with; 200 for nil.
func CodeOf(err error) int {
	if err == nil {
		return http.StatusOK
	}
	if refused, ok := errors.AsType[refusal](err); ok {
		return refused.code
	}
	return http.StatusInternalServerError
}

// command serves a command.
func (s *Server) command(c Command) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		args, err := readArguments(w, r)
		ctx := r.Context()
		if c.Long > 0 {
			var cancel context.CancelFunc
			ctx, cancel = takeLong(ctx, w, c.Long)
			defer cancel()
		}
		caller := CallerOf(ctx)
		var answer any
		if err == nil {
			answer, err = c.do(ctx, args)
		}
		s.record(r, caller, c.Name, args, err)
		if err != nil {
			writeError(w, CodeOf(err), err.Error())
			return
		}
		writeJSON(w, http.StatusOK, answer)
	}
}

// A Caller is the sender of a command.
type Caller struct {
	Identity string // of the certificate, or as a peer names the operator; empty without one
	Address  string // without the port; empty on a socket of the file system
	Via      string // the identity of the peer that forwarded the command; empty if the operator sent it
}

type callerKey struct{}

// newCaller returns the caller of a request that comes from an identity, "local" without TLS.
func newCaller(r *http.Request, identity string) Caller {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = strings.TrimPrefix(r.RemoteAddr, "@") // which a socket of the file system has
	}
	c := Caller{Address: host}
	if r.TLS != nil {
		c.Identity = identity
	}
	return c
}

// CallerOf returns the sender of the command of a context.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// By returns the caller as shown to operators: its identity, or else the user that the client names, the address, or
// both.
func (c Caller) By(user string) string {
	switch {
	case c.Identity != "":
		return c.Identity
	case user != "" && c.Address != "":
		return user + " at " + c.Address
	default:
		return cmp.Or(user, c.Address, "local")
	}
}

// takeLong replaces the server's timeouts by that of a long command.
func takeLong(ctx context.Context, w http.ResponseWriter, long time.Duration) (context.Context, context.CancelFunc) {
	c := http.NewResponseController(w)
	// Neither call fails on a network connection. On others the server's timeouts apply.
	_ = c.SetReadDeadline(time.Time{}) // a client that disconnects still ends the request
	_ = c.SetWriteDeadline(time.Now().Add(long + writeTimeout))
	return context.WithTimeout(ctx, long)
}

// readArguments returns the body of a command. It requires a Content-Type that no HTML form can send.
func readArguments(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	args, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxCommandBytes))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, Refuse(http.StatusRequestEntityTooLarge, fmt.Errorf("the body has more than %d bytes", maxCommandBytes))
	}
	if err != nil {
		return nil, Refuse(http.StatusBadRequest, fmt.Errorf("read body: %w", err))
	}
	given := r.Header.Get("Content-Type")
	if media, _, _ := mime.ParseMediaType(given); media != "application/json" {
		return nil, Refuse(http.StatusUnsupportedMediaType, fmt.Errorf("the Content-Type is %.64q, want application/json", given))
	}
	return args, nil
}

// writeError answers with an error: {"error": "…"}.
func writeError(w http.ResponseWriter, code int, message string) {
	writeJSON(w, code, map[string]string{"error": message})
}

func writeJSON(w http.ResponseWriter, code int, answer any) {
	text, err := json.MarshalIndent(answer, "", "  ")
	if err != nil { // of a type of ours that JSON does not have
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n')) // it fails only if the client disconnected
}
