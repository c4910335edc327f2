package operator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
)

const pem = "-----BEGIN PRIVATE KEY-----"

// key is a private key, for a Secret and for a cluster.
var key = &tlspb.TlsCertificate{PrivateKey: &corepb.DataSource{
	Specifier: &corepb.DataSource_InlineString{InlineString: pem},
}}

// resource returns a resource of version 7.
func resource(t *testing.T, typeURL, name string, m proto.Message) *wire.Resource {
	t.Helper()
	value, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	r, err := wire.NewResource(typeURL, name, "7", value)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// cluster returns a cluster with a private key. Its content depends on the revision.
func cluster(t *testing.T, name string, revision int) *wire.Resource {
	t.Helper()
	tls, err := anypb.New(&tlspb.UpstreamTlsContext{
		CommonTlsContext: &tlspb.CommonTlsContext{TlsCertificates: []*tlspb.TlsCertificate{key}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return resource(t, wire.ClusterType, name, &clusterpb.Cluster{
		Name: name, AltStatName: fmt.Sprint("revision-", revision),
		TransportSocket: &corepb.TransportSocket{
			Name: "tls", ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: tls},
		},
	})
}

// glob is a collection, and member the name of a cluster in it.
const (
	glob   = "xdstp://a/envoy.config.cluster.v3.Cluster/shop/*"
	member = "xdstp://a/envoy.config.cluster.v3.Cluster/shop/x"
)

// someEdited returns changes of clusters in two groups and of a Secret. One cluster has dynamic parameters, and one is
// of a collection.
func someEdited(t *testing.T) (all []Edited) {
	add := func(group, key, name string, before, after *wire.Resource) {
		all = append(all, Edited{Origin: "default", Difference: rollout.Difference{
			Section:    rollout.SectionKey{Group: group, Shared: strings.HasPrefix(name, "xdstp:")},
			Difference: pending.Difference{Key: key, Name: name, Was: before, Is: after},
		}})
	}
	secret := resource(t, wire.SecretType, "key", &tlspb.Secret{
		Name: "key", Type: &tlspb.Secret_TlsCertificate{TlsCertificate: key},
	})
	add("h", wire.ClusterType, "web", cluster(t, "web", 1), cluster(t, "web", 2))
	add("g", wire.ClusterType, "web", cluster(t, "web", 1), cluster(t, "web", 2))
	add("g", wire.ClusterType, "new", nil, cluster(t, "new", 1))
	add("g", wire.ClusterType, wire.WithParameters("new", map[string]string{"zone": "a"}), nil, cluster(t, "new", 2))
	add("g", wire.SecretType, "key", secret, nil)
	add("g", cache.Collection(wire.ClusterType, glob), member, cluster(t, member, 1), nil)
	return all
}

// diff returns the changes that a choice selects, as one word per change, and the response.
func diff(t *testing.T, all []Edited, c admin.RolloutChoice) (changes string, d admin.RolloutDiff) {
	t.Helper()
	d, err := RolloutDiff(all, c)
	if err != nil {
		t.Fatalf("%+v: %v", c, err)
	}
	var words []string
	for _, c := range d.Changes {
		word := c.Change + ":" + c.Group + ":" + c.Name
		if c.AskedAs != "" || c.Shared {
			word += fmt.Sprintf(":%s:%v", c.AskedAs, c.Shared)
		}
		if c.Parameters != nil {
			word += fmt.Sprint(":", c.Parameters)
		}
		if (c.Before == nil) != (c.Change == "added") || (c.After == nil) != (c.Change == "removed") {
			t.Errorf("%s: before %v, after %v", word, c.Before, c.After)
		}
		words = append(words, word)
	}
	return strings.Join(words, " "), d
}

func TestRolloutDiffOrder(t *testing.T) {
	const newClusters = "added:g:new added:g:new:map[zone:a]"
	const collected = "removed:g:" + member + ":" + glob + ":true"
	for _, tt := range []struct {
		choice admin.RolloutChoice
		total  int
		want   string
	}{
		{admin.RolloutChoice{}, 6, newClusters + " changed:g:web changed:h:web " + collected + " removed:g:key"},
		{admin.RolloutChoice{Type: wire.ClusterType, Group: "g"}, 4, newClusters + " changed:g:web " + collected},
		{admin.RolloutChoice{Type: wire.ClusterType, Name: "web"}, 2, "changed:g:web changed:h:web"},
		{admin.RolloutChoice{Type: wire.ClusterType, Name: "new"}, 2, newClusters},
		{admin.RolloutChoice{Type: wire.ListenerType}, 0, ""},
	} {
		tt.choice.Limit = 100
		got, d := diff(t, someEdited(t), tt.choice)
		if got != tt.want || d.Total != tt.total || d.Next != "" || d.Changes == nil {
			t.Errorf("%+v: %d changes %q, next %q, want %d %q", tt.choice, d.Total, got, d.Next, tt.total, tt.want)
		}
		if hasBodies := d.Bodies != nil; hasBodies != (tt.choice.Name != "") {
			t.Errorf("%+v: bodies present: %v, want them only with a name", tt.choice, hasBodies)
		}
	}
	var pages []string
	for c := (admin.RolloutChoice{Page: admin.Page{Limit: 2}}); ; {
		page, d := diff(t, someEdited(t), c)
		if pages = append(pages, page); d.Next == "" {
			break
		}
		c.After = d.Next
	}
	const want = newClusters + " | changed:g:web changed:h:web | " + collected + " removed:g:key"
	if got := strings.Join(pages, " | "); got != want {
		t.Errorf("pages %q, want %q", got, want)
	}
}

// TestB36_RolloutDiffHasNoSecrets verifies that a Secret has no body, and that bodies of other types have no sensitive
// fields.
func TestB36_RolloutDiffHasNoSecrets(t *testing.T) {
	all := someEdited(t)
	_, d := diff(t, all, admin.RolloutChoice{Type: wire.ClusterType, Name: "web", Page: admin.Page{Limit: 100}})
	for i, content := range []*admin.RolloutContent{d.Changes[0].Before, d.Changes[0].After} {
		body := string(d.Bodies[content.SHA256])
		redacted := strings.Contains(body, "[redacted]") && !strings.Contains(body, pem)
		if !json.Valid([]byte(body)) || !strings.Contains(body, fmt.Sprint("revision-", i+1)) || !redacted {
			t.Errorf("body %d: %s, want JSON of revision %d without the private key", i, body, i+1)
		}
		if content.Version == "" || content.Bytes == 0 {
			t.Errorf("content %d: %+v, want a version and a size", i, content)
		}
	}
	if len(d.Bodies) != 2 {
		t.Errorf("%d bodies of two contents in two groups, want 2", len(d.Bodies))
	}
	_, d = diff(t, all, admin.RolloutChoice{Type: wire.SecretType, Name: "key", Page: admin.Page{Limit: 100}})
	if len(d.Bodies) != 0 || len(d.Changes) != 1 {
		t.Errorf("change of a Secret: %+v, want no body", d)
	}
}

func TestRolloutDiffIsBounded(t *testing.T) {
	var all []Edited
	for i := range 3 * admin.MaxBodies {
		all = append(all, Edited{Difference: rollout.Difference{
			Section:    rollout.SectionKey{Group: fmt.Sprint(i)},
			Difference: pending.Difference{Key: wire.ClusterType, Name: "web", Is: cluster(t, "web", i)},
		}})
	}
	_, d := diff(t, all, admin.RolloutChoice{Type: wire.ClusterType, Name: "web", Page: admin.Page{Limit: 100}})
	if len(d.Bodies) != admin.MaxBodies || d.Total != len(all) {
		t.Errorf("%d bodies of %d changes, want %d of %d", len(d.Bodies), d.Total, admin.MaxBodies, len(all))
	}
}

func TestInvalidRolloutChoice(t *testing.T) {
	for want, c := range map[string]struct {
		code   int
		choice admin.RolloutChoice
	}{
		"name=xdstp://%":     {http.StatusBadRequest, admin.RolloutChoice{Type: wire.ClusterType, Name: "xdstp://%"}},
		"no edition changes": {http.StatusNotFound, admin.RolloutChoice{Type: wire.ClusterType, Name: "unchanged"}},
		"after=!":            {http.StatusBadRequest, admin.RolloutChoice{Page: admin.Page{After: "!"}}},
	} {
		_, err := RolloutDiff(someEdited(t), c.choice)
		if admin.CodeOf(err) != c.code || !strings.HasPrefix(fmt.Sprint(err), want) {
			t.Errorf("%+v: error %v with code %d, want %s with %d", c.choice, err, admin.CodeOf(err), want, c.code)
		}
	}
}
