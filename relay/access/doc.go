// Package access decides what each client and operator may ask of a relay, by the rules of TENDER_AUTHZ, which package
// authz reads, and by TENDER_SECRETS.
//
// The package is not a stable API: programs that embed Tender use package relay.
package access
