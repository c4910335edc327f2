package wire

import "testing"

// TestB36_QuotedResourcesAreCut: the error message of a NACK is kept up to the resource that Envoy quotes.
func TestB36_QuotedResourcesAreCut(t *testing.T) {
	const omitted = " more bytes omitted: they may contain secrets)"
	for _, tt := range []struct{ message, want string }{
		{"", ""},
		{"Error adding/updating listener(s) a: no filter chain", "Error adding/updating listener(s) a: no filter chain"},
		{`Proto constraint validation failed (SecretValidationError.Name: too short): ` +
			`name: "a" private_key { inline_string: "hush" }`,
			`Proto constraint validation failed (SecretValidationError.Name: too short) … (49` + omitted},
		{`cannot read {"inline_string": "hush"}`, `cannot read  … (25` + omitted},
		{"bad key -----BEGIN PRIVATE KEY-----\nhush\n-----", "bad key  … (38" + omitted},
	} {
		if got := cutDump(tt.message); got != tt.want {
			t.Errorf("cutDump(%q) = %q, want %q", tt.message, got, tt.want)
		}
	}
}
