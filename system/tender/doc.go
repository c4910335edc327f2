// Package tender has tests of the built command tender: its processes serve relays, and send commands to them.
package tender
