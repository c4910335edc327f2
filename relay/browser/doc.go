// Package browser holds the status page to what people see of it: a real Chromium looks at
// a real relay, with a real origin and real clients. It has only tests.
package browser
