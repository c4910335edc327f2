// Package helm has a chart for Helm (the directory tender), and tests of it: that what it
// renders is valid for Kubernetes, and that bad values are refused. The tests that need Helm,
// and what else looks at manifests, are given them by flags.
package helm
