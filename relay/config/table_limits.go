package config

import (
	"fmt"
	"time"
)

// limitRows are the variables on limits and timeouts for clients and control planes.
var limitRows = []spec{
	limit("MAX_CONNECTIONS", "50000", 10_000_000, "open client connections",
		"Raise it when more clients connect to one relay, and it has the memory ([cost of clients](#cost-of-clients))."),
	limit("MAX_CONNECTIONS_PER_ADDRESS", "10000", 10_000_000,
		"open connections per client IP address",
		"As many may connect at once, and a fiftieth of them per second from then on. "+
			"Raise it when clients connect through a balancer or NAT, which has one address."),
	limit("MAX_STREAMS", "50000", 10_000_000, "open streams of all services, and polls",
		"While more than half are open, one client may have a tenth, and at least 100. A client is an identity of a "+
			"certificate, or else an IP address. Raise it together with `TENDER_MAX_CONNECTIONS`."),
	limit("MAX_REQUEST_RATE", "100", 1_000_000,
		"requests per second of one stream beside ACKs and NACKs; further ones are delayed",
		"The burst is ten times as many. Raise it when clients subscribe to many names one by one."),
	limit("MAX_NAMES", "100000", 100_000_000,
		"names that one stream may subscribe to, or report in `initial_resource_versions`",
		"Raise it when a client needs more resources."),
	sizeLimit("MAX_REQUEST_BYTES", "16MiB", 4*kibibyte, gibibyte, "size of a client request",
		"Raise it when a client reports more names than fit."),
	sizeLimit("MAX_ORIGIN_RESPONSE_BYTES", "256MiB", mebibyte, gibibyte, "size of a response of the control plane",
		"Raise it when the log shows that a response exceeds it."),
	{
		name: "MAX_RESOURCE_BYTES", defaultText: "`off`",
		allowed: fmt.Sprintf("`off`, or a size from %s to %s, in B, KiB, MiB or GiB", kibibyte, gibibyte),
		meaning: "Size of a resource in a response of the control plane",
		advice: "The relay keeps the old version of a larger resource, accepts the others, and names it in the NACK. Set " +
			"it when clients cannot receive larger resources.",
		parse: untyped(parseResourceBytes),
	},
	limit("MAX_GROUPS", "256", 100_000, "node groups",
		"Groups without clients make room for new ones; their snapshots stay. Raise it when there are more kinds of "+
			"clients, such as one group per proxy."),
	limit("MAX_GROUPS_PER_CLIENT", "16", 100_000,
		"node groups that one client may create while more than half of `TENDER_MAX_GROUPS` exist",
		"A client is an identity of a certificate, or else an IP address. It is also the number per minute once a client "+
			"has created `TENDER_MAX_GROUPS`. "+
			"Raise it when many kinds of clients share an address, such as that of a balancer."),
	limit("MAX_ORIGIN_NAMES", "1000000", 100_000_000, "names that clients may request of one control plane",
		"A name counts once per node group; an xdstp name counts once. While more than half are in use, one client may "+
			"request a tenth, and at least 100. "+
			"Cached resources are served regardless. Raise it when clients need more resources by name."),
	duration("FIRST_REQUEST_TIMEOUT", "10s", 100*time.Millisecond, 10*time.Minute,
		"Time for the first request of a stream, a handshake, or the body of a poll",
		"Raise it when clients send their first request later, such as [MOSN](clients.md#mosn)."),
	duration("ACK_WAIT", "5s", 100*time.Millisecond, 10*time.Minute,
		"How long a response may stay unanswered before the next one of its type is sent",
		"Raise it when clients need longer to apply a response."),
	{
		name: "MIN_PUSH_INTERVAL", defaultText: "`off`",
		allowed: "`off`, or `type=interval`, several separated by commas: a short name (`lds`, `cds`, `eds`, …), a type " +
			"URL, or `*` for all others except `eds` and `leds`; intervals from 10ms to 10s",
		meaning: "Minimum time between two changes of a type that clients are sent",
		advice: "Changes within it become one response per client. First responses do not wait; types that refer to " +
			"clusters also wait while clusters or endpoints do. Set it when the control plane sends many small changes " +
			"([changes in quick succession](operations.md#changes-in-quick-succession)).",
		parse: untyped(offOr(parsePushIntervals)),
	},
	duration("SEND_TIMEOUT", "1m", time.Second, time.Hour,
		"How long one send may block before the stream is closed",
		"Lower it when stalled clients should release their memory earlier."),
	duration("DRAIN", "45s", time.Second, time.Hour, "Time in which a stopping relay closes its streams",
		"For the first ninth, new streams are still accepted. Two thirds later, nearly all streams are closed, one by "+
			"one. Change it when the termination grace period differs; it must be shorter."),
	{
		name: "CONNECTION_AGE", defaultValue: "30m",
		allowed: "`off`, or " + between(10*time.Second, 24*time.Hour),
		meaning: "Age at which the streams of a client connection are closed, one by one, without an error",
		advice:  "Clients then spread over all relays. Turn it off when a balancer distributes streams.",
		parse:   untyped(offOr(durationBetween(10*time.Second, 24*time.Hour))),
	},
}
