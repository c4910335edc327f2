// Package soak has one test: everything that can fail around a relay does, at random and
// at once, while some hundred clients of every kind are held to a model of what their
// origin says.
//
// There are two origins of Delta that say the same, one for when the other fails, and one of SotW for
// listeners, each behind a proxy, and a directory of files for scoped routes; two relays, one a process that is killed and
// goes on from its snapshot, and whose wall clock is set (testdata/setclock.go), the other in the test, where the race detector and goleak see it; and clients that go to the other
// relay when one ends their stream, some through proxies. There are two node groups, names
// that these share, and resources that live for a while. What fails when, and what changes
// meanwhile, comes from a seed and from nothing else.
//
// At all times no client may be told what the origin never said, or go back to something
// older on the same stream, or be told again what it has, or lose what the origin has not
// removed. So where origins return empty, not loaded or as another replica, or a standby lags, relays have to hold back what
// these seem to have removed, and say so until some time. A file that cannot be read, and a directory that goes away, remove nothing.
// Such rounds have no other fault, since a relay that starts meanwhile does not know what was there. Clocks that are set change
// nothing for a relay that runs.
//
// With three seeds of four, one relay or both distribute changes in stages. Canaries at each of them refuse some of what origins say, and
// operators end what then waits. While a relay has halted, also once it was killed or started again, only canaries may ever have
// been told what they refuse, all clients must come to have the last good, and endpoints go on. A client of a stage may be taken back; any client
// that comes to the other relay may lose there what was once not there.
//
// After each round of faults, every client must come to have what the origin has,
// and the relays may not have grown. In the end nothing may be left of anybody: relays take
// what they took when the first clients had come and gone, and nothing is frozen or held back. All
// of this has to happen in a bounded time.
package soak
