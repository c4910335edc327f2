// Package faults contains only tests. They check the responses that clients of a relay receive when origins die,
// relays restart and networks fail, over real sockets and in real time. The tests mostly wait, so they run in
// parallel with each other.
package faults
