package relay

import (
	"hash/maphash"
	"log/slog"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
)

// traits are hashes of the Node fields that an origin may use and that are not part of the group's key. A group keeps
// the traits of its first node.
type traits [4]uint64

// traitNames are the fields of the traits.
var traitNames = [...]string{"id", "cluster", "locality", "metadata"}

var traitSeed = maphash.MakeSeed()

// traitsOf returns the traits of a client's Node.
func traitsOf(n *corepb.Node) *traits {
	return &traits{
		maphash.String(traitSeed, proxyType(n.GetId())), maphash.String(traitSeed, n.GetCluster()),
		traitOf(n.GetLocality()), traitOf(n.GetMetadata()),
	}
}

// traitOf returns a hash of a message. Equal messages have equal hashes within one process.
func traitOf(m proto.Message) uint64 {
	encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m) // a decoded message can always be encoded
	return maphash.Bytes(traitSeed, encoded)
}

// comparesNodes reports whether new nodes of a group are compared with its first node, to log differences.
func (g *groups) comparesNodes(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	gr := g.byKey[key]
	return gr == nil || !gr.differenceLogged
}

// differingFields returns the fields in which a node differs from the first node of the group, once per group. An
// origin that uses these fields would see only the Node that the relay presents. Fields that select clients for
// rollouts do not count, because the origin does not use them.
func (gr *group) differingFields(t *traits, r *rollouts) (differ []string) {
	if gr.differenceLogged || t == nil {
		return nil
	}
	for i, name := range traitNames {
		if gr.firstTraits[i] != t[i] && !r.selectsBy(name) {
			differ = append(differ, name)
		}
	}
	gr.differenceLogged = len(differ) > 0
	return differ
}

// warnProxyType logs, once per group, that a client has another Istio proxy type than the relay.
func (gr *group) warnProxyType(n *corepb.Node, log *slog.Logger) {
	relayType, clientType := proxyType(gr.node.GetId()), proxyType(n.GetId())
	differ := relayType != clientType && relayType != "" && clientType != ""
	if differ && gr.proxyTypeLogged.CompareAndSwap(false, true) {
		log.Warn("client and relay differ in Istio proxy type; run one relay per type",
			slog.String("group", gr.key), slog.String("node", n.GetId()),
			slog.String("client_type", clientType), slog.String("relay_type", relayType))
	}
}

// proxyType returns the Istio proxy type of a node ID, such as sidecar or router. It is empty if the ID does not have
// the format of Istio.
func proxyType(id string) string {
	prefix, _, found := strings.Cut(id, "~")
	if !found {
		return ""
	}
	return prefix
}
