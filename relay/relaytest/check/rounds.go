package check

import "flag"

var rounds = flag.Int("rounds", 1, "multiply the number of random inputs of tests")

// Rounds returns how many random inputs a test takes: n, or with -rounds a multiple of it. With n, a test takes less than
// two seconds with the race detector; make system takes many times more. The name of such a test contains Random.
func Rounds(n int) int { return n * *rounds }
