//go:build !linux

package judge

import (
	"errors"
	"os/exec"
)

// command returns an error: other systems have no network namespaces, and the Envoy must not bind addresses of the machine.
func command(string, string, []string) (*exec.Cmd, error) {
	return nil, errors.New("only a relay on Linux can start an Envoy that binds no address of the machine")
}

// startError returns err.
func startError(err error) error { return err }
