package browser

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// screenshots is the directory for the pictures of the documentation. Empty means that none are taken.
var screenshots = flag.String("screenshots", "", "put pictures of the pages into this `directory`")

// A world is a relay with an origin.
type world struct {
	t      *testing.T
	origin *relaytest.Origin
	relay  *instance.Relay
	site   string // URL of the admin address, without a slash at the end
}

// newWorld starts an origin and a relay with further variables. They are stopped when the test ends.
func newWorld(t *testing.T, env ...string) *world {
	t.Helper()
	w := &world{t: t, origin: relaytest.NewOrigin(t, relaytest.OriginOptions{})}
	opts := instance.Of(w.origin)
	opts.Env, opts.Options.Version = append(env, "TENDER_ADMIN_LISTEN=127.0.0.1:0"), "v1.2.3"
	w.relay = instance.Start(t, opts)
	w.site = "http://" + w.relay.AdminAddrs()[0].String()
	return w
}

// connect connects a client that acknowledges responses automatically.
func (w *world) connect(opts relaytest.ClientOptions) *relaytest.Client {
	w.t.Helper()
	opts.AutoAck = true
	c := w.relay.Client(opts)
	w.t.Cleanup(c.Close)
	return c
}

func address(of []net.Addr) string { return of[0].String() }

// A tab is a page in a browser. Any error or console message of a page fails the test, and so does a request to
// another host.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu    sync.Mutex
	wrong []string // guarded by mu; messages of the browser
}

// open starts a browser, which ends with the test.
func open(t *testing.T) *tab {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, // Chromium does not start as root with a sandbox
		chromedp.DisableGPU,
		chromedp.WindowSize(1200, 1000),
		chromedp.WSURLReadTimeout(relaytest.Patience), // of the start
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
	)
	all, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, closed := chromedp.NewContext(all)
	b := &tab{t: t, ctx: ctx}
	t.Cleanup(func() {
		closed() // waits for the process
		stop()
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, w := range b.wrong {
			t.Errorf("message of the browser: %s", w)
		}
	})
	if err := chromedp.Run(ctx); err != nil { // the context of the first call is that of the browser
		t.Fatalf("start the browser: %v", err)
	}
	chromedp.ListenTarget(ctx, b.listen)
	b.do(cdplog.Enable(), network.Enable(), runtime.Enable())
	return b
}

// listen records exceptions, console messages, log entries, and requests to other hosts.
func (b *tab) listen(event any) {
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.note("exception: %v", e.ExceptionDetails)
	case *runtime.EventConsoleAPICalled:
		b.note("console.%s: %v", e.Type, e.Args)
	case *cdplog.EventEntryAdded:
		b.note("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, "http://127.0.0.1:") {
			b.note("request for %s", e.Request.URL)
		}
	}
}

// note records a message that fails the test when it ends.
func (b *tab) note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
}

// run runs actions for at most [relaytest.Patience].
func (b *tab) run(actions ...chromedp.Action) error {
	ctx, cancel := context.WithTimeout(b.ctx, relaytest.Patience)
	defer cancel()
	return chromedp.Run(ctx, actions...)
}

// do runs actions and fails the test if one returns an error.
func (b *tab) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := b.run(actions...); err != nil {
		b.t.Fatalf("%v; text of the page:\n%s", err, b.text("body"))
	}
}

// click clicks on the first element that matches a selector. A live page may replace the element before the click, so
// click tries again.
func (b *tab) click(selector string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, relaytest.Patience)
	defer cancel()
	for {
		err := chromedp.Run(ctx, chromedp.Click(selector, chromedp.ByQuery))
		if err == nil {
			return
		}
		if gone := (*cdproto.Error)(nil); !errors.As(err, &gone) || ctx.Err() != nil {
			b.t.Fatalf("click on %s: %v; text of the page:\n%s", selector, err, b.text("body"))
		}
	}
}

// text returns the text of the first element that matches a selector, or "" if there is none.
func (b *tab) text(selector string) (text string) {
	_ = b.run(chromedp.Evaluate(fmt.Sprintf("(document.querySelector(%q) || {}).textContent || ''", selector), &text)) // then it is empty
	return text
}

// await waits until the first element that matches a selector contains all texts. It does not reload the page.
func (b *tab) await(selector string, texts ...string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, relaytest.Patience)
	defer cancel()
	for {
		have, missing := b.text(selector), ""
		for _, text := range texts {
			if !strings.Contains(have, text) {
				missing = text
			}
		}
		if missing == "" {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond): // polling interval
		case <-ctx.Done():
			b.t.Fatalf("%s does not contain %q; its text:\n%s", selector, missing, have)
		}
	}
}

// evaluate returns the value of a JavaScript expression on the page.
func evaluate[T any](b *tab, expression string) (value T) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, &value))
	return value
}

// picture saves a screenshot of the page, with -screenshots.
func (b *tab) picture(name string) {
	b.t.Helper()
	b.save(name, func(png *[]byte) chromedp.Action { return chromedp.FullScreenshot(png, 100) })
}

// pictureOf saves a screenshot of the element that matches a selector, with -screenshots.
func (b *tab) pictureOf(name, selector string) {
	b.t.Helper()
	b.save(name, func(png *[]byte) chromedp.Action { return chromedp.Screenshot(selector, png, chromedp.ByQuery) })
}

// save takes a screenshot and writes it to the directory of -screenshots. It does nothing without the flag.
func (b *tab) save(name string, take func(*[]byte) chromedp.Action) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	var png []byte
	b.do(chromedp.Poll("performance.getEntriesByName('first-contentful-paint').length > 0", nil)) // before, the page has no size
	b.do(take(&png))
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// liven makes changes for a minute, so that screenshots show activity. It does nothing without -screenshots.
func (b *tab) liven(w *world) {
	if *screenshots == "" {
		return
	}
	for i := range 600 {
		for range 1 + i%7 {
			w.origin.Put(relaytest.Endpoints("checkout", fmt.Sprintf("10.0.%d.%d:80", i/256, i%256)))
		}
		select {
		case <-time.After(100 * time.Millisecond): // a realistic rate of changes
		case <-b.ctx.Done():
		}
	}
}
