package relaytest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// ShortType returns the last part of a type URL.
func ShortType(typeURL string) string { return typeURL[strings.LastIndexByte(typeURL, '.')+1:] }

// list formats names, at most the first ten.
func list(names []string) string {
	const most = 10
	if len(names) <= most {
		return fmt.Sprint(names)
	}
	return fmt.Sprintf("%v and %d more", names[:most], len(names)-most)
}

// describe formats a request in one line.
func describe(req proto.Message) string {
	var b strings.Builder
	put := func(key, value string) {
		if value != "" && value != "[]" {
			fmt.Fprintf(&b, " %s=%s", key, value)
		}
	}
	switch r := req.(type) {
	case *discoverypb.DiscoveryRequest:
		b.WriteString("sotw " + ShortType(r.GetTypeUrl()))
		put("node", r.GetNode().GetId())
		put("names", list(r.GetResourceNames()))
		put("version", r.GetVersionInfo())
		put("nonce", r.GetResponseNonce())
		put("error", r.GetErrorDetail().GetMessage())
	case *discoverypb.DeltaDiscoveryRequest:
		b.WriteString("delta " + ShortType(r.GetTypeUrl()))
		put("node", r.GetNode().GetId())
		put("subscribe", list(r.GetResourceNamesSubscribe()))
		put("unsubscribe", list(r.GetResourceNamesUnsubscribe()))
		put("have", list(slices.Sorted(maps.Keys(r.GetInitialResourceVersions()))))
		put("nonce", r.GetResponseNonce())
		put("error", r.GetErrorDetail().GetMessage())
	}
	return b.String()
}
