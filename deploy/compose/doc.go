// Package compose contains a file for Docker Compose: a control plane, two relays and two clients. Its
// tests check the file, and run its services as processes on this host.
package compose
