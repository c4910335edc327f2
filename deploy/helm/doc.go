// Package helm has a chart for Helm (the directory tender), and tests of it and of the manifests
// in deploy/kubernetes: that what they render is valid for Kubernetes, that relays accept their
// environment, and that ports, probes, selectors and volumes fit together.
//
// Tests that need Helm, Kustomize, kubectl-validate or an API server are given them by flags: make charts and make cluster.
package helm
