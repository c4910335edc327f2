package transcript

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/wait"
)

// Types maps the short names of types to type URLs.
var Types = map[string]string{
	"cds":  relaytest.ClusterType,
	"eds":  relaytest.EndpointType,
	"leds": relaytest.LocalityEndpointType,
	"sds":  relaytest.SecretType,
	"ecds": relaytest.ExtensionConfigType,
	"rtds": relaytest.RuntimeType,
	"lds":  relaytest.ListenerType,
	"srds": relaytest.ScopedRouteType,
	"rds":  relaytest.RouteType,
	"vhds": relaytest.VirtualHostType,
	"acme": "type.googleapis.com/acme.Thing",
}

// ShortName returns the short name of a type, or its type URL if it has none.
func ShortName(typeURL string) string {
	for short, url := range Types {
		if url == typeURL {
			return short
		}
	}
	return typeURL
}

// ErrorDetail is the message of an origin's errors.
const ErrorDetail = "because"

// A Notation writes resources as "web@2": the name, and a revision that decides the content and the version, v2. A change is
// written with the short name of the type:
//
//	cds web@2                  the resource in revision 2 (an assignment in revision 0 has no endpoints)
//	cds -web                   its removal
//	cds !web:Unavailable       an error
//	cds web@2 1m               with a TTL
//	vhds rc/web@2=rc/a.example with an alias
//	vhds rc/b.example?         an alias without a resource
//
// What follows a colon in its name is what only one resource of a set can have: the port of a listener, the key of a scope, or the
// domain of a virtual host, as in "lds old:80@1" and "srds s:red@1".
//
// Several changes are separated by commas, and names may have a range of numbers: "cds a@1, cds b{1..9}@1".
//
// A response is written "cds web@2 -old" in Delta and "cds {web@2}" in SotW, names sorted. "!web:Unavailable" is an error,
// "web@2(30s)" has the remaining TTL, and "web~(30s)" is a heartbeat.
type Notation struct {
	tb   wait.TB
	revs map[relaytest.Digest]int // revisions by content
}

// NewNotation returns a notation that has no revisions yet. It fails the test if something is not written as above.
func NewNotation(tb wait.TB) *Notation {
	return &Notation{tb: tb, revs: make(map[relaytest.Digest]int)}
}

// TypeURL returns the type URL of a short name; "none" stands for the empty one.
func (n *Notation) TypeURL(short string) string {
	n.tb.Helper()
	if Types[short] == "" && short != "none" {
		n.tb.Fatalf("%q is not the short name of a type", short)
	}
	return Types[short]
}

// A Change is the origin's change of one resource.
type Change struct {
	Short, Name string
	Rev         int
	Aliases     []string
	Remove      bool
	Unresolved  bool       // an alias without a resource
	Code        codes.Code // of an error; OK otherwise
	TTL         time.Duration
}

// Parse reads a change.
func (n *Notation) Parse(change string) (c Change) {
	n.tb.Helper()
	short, rest, _ := strings.Cut(change, " ")
	c.Short = short
	if c.Name, c.Remove = strings.CutPrefix(rest, "-"); c.Remove {
		return c
	}
	if c.Name, c.Unresolved = strings.CutSuffix(rest, "?"); c.Unresolved {
		return c
	}
	if failing, ok := strings.CutPrefix(rest, "!"); ok {
		colon := strings.LastIndex(failing, ":")
		c.Name, c.Code = failing[:max(colon, 0)], n.code(failing[colon+1:])
		return c
	}
	if text, ttl, ok := strings.Cut(rest, " "); ok {
		var err error
		if c.TTL, err = time.ParseDuration(ttl); err != nil {
			n.tb.Fatalf("change %q: %v", change, err)
		}
		rest = text
	}
	at := strings.LastIndex(rest, "@") // a name may contain any other character
	name, parts := rest[:max(at, 0)], strings.Split(rest[at+1:], "=")
	rev, err := strconv.Atoi(parts[0])
	if err != nil || Types[short] == "" {
		n.tb.Fatalf("change %q: not of the form %q", change, "cds web@2")
	}
	c.Name, c.Rev, c.Aliases = name, rev, parts[1:]
	return c
}

// code returns the status code of a name, such as "Unavailable".
func (n *Notation) code(name string) codes.Code {
	n.tb.Helper()
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		if code.String() == name {
			return code
		}
	}
	n.tb.Fatalf("%q: unknown status code", name)
	return codes.OK
}

