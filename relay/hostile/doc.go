// Package hostile has tests and nothing else: what clients that mean harm can do to a relay
// over real sockets, and that a neighbour who means none is served meanwhile. What takes time
// rather than load is tested in package conformance, where time is simulated.
package hostile
