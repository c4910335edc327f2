package main

import (
	"errors"
	"math"
)

// errDependent reports that some terms are linearly dependent over the measurements.
var errDependent = errors.New("terms that no measurement tells apart")

// leastSquares returns the x that minimizes the sum of (a[i]·x − b[i])², by the normal
// equations aᵀa x = aᵀb. Errors: errDependent.
func leastSquares(a [][]float64, b []float64) ([]float64, error) {
	n := len(a[0])
	scales := make([]float64, n) // normalizes the columns, whose units differ
	for _, row := range a {
		for j, v := range row {
			scales[j] = math.Hypot(scales[j], v)
		}
	}
	m := make([][]float64, n) // the last column is the right-hand side
	for j := range m {
		m[j] = make([]float64, n+1)
		for i, row := range a {
			for k := range n {
				m[j][k] += row[j] * row[k] / (scales[j] * scales[k])
			}
			m[j][n] += row[j] * b[i] / scales[j]
		}
	}
	x, err := solve(m)
	for j := range x {
		x[j] /= scales[j]
	}
	return x, err
}

// solve solves linear equations by Gaussian elimination. Each row of m ends with its right-hand side. It overwrites m.
func solve(m [][]float64) ([]float64, error) {
	const least = 1e-9 // of a pivot; the initial diagonal is all ones
	n := len(m)
	for j := range n {
		pivot := j
		for i := j + 1; i < n; i++ {
			if math.Abs(m[i][j]) > math.Abs(m[pivot][j]) {
				pivot = i
			}
		}
		m[j], m[pivot] = m[pivot], m[j]
		if !(math.Abs(m[j][j]) > least) { // also true for NaN
			return nil, errDependent
		}
		for i := range n {
			if i == j {
				continue
			}
			for k := n; k >= j; k-- {
				m[i][k] -= m[i][j] / m[j][j] * m[j][k]
			}
		}
	}
	x := make([]float64, n)
	for j := range x {
		x[j] = m[j][n] / m[j][j]
	}
	return x, nil
}

// A term is one part of a cost: a function of the load, times a coefficient.
type term struct {
	what string
	of   func(point) float64
	unit string  // of the printed coefficient
	many float64 // factor from the unit of the cost to unit
}

// A fit models a cost as a sum of terms, each multiplied by its coefficient.
type fit struct {
	terms        []term
	coefficients []float64
	mean, worst  float64 // relative errors at the fitted points: root mean square, and largest
}

// fitted returns the fit with the least relative errors. Costs are not negative, so it
// drops terms with negative coefficients one by one, the largest share of the cost first.
func fitted(terms []term, points []point, measured []float64) (fit, error) {
	f := fit{terms: terms, coefficients: make([]float64, len(terms))}
	used := make([]int, len(terms))
	for j := range used {
		used[j] = j
	}
	for len(used) > 0 {
		x, err := leastSquares(f.relative(used, points, measured), ones(len(points)))
		if err != nil {
			return f, err
		}
		worst := 0 // by its share of the cost, since the units of the coefficients differ
		share := func(i int) float64 { return x[i] * f.sum(used[i], points) }
		for i := range x {
			if share(i) < share(worst) {
				worst = i
			}
		}
		if x[worst] < 0 {
			used = append(used[:worst], used[worst+1:]...)
			continue
		}
		for i, j := range used {
			f.coefficients[j] = x[i]
		}
		break
	}
	for i, p := range points {
		e := f.at(p)/measured[i] - 1
		f.mean += e * e / float64(len(points))
		f.worst = max(f.worst, math.Abs(e))
	}
	f.mean = math.Sqrt(f.mean)
	return f, nil
}

// relative returns the value of each used term at each point, divided by the cost measured at that point.
func (f fit) relative(used []int, points []point, measured []float64) [][]float64 {
	a := make([][]float64, len(points))
	for i, p := range points {
		for _, j := range used {
			a[i] = append(a[i], f.terms[j].of(p)/measured[i])
		}
	}
	return a
}

// sum returns the sum of term j over all points.
func (f fit) sum(j int, points []point) (sum float64) {
	for _, p := range points {
		sum += f.terms[j].of(p)
	}
	return sum
}

// at returns the cost that the fit predicts for a point.
func (f fit) at(p point) (cost float64) {
	for j, t := range f.terms {
		cost += f.coefficients[j] * t.of(p)
	}
	return cost
}

func ones(n int) []float64 {
	b := make([]float64, n)
	for i := range b {
		b[i] = 1
	}
	return b
}
