package cli

// A UsageError is a wrong command line that cobra did not find itself: the exit
// code is 2 and the message ends with where to find help.
type UsageError struct{ Cause error }

// Error implements error.
func (e UsageError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e UsageError) Unwrap() error { return e.Cause }
