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
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
)

const pem = "-----BEGIN PRIVATE KEY-----"

// key is a secret, which may be in a Secret or in a cluster.
var key = &tlspb.TlsCertificate{PrivateKey: &corepb.DataSource{Specifier: &corepb.DataSource_InlineString{InlineString: pem}}}

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

// cluster returns one with a secret in it.
func cluster(t *testing.T, name string, revision int) *wire.Resource {
	t.Helper()
	tls, err := anypb.New(&tlspb.UpstreamTlsContext{CommonTlsContext: &tlspb.CommonTlsContext{TlsCertificates: []*tlspb.TlsCertificate{key}}})
	if err != nil {
		t.Fatal(err)
	}
	return resource(t, wire.ClusterType, name, &clusterpb.Cluster{
		Name: name, AltStatName: fmt.Sprint("revision-", revision),
		TransportSocket: &corepb.TransportSocket{Name: "tls", ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: tls}},
	})
}

// someEdited are clusters of two groups, one with dynamic parameters, one of a collection, and a Secret.
func someEdited(t *testing.T) (all []Edited) {
	add := func(group, key, name string, was, is *wire.Resource) {
		all = append(all, Edited{Origin: "default", Difference: rollout.Difference{
			Part: rollout.PartKey{Group: group, Shared: strings.HasPrefix(name, "xdstp:")}, Difference: cache.Difference{Key: key, Name: name, Was: was, Is: is},
		}})
	}
	const glob, member = "xdstp://a/envoy.config.cluster.v3.Cluster/shop/*", "xdstp://a/envoy.config.cluster.v3.Cluster/shop/x"
	secret := resource(t, wire.SecretType, "key", &tlspb.Secret{Name: "key", Type: &tlspb.Secret_TlsCertificate{TlsCertificate: key}})
	add("h", wire.ClusterType, "web", cluster(t, "web", 1), cluster(t, "web", 2))
	add("g", wire.ClusterType, "web", cluster(t, "web", 1), cluster(t, "web", 2))
	add("g", wire.ClusterType, "new", nil, cluster(t, "new", 1))
	add("g", wire.ClusterType, wire.WithParameters("new", map[string]string{"zone": "a"}), nil, cluster(t, "new", 2))
	add("g", wire.SecretType, "key", secret, nil)
	add("g", cache.Collection(wire.ClusterType, glob), member, cluster(t, member, 1), nil)
	return all
}

// ask returns the changes that a choice has, one a word, and the answer.
func ask(t *testing.T, all []Edited, c admin.RolloutChoice) (changes string, d admin.RolloutDiff) {
	t.Helper()
	d, err := RolloutDiff(all, c)
	if err != nil {
		t.Fatalf("%+v: %v", c, err)
	}
	var words []string
	for _, of := range d.Changes {
		word := of.Change + ":" + of.Group + ":" + of.Name
		if of.AskedAs != "" || of.Shared {
			word += fmt.Sprintf(":%s:%v", of.AskedAs, of.Shared)
		}
		if of.Parameters != nil {
			word += fmt.Sprint(":", of.Parameters)
		}
		if (of.Before == nil) != (of.Change == "added") || (of.After == nil) != (of.Change == "removed") {
			t.Errorf("%s: before %v, after %v", word, of.Before, of.After)
		}
		words = append(words, word)
	}
	return strings.Join(words, " "), d
}

