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

// clusterViews has a view for each cluster of nodes, and counts who joins and who is
// there.
type clusterViews struct {
	views          map[string]*cache.View
	joins, members int
}

func (v *clusterViews) Join(n *node, _ Caller) (Group, error) {
	v.joins++
	view := v.views[n.GetCluster()]
	if view == nil {
		return Group{}, status.Error(codes.ResourceExhausted, "one too many")
	}
	v.members++
	return Group{View: view, Key: n.GetCluster(), Leave: sync.OnceFunc(func() { v.members-- })}, nil
}

// A Node that is repeated, or left out, is not looked at: nobody joins anything (R017).
// One that differs is, and the stream is in one group at a time, and in none when it has
// ended (R018).
func TestR017_R018_OnlyChangedNodesAreResolved(t *testing.T) {
	first := &node{Id: "a", Cluster: "one", ClientFeatures: []string{"x"}}
	parameters := &node{Id: "a", Cluster: "one", DynamicParameters: map[string]*xdspb.ContextParams{
		wire.ClusterType: {Params: map[string]string{"shard": "1"}},
	}}
	for _, tt := range []struct {
		name  string
		later *node // nil: none at all
		joins int
		ends  codes.Code
		cfg   Config
	}{
		{"repeated", first, 1, codes.OK, Config{}},
		{"left out", nil, 1, codes.OK, Config{}},
		{"of the same group", &node{Id: "b", Cluster: "one"}, 2, codes.OK, Config{}},
		{"of another group", &node{Id: "a", Cluster: "two"}, 2, codes.Unavailable, Config{}},
		{"of a group without room", &node{Id: "a", Cluster: "three"}, 2, codes.ResourceExhausted, Config{}},
		{"with parameters that nobody looks at", parameters, 2, codes.OK, Config{}},
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
			say := func(n *node) error {
				r := &wire.Request{TypeURL: wire.ClusterType}
				if n != nil {
					raw, err := proto.Marshal(n)
					check.OK(t, err)
					r.Node, r.NodeBytes = raw, len(raw)
				}
				return s.handleNow(r, time.Now())
			}
			check.OK(t, say(first))
			for range 3 {
				if err = say(tt.later); err != nil {
					break
				}
			}
			if status.Code(err) != tt.ends {
				t.Errorf("ended: %v, want %v", err, tt.ends)
			}
			if tt.ends == codes.OK && v.members != 1 || v.joins != tt.joins {
				t.Errorf("%d joins, %d in a group, want %d and 1", v.joins, v.members, tt.joins)
			}
			s.close()
			if v.members != 0 {
				t.Errorf("%d in a group after the stream ended", v.members)
			}
		})
	}
}
