package downstream

import (
	"sync"
	"testing"
	"time"

	xdspb "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// clusterViews has a view for each cluster of nodes. It counts calls of Join and current members.
type clusterViews struct {
	views          map[string]*cache.View
	joins, members int
}

func (v *clusterViews) Join(n *node, _ Caller) (Group, error) {
	v.joins++
	view := v.views[n.GetCluster()]
	if view == nil {
		return Group{}, status.Error(codes.ResourceExhausted, "too many groups")
	}
	v.members++
	return Group{View: view, Key: n.GetCluster(), Leave: sync.OnceFunc(func() { v.members-- })}, nil
}

// R017, R018: a repeated or omitted Node is not resolved again, so it joins no group. A different Node is. The stream
// is a member of one group at a time, and of none after its end.
func TestR017_R018_OnlyChangedNodesAreResolved(t *testing.T) {
	first := &node{Id: "a", Cluster: "one", ClientFeatures: []string{"x"}}
	parameters := &node{Id: "a", Cluster: "one", DynamicParameters: map[string]*xdspb.ContextParams{
		wire.ClusterType: {Params: map[string]string{"shard": "1"}},
	}}
	for _, tt := range []struct {
		name  string
		later *node // omitted if nil
		joins int
		ends  codes.Code
		cfg   Config
	}{
		{"repeated", first, 1, codes.OK, Config{}},
		{"omitted", nil, 1, codes.OK, Config{}},
		{"of the same group", &node{Id: "b", Cluster: "one"}, 2, codes.OK, Config{}},
		{"of another group", &node{Id: "a", Cluster: "two"}, 2, codes.Unavailable, Config{}},
		{"of a group without room", &node{Id: "a", Cluster: "three"}, 2, codes.ResourceExhausted, Config{}},
		{"with ignored parameters", parameters, 2, codes.OK, Config{}},
		{"with other parameters", parameters, 2, codes.Unavailable, Config{DynamicParameters: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := &clusterViews{views: make(map[string]*cache.View)}
			for _, cluster := range []string{"one", "two"} {
				v.views[cluster], _ = cache.New(cache.Config{})
			}
			tt.cfg.Views = v
			server, err := New(tt.cfg)
			check.OK(t, err)
			s := &stream{server: server, cfg: &server.cfg, rpc: discardClient{}}
			request := func(n *node) error {
				r := &wire.Request{TypeURL: wire.ClusterType}
				if n != nil {
					raw, err := proto.Marshal(n)
					check.OK(t, err)
					r.Node, r.NodeBytes = raw, len(raw)
				}
				return s.handleNow(r, time.Now())
			}
			check.OK(t, request(first))
			for range 3 {
				if err = request(tt.later); err != nil {
					break
				}
			}
			if status.Code(err) != tt.ends {
				t.Errorf("ended with %v, want %v", err, tt.ends)
			}
			if tt.ends == codes.OK && v.members != 1 || v.joins != tt.joins {
				t.Errorf("%d joins and %d members, want %d and 1", v.joins, v.members, tt.joins)
			}
			s.close()
			if v.members != 0 {
				t.Errorf("%d members after the stream ended, want none", v.members)
			}
		})
	}
}
