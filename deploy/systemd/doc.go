// Package systemd contains a unit for systemd and the file with its variables. Its tests compare them
// with the configuration of the relay, and check the unit with systemd-analyze.
package systemd
