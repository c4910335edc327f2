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

// maxCommandBytes is the maximum size of the body of a command.
const maxCommandBytes = 1 << 20

// A Command is an action of operators: POST /api/v1/NAME with a JSON object as arguments. The response is another JSON
// object. [NewCommand] returns a Command.
type Command struct {
	Name string // a-z, - and /

	// Timeout replaces the timeouts of the server for a command that takes longer. Zero keeps them.
	Timeout time.Duration

	// Forwarded permits peers to forward the command on behalf of an operator.
	Forwarded bool

	// Reads means that the command changes nothing: it requires the permission to read, and is not recorded as an action.
	Reads bool

	run func(ctx context.Context, args []byte) (response any, err error)
}

// NewCommand returns a command whose arguments are the fields of A. All are optional, and others are refused. The
// response is the result of run, as JSON. An error has the code 500, or that of [Refuse]. run may be called from
// several goroutines at once.
func NewCommand[A, R any](name string, run func(ctx context.Context, args A) (R, error)) Command {
	return Command{Name: name, run: func(ctx context.Context, text []byte) (any, error) {
		var args A
		if err := decode(text, &args); err != nil {
			return nil, Refuse(http.StatusBadRequest, fmt.Errorf("read arguments: %w", err))
		}
		return run(ctx, args)
	}}
}

// decode decodes one JSON object and refuses data after it. An empty text is an empty object.
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
		return errors.New("unexpected data after the JSON object")
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

// Refuse returns an error with the HTTP code of its response. For example, it is 404 for an object that does not exist,
// and 409 for a command that the current state does not permit.
func Refuse(code int, cause error) error { return refusal{code, cause} }

// CodeOf returns the HTTP code of the response to an error: the code of [Refuse], or 500. It returns 200 for nil.
func CodeOf(err error) int {
	if err == nil {
		return http.StatusOK
	}
	if r, ok := errors.AsType[refusal](err); ok {
		return r.code
	}
	return http.StatusInternalServerError
}

// command returns the handler of a command.
func (s *Server) command(c Command) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		args, err := readArguments(w, r)
		ctx := r.Context()
		if c.Timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = extendTimeouts(ctx, w, c.Timeout)
			defer cancel()
		}
		caller := CallerOf(ctx)
		var response any
		if err == nil {
			response, err = c.run(ctx, args)
		}
		if !c.Reads {
			s.actions.record(r, caller, c.Name, args, err)
		}
		if err != nil {
			writeError(w, CodeOf(err), err.Error())
			return
		}
		writeJSON(w, r, response)
	}
}

// A Caller is the sender of a command.
type Caller struct {
	Identity string // of the certificate, or the operator that a peer names; empty without one
	Address  string // host without the port; empty on a Unix socket
	Via      string // the identity of the peer that forwarded the command; empty if the operator sent it
}

// callerKey is the key of the Caller in the context of a request.
type callerKey struct{}

// newCaller returns the caller of a request from an identity, which is ignored without TLS.
func newCaller(r *http.Request, identity string) Caller {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = strings.TrimPrefix(r.RemoteAddr, "@") // the address of a Unix socket
	}
	c := Caller{Address: host}
	if r.TLS != nil {
		c.Identity = identity
	}
	return c
}

// CallerOf returns the sender of the command, from the context of the command.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// By returns the text for operators that identifies the caller: its identity. Without an identity, it is the user that
// the client names, the address, or both.
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

// extendTimeouts replaces the timeouts of the server by the timeout of a command.
func extendTimeouts(
	ctx context.Context, w http.ResponseWriter, timeout time.Duration,
) (context.Context, context.CancelFunc) {
	c := http.NewResponseController(w)
	// The calls fail only on a ResponseWriter without a network connection, to which no timeout applies.
	_ = c.SetReadDeadline(time.Time{}) // a client that disconnects still ends the request
	_ = c.SetWriteDeadline(time.Now().Add(timeout + writeTimeout))
	return context.WithTimeout(ctx, timeout)
}

// readArguments returns the body of a command. It requires a Content-Type that no HTML form can send.
func readArguments(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	args, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxCommandBytes))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		err = fmt.Errorf("the body has more than %d bytes", maxCommandBytes)
		return nil, Refuse(http.StatusRequestEntityTooLarge, err)
	}
	if err != nil {
		return nil, Refuse(http.StatusBadRequest, fmt.Errorf("read body: %w", err))
	}
	contentType := r.Header.Get("Content-Type")
	if media, _, _ := mime.ParseMediaType(contentType); media != JSON {
		err = fmt.Errorf("the Content-Type is %.64q, want application/json", contentType)
		return nil, Refuse(http.StatusUnsupportedMediaType, err)
	}
	return args, nil
}

// writeError writes a response with an error: {"error": "…"}.
func writeError(w http.ResponseWriter, code int, message string) {
	text, _ := json.MarshalIndent(map[string]string{"error": message}, "", "  ") // cannot fail
	writeEncoded(w, code, text)
}

// JSON is the media type of responses. A program that accepts nothing else gets them without white space.
const JSON = "application/json"

// writeJSON writes the response to a request as JSON.
func writeJSON(w http.ResponseWriter, r *http.Request, response any) {
	text, err := json.Marshal(response)
	if err != nil { // a bug: the type cannot be encoded
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if r.Header.Get("Accept") != JSON {
		var indented bytes.Buffer
		_ = json.Indent(&indented, text, "", "  ") // cannot fail: it is JSON
		text = indented.Bytes()
	}
	writeEncoded(w, http.StatusOK, text)
}

// writeEncoded writes a response that is JSON.
func writeEncoded(w http.ResponseWriter, code int, text []byte) {
	w.Header().Set("Content-Type", JSON)
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n')) // fails only if the client disconnected
}
