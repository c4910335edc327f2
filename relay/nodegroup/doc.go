// Package nodegroup assigns the nodes of clients to node groups. It derives the key of a group and the Node that the
// relay sends to the origin for the group (B.4).
//
// The package is not a stable API: programs that embed Tender use package relay.
package nodegroup
