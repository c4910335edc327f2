package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/xdstender/tender/relay/tlsfiles"
)

// An Error is an error of the configuration, for which a relay does not start.
type Error struct {
	// Variables are the variable whose value is refused, and then those that the value conflicts with or requires.
	Variables []string // TENDER_…

	// Message has the cause and the allowed values. It has neither the variable nor its value.
	Message string

	text  string // the message, which begins with the variable and its value
	cause error  // nil if the text has all
}

// Error returns one line with the variable, its value, the cause, and the allowed values.
func (e *Error) Error() string { return e.text }

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Errors returns the errors that err joins. An error of another kind has no variables.
func Errors(err error) (all []*Error) {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // an error around joined ones is one error
		for _, err := range joined.Unwrap() {
			all = append(all, Errors(err)...)
		}
		return all
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return append(all, e)
	}
	return append(all, &Error{Variables: []string{}, Message: err.Error(), text: err.Error(), cause: err})
}

// fileErrors returns an [Error] for each file that cannot be used. It skips files whose variable is not set.
func fileErrors(err error) error {
	var errs []error
	for _, e := range Errors(err) {
		f, ok := errors.AsType[*tlsfiles.FileError](e)
		if ok && f.File.Path == "" {
			continue
		}
		if ok {
			variable, _, _ := strings.Cut(f.File.Variable, "=") // TENDER_TLS_TRUST_DOMAINS=domain
			e.Variables, e.Message = []string{variable}, fmt.Sprintf("%q: %v", f.File.Path, f.Cause)
		}
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// A refusal is a reason why a value is refused.
type refusal struct {
	cause error
	with  []string // the other variables that the value conflicts with or requires, without TENDER_
}

// refusals are the refused variables, without TENDER_, with their reasons.
type refusals map[string][]refusal

// add adds a reason.
func (r refusals) add(variable string, cause error, with ...string) {
	r[variable] = append(r[variable], refusal{cause, with})
}

// has reports whether a variable is refused.
func (r refusals) has(variable string) bool { return len(r[variable]) > 0 }

// join returns an error with the texts of all errors in one line, or nil if all are nil. Equal texts appear once.
func join(errs ...error) error {
	var texts []string
	seen := map[string]bool{}
	for _, err := range errs {
		if err != nil && !seen[err.Error()] {
			texts = append(texts, err.Error())
			seen[err.Error()] = true
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}
