package guard

// A Cause is why the relay refused a client: a [Limit], a [Denial], a [HandshakeFailure], an [Invalid] or an
// [AcceptFailure].
type Cause interface {
	Kind() string   // "limit", "denial", "handshake", "request" or "accept"
	String() string // the value of the reason in metrics
}

// Kind implements [Cause].
func (Limit) Kind() string { return "limit" }

// A Denial is an action that a client is not authorized for.
type Denial int

// The denied actions.
const (
	DeniedIdentity    Denial = iota // connect: no rule matches the client's identity
	DeniedNode                      // use the node that it claims
	DeniedType                      // subscribe to a type
	DeniedName                      // subscribe to a name
	DeniedSecret                    // subscribe to a Secret
	DeniedTrustDomain               // connect: the CA of the certificate may not sign for its trust domain
	denials
)

var denialNames = [denials]string{"identity", "node", "type", "name", "secret", "trust_domain"}

// String returns the value of the denial in metrics.
func (d Denial) String() string { return denialNames[d] }

// Kind implements [Cause].
func (Denial) Kind() string { return "denial" }

// An Invalid is why a request is invalid. It ends the stream or the poll.
type Invalid int

// The faults of requests.
const (
	InvalidMessage     Invalid = iota // it is no message of its type
	InvalidText                       // a name, version, nonce or type URL is not UTF-8
	InvalidNode                       // the Node is missing or malformed
	InvalidType                       // the type URL is missing, or belongs to another service
	InvalidMethod                     // the relay does not serve the gRPC method
	InvalidCompression                // it is compressed
	InvalidReport                     // a load report violates the protocol
	InvalidPoll                       // a poll has another method, path, header or body
	InvalidOther
	invalids
)

// Kind implements [Cause].
func (Invalid) Kind() string { return "request" }

// String implements [Cause].
func (i Invalid) String() string {
	return [invalids]string{
		"malformed", "not_utf8", "node", "type", "method", "compressed", "load_report", "poll", "other",
	}[i]
}

// An AcceptFailure is why a listener accepted no connection.
type AcceptFailure int

// The failures of listeners.
const (
	AcceptFiles AcceptFailure = iota // the process or the system has no free file descriptor
	AcceptOther
	acceptFailures
)

// Kind implements [Cause].
func (AcceptFailure) Kind() string { return "accept" }

// String implements [Cause].
func (a AcceptFailure) String() string {
	return [acceptFailures]string{"file_descriptors", "other"}[a]
}

// A HandshakeFailure is why a TLS handshake failed. That a CA may not issue the certificate is [DeniedTrustDomain].
type HandshakeFailure int

// The failures of handshakes.
const (
	HandshakeNoCertificate HandshakeFailure = iota // the client sent no certificate
	HandshakeUnknownCA                             // the relay does not have the CA of the client's certificate
	HandshakeExpired                               // the client's certificate is not valid at this time
	HandshakeCertificate                           // the client's certificate is invalid for another reason
	HandshakePlaintext                             // the client does not use TLS
	HandshakeUnsupported                           // client and relay have no version, cipher suite or protocol in common
	HandshakeRejected                              // the client rejected the handshake, mostly the relay's certificate
	HandshakeTimeout                               // the client did not complete it in time
	HandshakeClosed                                // the client disconnected, like the TCP checks of balancers
	HandshakeOther
	handshakeFailures
)

// Kind implements [Cause].
func (HandshakeFailure) Kind() string { return "handshake" }

// String implements [Cause].
func (h HandshakeFailure) String() string {
	return [handshakeFailures]string{
		"no_certificate", "unknown_ca", "expired", "bad_certificate", "plaintext", "unsupported", "rejected_by_client",
		"timeout", "closed", "other",
	}[h]
}
