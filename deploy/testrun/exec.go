package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// usageVariable names the file to which testrun, as the -exec program of go test, appends the usage of test binaries.
const usageVariable = "TESTRUN_USAGE"

// A usage is what a test binary and the processes that it awaited have used.
type usage struct {
	Directory string        // where the binary ran: that of the package
	CPU       time.Duration // user and system
	Memory    int64         // resident set of the largest process, in bytes
}

// execute runs a test binary, records its usage in file, and returns its exit code. go test ends a binary that exceeds
// its timeout by a signal, which execute passes on.
func execute(file string, args []string) (code int) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = without(os.Environ(), usageVariable)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGQUIT, syscall.SIGINT, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		return 1
	}
	go func() { // ends with this process
		for s := range signals {
			_ = cmd.Process.Signal(s) // fails only if it has ended
		}
	}()
	err := cmd.Wait()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		return 1
	}
	if err := record(file, cmd.ProcessState); err != nil {
		fmt.Fprintln(os.Stderr, "testrun: record usage:", err)
		return 1
	}
	if !cmd.ProcessState.Success() {
		fmt.Fprintln(os.Stderr, cmd.ProcessState) // go test leaves this to its -exec program
	}
	if code = cmd.ProcessState.ExitCode(); code < 0 {
		code = 1 // a signal
	}
	return code
}

// record appends a line to file. A line is shorter than a pipe's buffer, so lines of several processes do not mix.
func record(file string, s *os.ProcessState) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	line, err := json.Marshal(usage{Directory: dir, CPU: s.UserTime() + s.SystemTime(), Memory: largest(s)})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Clean(file), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// largest returns the resident set of the largest process of those that have ended, in bytes.
func largest(s *os.ProcessState) int64 {
	used, ok := s.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return used.Maxrss // the other systems count KiB
	}
	return used.Maxrss << 10
}

// without returns the environment without a variable.
func without(env []string, name string) []string {
	return slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, name+"=") })
}
