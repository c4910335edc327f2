package relaytest

import "github.com/xdstender/tender/relay/relaytest/wait"

// TB is a test, or a program in the role of a test.
type TB = wait.TB

// Patience bounds every blocking call of this package, in addition to its context, so that a test that hangs fails.
const Patience = wait.Patience