// Message returns a resource, and records its revision. A route of revision n names the cluster "cluster-n".
func (n *Notation) Message(short, name string, rev int) proto.Message {
	m := newResource(short, name, rev)
	n.revs[relaytest.DigestOf(m)] = rev
	return m
}

// newResource returns a resource whose content depends on rev.
func newResource(short, name string, rev int) proto.Message {
	if _, key, ok := strings.Cut(name, ":"); ok && !strings.HasPrefix(key, "//") && wire.HasKeys(Types[short]) {
		return keyedResource(short, name, key, rev)
	}
	switch short {
	case "cds":
		c := relaytest.Cluster(name)
		c.AltStatName = fmt.Sprint("revision-", rev)
		return c
	case "eds":
		if rev == 0 {
			return relaytest.Endpoints(name)
		}
		return relaytest.Endpoints(name, fmt.Sprint("127.0.0.1:", 8000+rev))
	case "lds":
		l := relaytest.Listener(name, "routes")
		l.StatPrefix = fmt.Sprint("revision-", rev)
		return l
	case "rds":
		return relaytest.Route(name, []string{"*"}, fmt.Sprint("cluster-", rev))
	default:
		return relaytest.Opaque(Types[short], name, []byte{byte(rev)})
	}
}

// keyedResource returns a resource with a key that excludes others.
func keyedResource(short, name, key string, rev int) proto.Message {
	routes := fmt.Sprint("revision-", rev)
	switch short {
	case "lds":
		l := relaytest.Listener(name, "routes")
		port, _ := strconv.Atoi(key)
		l.StatPrefix, l.GetAddress().GetSocketAddress().PortSpecifier = routes, &corepb.SocketAddress_PortValue{PortValue: uint32(port)}
		return l
	case "srds":
		fragment := &routepb.ScopedRouteConfiguration_Key_Fragment{
			Type: &routepb.ScopedRouteConfiguration_Key_Fragment_StringKey{StringKey: key},
		}
		return &routepb.ScopedRouteConfiguration{Name: name, RouteConfigurationName: routes, Key: &routepb.ScopedRouteConfiguration_Key{
			Fragments: []*routepb.ScopedRouteConfiguration_Key_Fragment{fragment},
		}}
	default:
		return &routepb.VirtualHost{Name: name, Domains: []string{key}, RequestHeadersToRemove: []string{routes}}
	}
}

// Revision returns the revision of a content, or "" if Message has not returned it.
func (n *Notation) Revision(d relaytest.Digest) string {
	if rev, ok := n.revs[d]; ok {
		return strconv.Itoa(rev)
	}
	return ""
}

// Resource returns the resource of a change that sets one.
func (n *Notation) Resource(c Change) *discoverypb.Resource {
	n.tb.Helper()
	if c.Unresolved {
		return &discoverypb.Resource{Name: c.Name, Aliases: []string{c.Name}}
	}
	m := n.Message(c.Short, c.Name, c.Rev)
	body, packed := m.(*anypb.Any)
	if !packed {
		body = relaytest.Pack(m)
	}
	r := &discoverypb.Resource{Name: c.Name, Version: fmt.Sprint("v", c.Rev), Aliases: c.Aliases, Resource: body}
	if c.TTL > 0 {
		r.Ttl = durationpb.New(c.TTL)
	}
	return r
}

// Response returns a Delta response with changes of one type. The name of the type alone, "cds", is a response without resources.
func (n *Notation) Response(changes ...string) *discoverypb.DeltaDiscoveryResponse {
	n.tb.Helper()
	resp := &discoverypb.DeltaDiscoveryResponse{}
	for _, text := range changes {
		if typeURL := Types[text]; typeURL != "" {
			resp.TypeUrl = typeURL
			continue
		}
		c := n.Parse(text)
		resp.TypeUrl = Types[c.Short]
		switch {
		case c.Remove:
			resp.RemovedResources = append(resp.RemovedResources, c.Name)
		case c.Code != codes.OK:
			resp.ResourceErrors = append(resp.ResourceErrors, &discoverypb.ResourceError{
				ResourceName: &discoverypb.ResourceName{Name: c.Name},
				ErrorDetail:  status.New(c.Code, ErrorDetail).Proto(),
			})
		default:
			resp.Resources = append(resp.Resources, n.Resource(c))
		}
	}
	return resp
}

