// Package helm contains a chart for Helm (the directory tender), and tests of it and of the manifests
// in deploy/kubernetes. They check that the rendered objects are valid for Kubernetes, that relays accept
// their environment, and that ports, probes, selectors and volumes are consistent.
//
// Tests that need Helm, Kustomize, kubectl-validate or an API server get their paths from flags, which make charts and
// make cluster set. Without the flags they are skipped.
package helm
