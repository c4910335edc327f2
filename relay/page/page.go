package page

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/rollout"
)

// Config has the sources of the pages. Status, Fleet and History are required.
type Config struct {
	Status  func() admin.Status
	Fleet   admin.Fleet
	History *History

	// Pending returns the pending changes. If it is nil, the pages have none.
	Pending func(context.Context) []admin.PendingChange

	// Rollouts returns the state of the rollouts, by origin. If it is nil or returns none, the pages have no rollouts.
	Rollouts func() []*rollout.Status

	// Tier requests the state of the peers. Nil if TENDER_PEERS is off.
	Tier func(context.Context) admin.TierStatus

	// Logger receives the errors of templates, which are bugs. Nil discards them.
	Logger *slog.Logger
}

// Pages serves the status page and the pages to which it links.
type Pages struct {
	cfg       Config
	mux       *http.ServeMux
	cache     pageCache
	followers chan struct{} // semaphore with one slot for each event stream
	closed    chan struct{}
	close     sync.Once
	tier      *background[admin.TierStatus]      // nil if there are no peers
	pending   *background[[]admin.PendingChange] // nil if the pages have none
}

// New returns pages. The caller must call Close.
func New(cfg Config) *Pages {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Pages{
		cfg: cfg, mux: http.NewServeMux(), followers: make(chan struct{}, maxFollowers), closed: make(chan struct{}),
		cache: pageCache{pages: make(map[string]*renderedPage)},
	}
	if cfg.Tier != nil {
		p.tier = newBackground(tierAge, cfg.Tier)
	}
	if cfg.Pending != nil {
		p.pending = newBackground(pendingAge, cfg.Pending)
	}
	for _, route := range []struct {
		path  string
		build func(*http.Request) (view, error)
	}{
		{"/{$}", p.overview}, {"/clients", p.clients}, {"/clients/{number}", p.client},
		{"/resources", p.resources}, {"/resource", p.resource},
	} {
		p.mux.HandleFunc("GET "+route.path, p.serve(route.build))
		p.mux.HandleFunc("GET /live"+route.path, p.follow(route.build))
	}
	p.mux.HandleFunc("GET /", p.serve(func(*http.Request) (view, error) {
		return view{}, admin.Refuse(http.StatusNotFound, errors.New("the page does not exist"))
	}))
	p.mux.Handle("GET /assets/", http.FileServerFS(files))
	return p
}

// ServeHTTP implements http.Handler.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

// Close ends the event streams, and calls that are in progress in the background.
func (p *Pages) Close() {
	p.close.Do(func() {
		close(p.closed)
		if p.tier != nil {
			p.tier.close()
		}
		if p.pending != nil {
			p.pending.close()
		}
	})
}

//go:embed templates assets
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"ago": ago, "brief": brief, "count": func(n int) string { return number(float64(n)) },
	"short": short, "plural": plural, "cut": humanize.Cut, "group": groupName, "bytes": humanize.Bytes[int64],
	"unsigned": humanize.Bytes[uint64],
	"clock":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
}).ParseFS(files, "templates/*.html"))

// A view is the content of a page before it is rendered.
type view struct {
	Title string
	Nav   string // path of the entry in the navigation

	// Form is the data of the template of the page's form; nil if it has none. It is not a section, so that events do not
	// change it while the user types.
	Form *section

	Sections []section
}

// A section is a part of a page. The template of the same name renders its data.
type section struct {
	Name string
	Data any
}

// A renderedPage is a page as HTML.
type renderedPage struct {
	Title, Nav string
	Form       template.HTML
	Sections   []renderedSection
	At         time.Time

	Error string // why the page cannot be shown; empty if it can
	code  int    // HTTP status code
}

type renderedSection struct {
	Name string
	HTML template.HTML
}

// serve returns the handler of a page.
func (p *Pages) serve(build func(*http.Request) (view, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		page := p.page(r.URL.RequestURI(), r, build)
		var out bytes.Buffer
		if err := templates.ExecuteTemplate(&out, "page", page); err != nil {
			p.cfg.Logger.Error("status page not rendered", slog.Any("err", err))
			http.Error(w, "the page could not be rendered", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(page.code)
		_, _ = w.Write(out.Bytes()) // fails only if the browser has disconnected
	}
}

// cacheTime is how long a rendered page is reused for equal requests.
const cacheTime = time.Second

// A pageCache has the pages that were rendered within cacheTime, by request URI.
type pageCache struct {
	mu    sync.Mutex
	pages map[string]*renderedPage
}

// page returns a rendered page. Equal requests within cacheTime share it.
func (p *Pages) page(key string, r *http.Request, build func(*http.Request) (view, error)) *renderedPage {
	p.cache.mu.Lock()
	defer p.cache.mu.Unlock() // renders one page at a time, to limit the load on the relay
	now := time.Now()
	for key, page := range p.cache.pages {
		if now.Sub(page.At) >= cacheTime {
			delete(p.cache.pages, key)
		}
	}
	if page := p.cache.pages[key]; page != nil {
		return page
	}
	page := p.render(r, build, now)
	p.cache.pages[key] = page
	return page
}

// render builds and renders a page. An error becomes the content of the page.
func (p *Pages) render(r *http.Request, build func(*http.Request) (view, error), now time.Time) *renderedPage {
	v, err := build(r)
	page := &renderedPage{Title: v.Title, Nav: v.Nav, At: now, code: http.StatusOK}
	if err == nil && v.Form != nil {
		page.Form, err = execute(*v.Form)
	}
	for _, s := range v.Sections {
		if err != nil {
			break
		}
		var html template.HTML
		html, err = execute(s)
		page.Sections = append(page.Sections, renderedSection{s.Name, html})
	}
	if err != nil {
		page = &renderedPage{
			Title: "Page not available", Nav: v.Nav, At: now, Error: err.Error(), code: admin.CodeOf(err),
		}
		if page.code == http.StatusInternalServerError {
			p.cfg.Logger.Error("status page not rendered", slog.String("path", r.URL.Path), slog.Any("err", err))
		}
	}
	return page
}

// execute renders a section. The template escapes its data, so the result is safe HTML.
func execute(s section) (template.HTML, error) {
	var out bytes.Buffer
	err := templates.ExecuteTemplate(&out, s.Name, s.Data)
	return template.HTML(out.String()), err //nolint:gosec // G203: the template has escaped its data
}