// Apply has an origin make changes, in one response per type.
func (n *Notation) Apply(o *relaytest.Origin, changes ...string) {
	n.tb.Helper()
	o.Apply(func(tx *relaytest.Tx) {
		for _, text := range changes {
			switch c := n.Parse(text); {
			case c.Remove:
				tx.Remove(Types[c.Short], c.Name)
			case c.Code != codes.OK:
				tx.Fail(Types[c.Short], c.Name, c.Code, ErrorDetail)
			case c.Unresolved || len(c.Aliases) > 0 || c.TTL > 0:
				tx.SetRaw(Types[c.Short], n.Resource(c))
			default:
				tx.Set(Types[c.Short], c.Name, n.Message(c.Short, c.Name, c.Rev), fmt.Sprint("v", c.Rev))
			}
		}
	})
}

// Describe writes a response to a client.
func (n *Notation) Describe(r *relaytest.Response) string {
	var parts []string
	for _, res := range r.Resources {
		rev := "@" + cmp.Or(n.Revision(res.Digest), "?")
		switch {
		case res.Heartbeat():
			rev = "~"
		case res.Body == nil && len(res.Aliases) > 0:
			parts = append(parts, res.Name+"?")
			continue
		}
		if res.TTL > 0 {
			rev += "(" + res.TTL.String() + ")"
		}
		parts = append(parts, strings.Join(append([]string{res.Name + rev}, res.Aliases...), "="))
	}
	slices.Sort(parts)
	for _, name := range slices.Sorted(slices.Values(r.Removed)) {
		parts = append(parts, "-"+name)
	}
	for _, e := range r.Errors {
		parts = append(parts, "!"+e.Name+":"+e.Code.String())
	}
	text := strings.Join(parts, " ")
	if r.SotW() {
		text = "{" + text + "}"
	}
	return strings.TrimSpace(ShortName(r.TypeURL) + " " + text)
}

// numbered matches a range of numbers in a name, such as "web{1..9}".
var numbered = regexp.MustCompile(`\{(\d+)\.\.(\d+)\}`)

// expandWord expands a word with a range of numbers. The numbers have the width of the range's end.
func expandWord(word string) (words []string) {
	at := numbered.FindStringSubmatchIndex(word)
	if at == nil {
		return []string{word}
	}
	last := word[at[4]:at[5]]
	from, _ := strconv.Atoi(word[at[2]:at[3]])
	to, _ := strconv.Atoi(last)
	for i := from; i <= to; i++ {
		words = append(words, fmt.Sprintf("%s%0*d%s", word[:at[0]], len(last), i, word[at[1]:]))
	}
	return words
}

// Names expands the ranges in space-separated names.
func Names(text string) string {
	var words []string
	for word := range strings.FieldsSeq(text) {
		words = append(words, expandWord(word)...)
	}
	return strings.Join(words, " ")
}

// Changes splits "cds a@1, cds b{1..2}@1" into changes.
func Changes(text string) (changes []string) {
	for change := range strings.SplitSeq(text, ", ") {
		changes = append(changes, expandWord(change)...)
	}
	return changes
}

// countedWord matches a resource in a response whose name contains a number.
var countedWord = regexp.MustCompile(`^((?:[^@=]*[^@=\d])?)(\d+)((?:[@~=].*)?)$`)

// Shorten writes three or more resources or names with consecutive numbers as one range.
func Shorten(response string) string {
	words := strings.Fields(response)
	var out []string
	for i := 0; i < len(words); {
		first := countedWord.FindStringSubmatch(strings.TrimLeft(words[i], "{"))
		n, last := 1, ""
		for ; first != nil && i+n < len(words); n++ {
			next := countedWord.FindStringSubmatch(strings.TrimRight(words[i+n], "}"))
			number, _ := strconv.Atoi(first[2])
			want := fmt.Sprintf("%0*d", len(first[2]), number+n)
			if next == nil || next[1] != first[1] || next[2] != want || next[3] != first[3] {
				break
			}
			last = want
		}
		if n < 3 {
			out = append(out, words[i])
			i++
			continue
		}
		word := strings.Replace(words[i], first[2], "{"+first[2]+".."+last+"}", 1)
		if strings.HasSuffix(words[i+n-1], "}") {
			word += "}"
		}
		out = append(out, word)
		i += n
	}
	return strings.Join(out, " ")
}
