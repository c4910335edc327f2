package cli

// A UsageError is an error of the command line that cobra did not detect. For a UsageError, tender prints how to get
// help and exits with code 2.
type UsageError struct{ Cause error }

// Error implements error.
func (e UsageError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e UsageError) Unwrap() error { return e.Cause }
