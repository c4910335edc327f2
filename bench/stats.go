package main

import (
	"slices"
	"time"
)

// median returns the median of values: the mean of the middle two if their number is
// even, and 0 if there are none.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// medianOfRatios returns the median of a[i]/b[i], so that figures of the same round are
// compared. ok is false if the lengths differ or a divisor is 0.
func medianOfRatios(a, b []float64) (ratio float64, ok bool) {
	if len(a) == 0 || len(a) != len(b) {
		return 0, false
	}
	ratios := make([]float64, len(a))
	for i := range a {
		if b[i] == 0 {
			return 0, false
		}
		ratios[i] = a[i] / b[i]
	}
	return median(ratios), true
}

// percentile returns the smallest delay in sorted that at least p percent of the delays
// do not exceed, and 0 if sorted is empty.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max((len(sorted)*p+99)/100-1, 0)]
}
