package wire

import "testing"

// TestB36_QuotedResourcesAreCut: the error message of a NACK is kept up to the resource that Envoy quotes.
func TestB36_QuotedResourcesAreCut(t *testing.T) {
	for message, want := range map[string]string{
		"": "",
		"Error adding/updating listener(s) a: no filter chain":                                                                        "Error adding/updating listener(s) a: no filter chain",
		`Proto constraint validation failed (SecretValidationError.Name: too short): name: "a" private_key { inline_string: "hush" }`: `Proto constraint validation failed (SecretValidationError.Name: too short) … (49 more bytes omitted: they may contain secrets)`,
		`cannot read {"inline_string": "hush"}`:                                                                                       `cannot read  … (25 more bytes omitted: they may contain secrets)`,
		"bad key -----BEGIN PRIVATE KEY-----\nhush\n-----":                                                                            "bad key  … (38 more bytes omitted: they may contain secrets)",
	} {
		if got := cutDump(message); got != want {
			t.Errorf("cutDump(%q) = %q, want %q", message, got, want)
		}
	}
}
