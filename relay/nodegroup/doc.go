// Package nodegroup sorts the nodes of clients into groups: which fields make a group's key, and what node the origin
// is shown for it (B.4), and how many groups each client address may make.
//
// The package is not a stable API: programs that embed Tender use package relay.
package nodegroup
