// Package systemd has a unit for systemd and the file with its variables. Its tests hold them
// to the relay, and have systemd-analyze read the unit.
package systemd
