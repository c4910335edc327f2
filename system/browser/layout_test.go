package browser

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A screen is a size of a browser window in pixels.
type screen struct{ width, height int64 }

var screens = []screen{{360, 740}, {1400, 900}, {1920, 1080}}

var schemes = []string{"light", "dark"}

// show loads a page with a window size and a color scheme.
func (b *tab) show(url string, on screen, scheme string) {
	b.t.Helper()
	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.EmulateViewport(on.width, on.height), chromedp.Navigate(url))
}

// layout is JavaScript that returns the faults in the layout of a page. Content must not be wider than the window or,
// on a phone, than its box. The picture must fill the width. Names must fit into their boxes and be large enough.
// Cells must have the heading of their column as a label, and on a phone, no text may be in the narrow column of headings.
const layout = `(() => {
  const bad = [], wide = innerWidth, phone = wide <= 600, main = document.querySelector("main");
  const style = getComputedStyle(main);
  const inner = main.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  if (document.scrollingElement.scrollWidth > wide) { bad.push("the page is " + document.scrollingElement.scrollWidth + " wide"); }
  if (phone) {
    for (const e of document.querySelectorAll(".scroll, .tile, .item, td, tbody th")) {
      if (e.scrollWidth > e.clientWidth + 1) { bad.push("wider than its box: " + e.textContent.trim().slice(0, 60)); }
    }
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    for (const e of document.querySelectorAll("td .words")) {
      if (e.clientWidth <= 8 * rem) { bad.push("squeezed into the column of headings: " + e.textContent.trim().slice(0, 60)); }
    }
  }
  const svg = document.querySelector("svg.fanout");
  if (svg && phone === (svg.getBoundingClientRect().width > 0)) { bad.push("the picture is shown on a phone, or not shown elsewhere"); }
  if (svg && !phone) {
    const width = svg.getBoundingClientRect().width, scale = width / svg.viewBox.baseVal.width;
    if (Math.abs(width - inner) > 1) { bad.push("the picture is " + width + " of " + inner + " wide"); }
    if (scale * 13 < 11) { bad.push("the text of the picture has " + scale * 13 + " pixels"); }
    for (const box of svg.querySelectorAll(".box")) {
      for (const text of box.querySelectorAll("text")) {
        if (text.getBBox().width > box.querySelector("rect").getBBox().width - 12) { bad.push("does not fit into its box: " + text.textContent); }
      }
    }
  }
  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.querySelectorAll("thead th")].map((e) => e.textContent);
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.children].forEach((cell, i) => {
        if (!cell.colSpan || cell.colSpan === 1) { if (cell.dataset.label !== heads[i]) { bad.push(heads[i] + " is labelled " + cell.dataset.label); } }
      });
    }
  }
  return bad;
})()`

