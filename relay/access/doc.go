// Package access authorizes clients and operators. It applies TENDER_SECRETS and the rules of TENDER_AUTHZ, which
// package authz parses.
//
// The package is not a stable API: programs that embed Tender use package relay.
package access
