package main

import (
	"slices"
	"time"
)

// median returns the median of values, the mean of the middle two if there are two;
// 0 of none.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// medianOfRatios returns the median of a[i]/b[i]: figures of one round are compared
// with each other. ok is false if a round lacks one.
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

// percentile returns the smallest of sorted delays that is not exceeded by p
// hundredths of them; 0 of none.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max((len(sorted)*p+99)/100-1, 0)]
}