// accessible fails the test if axe finds a serious or critical violation on the current page.
func (b *tab) accessible(what string) {
	b.t.Helper()
	source, err := os.ReadFile("testdata/axe/node_modules/axe-core/axe.min.js")
	if err != nil {
		b.t.Fatalf("%v: run `make deps`", err)
	}
	var found []string
	b.do(chromedp.Evaluate(string(source)+"; 0", nil), chromedp.Evaluate(`axe.run().then((result) => result.violations
		.filter((v) => v.impact === "serious" || v.impact === "critical")
		.flatMap((v) => v.nodes.map((n) => v.id + ": " + n.target.join(" ") + ": " + n.failureSummary)))`, &found,
		func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	for _, violation := range found {
		b.t.Errorf("%s: axe violation: %s", what, violation)
	}
}

// longCluster is a Node.cluster whose node group has a key that is too long for any box.
var longCluster = "PAYMENTS_AND_REFUNDS_" + strings.Repeat("eu-central-1-", 5) + "AMMUNITION_WAREHOUSE"

// TestPageLayout checks the layout of the pages on a phone, a laptop and a large screen, in light and dark. The tool
// axe must find no serious violation.
func TestPageLayout(t *testing.T) {
	w := newWorld(t, "TENDER_NODE_GROUP_BY=cluster")
	w.origin.Put(relaytest.Cluster("checkout"), relaytest.Cluster("broken"), relaytest.Endpoints("checkout"), relaytest.Listener("ingress", "routes"))
	for _, cluster := range []string{"shop", longCluster} {
		node := relaytest.EnvoyNode("sidecar~10.0.0.1~" + cluster + "-6d5f7c9b8-x2x4z.default~default.svc.cluster.local")
		node.Cluster = cluster
		c := w.connect(relaytest.ClientOptions{Node: node, Reject: func(r *relaytest.Response) error {
			if strings.Contains(r.String(), "broken") {
				return errors.New("Error adding/updating cluster(s) broken: " + strings.Repeat("no such filter ", 20))
			}
			return nil
		}})
		c.Subscribe(relaytest.ClusterType, "*")
		c.Subscribe(relaytest.EndpointType, "checkout")
		c.Subscribe(relaytest.ListenerType, "*")
	}
	b := open(t)
	b.do(chromedp.Navigate(w.site + "/"))
	b.await("#summary", "1 of 1 client rejects cds", "Streams2")
	b.await("#fanout", "lds")
	for _, on := range screens {
		for _, scheme := range schemes {
			for _, path := range []string{"/", "/clients", "/clients/1", "/resources?type=cds", "/resource?type=cds&name=broken"} {
				what := fmt.Sprintf("%s at %d pixels, %s", path, on.width, scheme)
				b.show(w.site+path, on, scheme)
				if bad := evaluate[[]string](b, layout); len(bad) > 0 {
					t.Errorf("%s: %q", what, bad)
				}
				b.accessible(what)
			}
		}
	}
	b.show(w.site+"/", screens[0], "light")
	if !strings.Contains(b.text("#fanout .tree"), longCluster) {
		t.Errorf("on a phone, the fan-out does not contain the whole name of the group:\n%s", b.text("#fanout .tree"))
	}
	b.show(w.site+"/", screens[1], "light")
	if !strings.Contains(evaluate[string](b, `[...document.querySelectorAll("svg.fanout .view title")].map((e) => e.textContent).join()`), longCluster) {
		t.Error("no view has a title with the whole name of the group")
	}
}

// TestPageOfATier: with peers, the page begins with the relays of the tier, including unreachable ones. Each has a
// link to its own page.
func TestPageOfATier(t *testing.T) {
	ca := certs.NewCA(t)
	dir := t.TempDir()
	caFile := certs.WriteFile(t, dir, "ca.pem", ca.PEM)
	cert, key := ca.Sign(certs.Leaf{URI: "spiffe://example.org/ns/tender/sa/tender", Names: []string{"127.0.0.1"}}).Write(t, dir)
	rules := certs.WriteFile(t, dir, "authz.yaml", []byte(`
version: 1
rules:
- name: fleet
  identities: ["spiffe://example.org/**"]
operators: ["spiffe://example.org/ns/ops/**"]
peers: ["spiffe://example.org/ns/tender/**"]
`))
	peers := []string{proxy.FreeAddress(t), proxy.FreeAddress(t), proxy.FreeAddress(t)} // no relay listens at the last one
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("checkout"))
	var relays []*instance.Relay
	for i, address := range peers[:2] {
		_, port, _ := net.SplitHostPort(address)
		opts := instance.Of(o)
		opts.Env = append(opts.Env, "TENDER_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=127.0.0.1:0,0.0.0.0:"+port,
			"TENDER_TLS_CERT="+cert, "TENDER_TLS_KEY="+key, "TENDER_TLS_CLIENT_CA="+caFile, "TENDER_AUTHZ="+rules, fmt.Sprint("TENDER_NODE_ID=relay-", i),
			"TENDER_PEERS="+strings.Join(peers, ","), "TENDER_PEERS_TLS_CA="+caFile, "TENDER_PEERS_TLS_CERT="+cert, "TENDER_PEERS_TLS_KEY="+key)
		relays = append(relays, instance.Start(t, opts))
	}
	b := open(t)
	site := "http://" + relays[0].AdminAddrs()[0].String() + "/"
	b.do(chromedp.Navigate(site))
	b.await("#tier", "Tier of 3 relays: 1 unreachable", "relay-0", "this relay", "relay-1", peers[2], "connection refused")
	if first := evaluate[string](b, `document.querySelector("main section").id`); first != "tier" {
		t.Errorf("the first section is %s, want the tier", first)
	}
	if link := evaluate[string](b, `document.querySelector("#tier tbody a").href`); link != "https://"+peers[1]+"/" {
		t.Errorf("the link of the peer is %s, want its own page", link)
	}
	for _, on := range screens {
		for _, scheme := range schemes {
			b.show(site, on, scheme)
			b.await("#tier", "relay-1")
			if bad := evaluate[[]string](b, layout); len(bad) > 0 {
				t.Errorf("at %d pixels, %s: %q", on.width, scheme, bad)
			}
			b.accessible(fmt.Sprintf("the tier at %d pixels, %s", on.width, scheme))
		}
	}
	b.show(site, screens[1], "light")
	b.await("#tier", "relay-1")
	b.picture("tier")
}