func TestRolloutDiffIsInOrder(t *testing.T) {
	const collected = "removed:g:xdstp://a/envoy.config.cluster.v3.Cluster/shop/x:xdstp://a/envoy.config.cluster.v3.Cluster/shop/*:true"
	for _, tt := range []struct {
		choice admin.RolloutChoice
		total  int
		want   string
	}{
		{admin.RolloutChoice{}, 6, "added:g:new added:g:new:map[zone:a] changed:g:web changed:h:web " + collected + " removed:g:key"},
		{admin.RolloutChoice{Type: wire.ClusterType, Group: "g"}, 4, "added:g:new added:g:new:map[zone:a] changed:g:web " + collected},
		{admin.RolloutChoice{Type: wire.ClusterType, Name: "web"}, 2, "changed:g:web changed:h:web"},
		{admin.RolloutChoice{Type: wire.ClusterType, Name: "new"}, 2, "added:g:new added:g:new:map[zone:a]"},
		{admin.RolloutChoice{Type: wire.ListenerType}, 0, ""},
	} {
		tt.choice.Limit = 100
		got, d := ask(t, someEdited(t), tt.choice)
		if got != tt.want || d.Total != tt.total || d.Next != "" || (d.Bodies != nil) != (tt.choice.Name != "") || d.Changes == nil {
			t.Errorf("%+v: %d changes %q, next %q, want %d %q", tt.choice, d.Total, got, d.Next, tt.total, tt.want)
		}
	}
	var pages []string
	for c := (admin.RolloutChoice{Page: admin.Page{Limit: 2}}); ; {
		page, d := ask(t, someEdited(t), c)
		if pages = append(pages, page); d.Next == "" {
			break
		}
		c.After = d.Next
	}
	if got, want := strings.Join(pages, " | "), "added:g:new added:g:new:map[zone:a] | changed:g:web changed:h:web | "+collected+" removed:g:key"; got != want {
		t.Errorf("pages %q, want %q", got, want)
	}
}

// TestB36_RolloutDiffHasNoSecrets: a Secret has no content, and what is sensitive in other types is redacted.
func TestB36_RolloutDiffHasNoSecrets(t *testing.T) {
	all := someEdited(t)
	_, d := ask(t, all, admin.RolloutChoice{Type: wire.ClusterType, Name: "web", Page: admin.Page{Limit: 100}})
	for i, of := range []*admin.RolloutContent{d.Changes[0].Before, d.Changes[0].After} {
		body := string(d.Bodies[of.SHA256])
		if !json.Valid([]byte(body)) || !strings.Contains(body, fmt.Sprint("revision-", i+1)) || !strings.Contains(body, "[redacted]") || strings.Contains(body, pem) || of.Version == "" || of.Bytes == 0 {
			t.Errorf("content %d: %s of %+v", i, body, of)
		}
	}
	if len(d.Bodies) != 2 {
		t.Errorf("%d bodies of two contents in two groups", len(d.Bodies))
	}
	if _, d := ask(t, all, admin.RolloutChoice{Type: wire.SecretType, Name: "key", Page: admin.Page{Limit: 100}}); len(d.Bodies) != 0 || len(d.Changes) != 1 {
		t.Errorf("a Secret is shown: %+v", d)
	}
}

func TestRolloutDiffIsBounded(t *testing.T) {
	var all []Edited
	for i := range 3 * admin.MaxBodies {
		all = append(all, Edited{Difference: rollout.Difference{
			Part: rollout.PartKey{Group: fmt.Sprint(i)}, Difference: cache.Difference{Key: wire.ClusterType, Name: "web", Is: cluster(t, "web", i)},
		}})
	}
	if _, d := ask(t, all, admin.RolloutChoice{Type: wire.ClusterType, Name: "web", Page: admin.Page{Limit: 100}}); len(d.Bodies) != admin.MaxBodies || d.Total != len(all) {
		t.Errorf("%d bodies of %d changes", len(d.Bodies), d.Total)
	}
}

func TestRolloutDiffRefuses(t *testing.T) {
	for want, c := range map[string]struct {
		code int
		of   admin.RolloutChoice
	}{
		"name=xdstp://%":     {http.StatusBadRequest, admin.RolloutChoice{Type: wire.ClusterType, Name: "xdstp://%"}},
		"no edition changes": {http.StatusNotFound, admin.RolloutChoice{Type: wire.ClusterType, Name: "nobody"}},
		"after=!":            {http.StatusBadRequest, admin.RolloutChoice{Page: admin.Page{After: "!"}}},
	} {
		if _, err := RolloutDiff(someEdited(t), c.of); admin.CodeOf(err) != c.code || !strings.HasPrefix(fmt.Sprint(err), want) {
			t.Errorf("%+v: %v, want %d, %s", c.of, err, c.code, want)
		}
	}
}
