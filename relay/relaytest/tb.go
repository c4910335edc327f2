package relaytest

import "github.com/xdstender/tender/relay/relaytest/wait"

// TB is a test, or a program that stands in for one.
type TB = wait.TB

// Patience bounds every blocking call of this package, in addition to its context. It only ends tests that hang.
const Patience = wait.Patience
