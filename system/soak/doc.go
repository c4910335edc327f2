// Package soak contains one test. It applies random faults to two relays and their origins, and compares more than a
// hundred clients with a model of the origins.
//
// Two Delta origins serve the same resources; the second one is a standby. A SotW origin serves listeners, and a
// directory of files serves scoped routes. Each gRPC origin is behind a proxy. One relay is a process of its own,
// which is killed and restarts from its snapshot, and whose wall clock is set (testdata/setclock.go). The other relay
// runs in the test, so that the race detector and goleak cover it. Clients switch to the other relay when their
// stream ends; some connect through proxies. There are two node groups, resources that both share, and resources with
// a TTL. A seed alone determines the schedule of faults and changes.
//
// A client must never receive content that the origin did not serve, older content on the same stream, or content
// that it already has. It must never lose a resource that the origin did not remove. Origins may return empty, with a
// part of their resources or as another replica, and a standby may lag. Relays must then hold the apparent removals
// back and report a deadline. An unreadable file or a missing directory must not remove anything. Such a round has no
// other fault, because a relay that starts meanwhile cannot detect the removals. A change of the clock must not
// affect a running relay.
//
// With three of four seeds, one relay or both distribute changes in stages. Canaries at each relay reject some
// content, and operators resume or promote the rollouts that wait. While a rollout is halted, also across restarts of
// the relay, only canaries may have received the rejected content. All clients must return to the last good
// configuration, and endpoints must go on changing. A client in a stage may be rolled back. A client that switches to
// the other relay may lose resources that the other relay does not serve yet, and so may one that comes to a frozen
// relay.
//
// After each round, every client must agree with its origin, and the heaps of the relays must not have grown. In the
// end, all clients leave. The usage of the relays must then return to the baseline, and nothing may be frozen or held
// back. Timeouts bound every wait.
package soak
