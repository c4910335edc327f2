package browser

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/xdstender/tender/relay/relaytest"
)

// newMesh returns a world with four clients, of which one rejects the cluster "broken".
func newMesh(t *testing.T) *world {
	w := newWorld(t)
	w.origin.Put(relaytest.Cluster("checkout"), relaytest.Cluster("payment"), relaytest.Endpoints("checkout"), relaytest.Listener("ingress", "routes"))
	for i := range 3 {
		c := w.connect(relaytest.ClientOptions{Variant: relaytest.Delta, Node: relaytest.EnvoyNode(fmt.Sprintf("sidecar~%d", i)), Reject: func(r *relaytest.Response) error {
			if i == 2 && strings.Contains(r.String(), "broken") {
				return errors.New("Error adding/updating cluster(s) broken: no such filter")
			}
			return nil
		}})
		c.Subscribe(relaytest.ClusterType, "*")
		c.Subscribe(relaytest.EndpointType, "checkout")
		c.Subscribe(relaytest.ListenerType, "*")
	}
	c := w.connect(relaytest.ClientOptions{Variant: relaytest.SotW, Node: relaytest.GRPCNode("shop")})
	c.Subscribe(relaytest.ListenerType, "ingress")
	return w
}

// TestPagesAreTrueAndLive follows a change and a NACK through the pages. Each page must show the right numbers, and
// must update without a reload.
func TestPagesAreTrueAndLive(t *testing.T) {
	w := newMesh(t)
	b := open(t)
	b.do(chromedp.Navigate(w.site + "/"))
	b.await("h1", "No problems")
	b.await("#summary", "Streams4", "Rejecting clients0of 4")
	b.await("#fanout", "cds2 resources", "3 clients", "lds1 resource", "1 client")
	b.await("#pulse", "As of")
	b.do(chromedp.Evaluate("window.loaded = 'once'", nil))

	w.origin.Put(relaytest.Cluster("search"))
	b.await("#fanout", "cds3 resources")
	b.liven(w)
	w.origin.Put(relaytest.Cluster("broken"))
	b.await("#summary", "1 problem", "1 of 3 clients rejects cds", "Rejecting clients1of 4")
	b.await("#fanout", "1 rejects")
	b.await("#clients tbody tr.rejected", "sidecar~2", "rejects cds")
	if got := evaluate[string](b, "window.loaded"); got != "once" {
		t.Errorf("the page was reloaded: window.loaded is %q", got)
	}
	b.picture("fan-out")

	b.click(".alerts a")
	b.await("#clients", "1 client", "sidecar~2")
	b.click("#clients tbody a")
	b.await("h1", "sidecar~2")
	b.await("#client-types", "Last rejection of cds", "INVALID_ARGUMENT", "Error adding/updating cluster(s) broken: no such filter")
	b.await("#client-resources", "rejected 1", "accepted")
	b.picture("client")
	b.click("#client-resources tr.rejected a")
	b.await("h1", "broken")
	b.await("#resource-body", "name: broken")
	b.await("#holders", "rejected 1", "accepted 2", "no such filter")
	b.picture("resource")

	b.do(chromedp.Navigate(w.site + "/clients"))
	b.do(chromedp.SendKeys("input[name=node]", "shop\n", chromedp.ByQuery))
	b.await("#clients", "1 client", "shop", "lds")
	b.do(chromedp.Navigate(w.site + "/"))
	b.await("#summary", "1 of 3 clients rejects cds")
	w.origin.Stop()
	b.await("#summary", "Origin default is not connected", "stale for")
	b.await("#fanout", "not connected", "stale for")
	b.picture("stale")
}

// TestUpdatesKeepPressedLinks checks that an update between the press and the release of a button does not replace the
// link below it: the browser would ignore the click. After the release, the section is updated.
func TestUpdatesKeepPressedLinks(t *testing.T) {
	w := newMesh(t)
	b := open(t)
	b.do(chromedp.Navigate(w.site + "/"))
	b.await("#clients", "4 clients")
	b.do(chromedp.Poll("performance.getEntriesByName('first-contentful-paint').length > 0", nil)) // before, input is dropped
	center := evaluate[[]float64](b, `(() => {
		const link = document.querySelector("#clients tbody a"), r = link.getBoundingClientRect();
		link.addEventListener("click", (event) => { event.preventDefault(); window.clicked = true; });
		return [r.x + r.width / 2, r.y + r.height / 2];
	})()`)
	mouse := input.DispatchMouseEvent(input.MousePressed, center[0], center[1]).WithButton(input.Left).WithClickCount(1)
	b.do(mouse)
	w.connect(relaytest.ClientOptions{Node: relaytest.EnvoyNode("late")}).Subscribe(relaytest.ClusterType)
	b.await("#summary", "Streams5")
	mouse.Type = input.MouseReleased
	b.do(mouse)
	if !evaluate[bool](b, "window.clicked === true") {
		t.Error("the link was not clicked")
	}
	b.await("#clients", "5 clients")
}

