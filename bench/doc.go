// Package bench measures the relay as a process, from outside.
package bench
