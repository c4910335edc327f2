// Package compose has a file for Docker Compose: a control plane, two relays and two clients. Its
// tests read the file, and run what it says as processes of this host.
package compose
