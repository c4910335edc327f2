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
)

// screenshots is where pictures of the pages are put for the documentation.
var screenshots = flag.String("screenshots", "", "put pictures of the pages into this `directory`")

// A world is a relay with an origin and clients, and where operators find it.
type world struct {
	t      *testing.T
	origin *relaytest.Origin
	relay  *relaytest.Relay
	site   string
}

func newWorld(t *testing.T, env ...string) *world {
	t.Helper()
	w := &world{t: t, origin: relaytest.NewOrigin(t, relaytest.OriginOptions{})}
	opts := w.origin.RelayOptions()
	opts.Env, opts.Options.Version = append(env, "TENDER_ADMIN_LISTEN=127.0.0.1:0"), "v1.2.3"
	w.relay = relaytest.StartRelay(t, opts)
	w.site = "http://" + w.relay.AdminAddrs()[0].String()
	return w
}

// connect has a client connect that answers by itself.
func (w *world) connect(opts relaytest.ClientOptions) *relaytest.Client {
	w.t.Helper()
	opts.AutoAck = true
	c := w.relay.Client(opts)
	w.t.Cleanup(c.Close)
	return c
}

func address(of []net.Addr) string { return of[0].String() }

// A tab is a page in a browser. What goes wrong on any of its pages fails the test.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu    sync.Mutex
	wrong []string
}

// open starts a browser.
func open(t *testing.T) *tab {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, // root may not have one
		chromedp.DisableGPU,
		chromedp.WindowSize(1200, 1000),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
	)
	all, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, closed := chromedp.NewContext(all)
	ctx, cancel := context.WithTimeout(ctx, 4*relaytest.Patience)
	b := &tab{t: t, ctx: ctx}
	t.Cleanup(func() {
		cancel()
		closed() // and waits for the process
		stop()
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, w := range b.wrong {
			t.Errorf("the browser says: %s", w)
		}
	})
	chromedp.ListenTarget(ctx, b.listen)
	b.do(cdplog.Enable(), network.Enable(), runtime.Enable())
	return b
}

// listen takes note of what the browser complains of.
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

func (b *tab) note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
}

func (b *tab) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.t.Fatalf("%v; the page says:\n%s", err, b.text("body"))
	}
}

// click clicks on the first element that a selector finds. A live page may have replaced it before the click comes: then it is looked for again.
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
			b.t.Fatalf("click on %s: %v; the page says:\n%s", selector, err, b.text("body"))
		}
	}
}

// text returns what stands in the element that a selector finds, nothing if there is none.
func (b *tab) text(selector string) (text string) {
	_ = chromedp.Run(b.ctx, chromedp.Evaluate(fmt.Sprintf("(document.querySelector(%q) || {}).textContent || ''", selector), &text)) // then it is empty
	return text
}

// await waits until texts stand in the element that a selector finds. It does not load
// the page anew.
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
		case <-time.After(20 * time.Millisecond): // between two looks
		case <-ctx.Done():
			b.t.Fatalf("%s has no %q; it says:\n%s", selector, missing, have)
		}
	}
}

// evaluate returns what an expression comes to on the page.
func evaluate[T any](b *tab, expression string) (value T) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, &value))
	return value
}

// picture puts a picture of the page into the documentation, if that is asked for.
func (b *tab) picture(name string) {
	b.t.Helper()
	b.save(name, func(png *[]byte) chromedp.Action { return chromedp.FullScreenshot(png, 100) })
}

// pictureOf does so with one part of the page.
func (b *tab) pictureOf(name, selector string) {
	b.t.Helper()
	b.save(name, func(png *[]byte) chromedp.Action { return chromedp.Screenshot(selector, png, chromedp.ByQuery) })
}

func (b *tab) save(name string, take func(*[]byte) chromedp.Action) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	var png []byte
	b.do(take(&png))
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// liven has enough happen for pictures to show something.
func (b *tab) liven(w *world) {
	if *screenshots == "" {
		return
	}
	for i := range 600 {
		for range 1 + i%7 {
			w.origin.Put(relaytest.Endpoints("checkout", fmt.Sprintf("10.0.%d.%d:80", i/256, i%256)))
		}
		select {
		case <-time.After(100 * time.Millisecond): // as changes go
		case <-b.ctx.Done():
		}
	}
}
