// Package envoy contains only tests. Real Envoys are clients of a relay, and with -direct also of the control plane
// itself, with traffic through them.
package envoy