// TestPagesWithoutScript checks that the page shows the same content without JavaScript.
func TestPagesWithoutScript(t *testing.T) {
	w := newMesh(t)
	b := open(t)
	b.do(emulation.SetScriptExecutionDisabled(true), chromedp.Navigate(w.site+"/"))
	for _, want := range []string{"Streams", "sidecar~0", "3 clients", "lds"} {
		var html string
		b.do(chromedp.OuterHTML("main", &html, chromedp.ByQuery))
		if !strings.Contains(html, want) {
			t.Errorf("without JavaScript the page does not contain %q:\n%s", want, html)
		}
	}
	b.do(chromedp.Click("#fanout svg a", chromedp.ByQuery), chromedp.WaitVisible("form[role=search]", chromedp.ByQuery))
}

// contrast is JavaScript that returns the texts with too little contrast to their background (WCAG 2.2, 1.4.3: 4.5 to
// 1).
const contrast = `(() => {
  const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = ([r, g, b]) => { const f = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const behind = (e) => {
    const rect = e.closest("svg .box") && e.closest("svg .box").querySelector("rect");
    if (rect) { return parse(getComputedStyle(rect).fill); }
    for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 1) { return c; } }
    return [255, 255, 255, 1];
  };
  const bad = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || e.closest("script, title, .skip") || e.tagName === "OPTION") { continue; }
    const style = getComputedStyle(e);
    const [a, b] = [light(parse(e.closest("svg") ? style.fill : style.color)), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) { bad.push(texts.currentNode.textContent.trim().slice(0, 40) + ": " + ratio.toFixed(2)); }
  }
  return bad;
})()`

// TestPagesForEverybody checks that the pages are readable in light and dark and on a phone, and usable with only the
// keyboard.
func TestPagesForEverybody(t *testing.T) {
	w := newMesh(t)
	w.origin.Put(relaytest.Cluster("broken"))
	b := open(t)
	b.do(chromedp.Navigate(w.site + "/"))
	b.await("#summary", "1 of 3 clients rejects cds")
	w.origin.Put(relaytest.StaticCluster("broken", "127.0.0.1:1"))
	b.do(chromedp.Navigate(w.site + "/resource?type=cds&name=broken"))
	b.await("#history .diff", "-type: EDS", "+type: STATIC")
	b.do(chromedp.Navigate(w.site + "/"))
	w.origin.Stop() // so that the page shows every kind of text
	b.await("#summary", "Origin default is not connected", "stale for")
	paths := []string{"/", "/clients", "/clients?rejected=true", "/clients/3", "/resources?type=cds", "/resource?type=cds&name=broken"}
	for _, scheme := range []string{"light", "dark"} {
		for _, path := range paths {
			b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}), chromedp.Navigate(w.site+path))
			if bad := evaluate[[]string](b, contrast); len(bad) > 0 {
				t.Errorf("%s, %s: too little contrast: %q", path, scheme, bad)
			}
		}
	}
	b.do(chromedp.EmulateViewport(360, 740))
	for _, path := range paths {
		b.do(chromedp.Navigate(w.site + path))
		if wide := evaluate[int](b, "document.scrollingElement.scrollWidth"); wide > 360 {
			t.Errorf("%s is %d pixels wide on a phone of 360", path, wide)
		}
	}
	b.picture("phone")

	b.do(chromedp.EmulateViewport(1200, 1000), chromedp.Navigate(w.site+"/"), chromedp.KeyEvent("\t"))
	if got := evaluate[string](b, "document.activeElement.textContent"); got != "Skip to content" {
		t.Errorf("the first element in the tab order is %q, want the link that skips the navigation", got)
	}
	for range 20 {
		b.do(chromedp.KeyEvent("\t"))
		if evaluate[bool](b, "document.activeElement.closest('.alerts') !== null") {
			b.do(chromedp.KeyEvent("\r"), chromedp.WaitVisible("form[role=search]", chromedp.ByQuery))
			return
		}
	}
	t.Error("the keyboard does not reach the links of problems")
}
