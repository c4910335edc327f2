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

	// Rollouts returns how the rollouts of the origins' changes stand. Nil, or none of them, shows nothing of rollouts.
	Rollouts func() []*rollout.Status

	// Tier asks the peers of the relay for their state. Nil if there are no peers.
	Tier func(context.Context) admin.FleetStatus

	// Logger receives the errors of templates, which there should be none of. Nil discards
	// them.
	Logger *slog.Logger
}

// Pages serves the status page and those that it links to.
type Pages struct {
	cfg    Config
	mux    *http.ServeMux
	made   recent
	places chan struct{} // one slot for each follower of a page
	closed chan struct{}
	close  sync.Once
	tier   *tierWatch // nil if there are no peers
}

// New returns pages. Close ends them.
func New(cfg Config) *Pages {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Pages{
		cfg: cfg, mux: http.NewServeMux(), places: make(chan struct{}, maxFollowers), closed: make(chan struct{}),
		made: recent{pages: make(map[string]*made)},
	}
	if cfg.Tier != nil {
		p.tier = newTierWatch(cfg.Tier)
	}
	for _, at := range []struct {
		path string
		make func(*http.Request) (view, error)
	}{
		{"/{$}", p.overview}, {"/clients", p.clients}, {"/clients/{number}", p.client}, {"/resources", p.resources}, {"/resource", p.resource},
	} {
		p.mux.HandleFunc("GET "+at.path, p.serve(at.make))
		p.mux.HandleFunc("GET /live"+at.path, p.follow(at.make))
	}
	p.mux.HandleFunc("GET /", p.serve(func(*http.Request) (view, error) {
		return view{}, admin.Refuse(http.StatusNotFound, errors.New("there is no such page"))
	}))
	p.mux.Handle("GET /assets/", http.FileServerFS(files))
	return p
}

// ServeHTTP implements http.Handler.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

// Close ends the events of pages, and a request to peers that is under way.
func (p *Pages) Close() {
	p.close.Do(func() {
		close(p.closed)
		if p.tier != nil {
			p.tier.close()
		}
	})
}

//go:embed templates assets
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"ago": ago, "brief": brief, "count": func(n int) string { return number(float64(n)) },
	"short": short, "plural": plural, "cut": humanize.Cut, "bytes": humanize.Bytes[int64],
	"unsigned": humanize.Bytes[uint64], "clock": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
}).ParseFS(files, "templates/*.html"))

// A view is what is shown at one path.
type view struct {
	Title string
	Under string // the page of the navigation that it belongs to

	// Form is the data of the template of the page's form; nil if it has none. It is not a section, so that events do not
	// change it while the user types.
	Form *section

	Sections []section
}

// A section is a part of a page, which its template, of the same name, makes of data.
type section struct {
	Name string
	Data any
}

// made is a page as it is sent.
type made struct {
	Title, Under string
	Form         template.HTML
	Sections     []madeSection
	At           time.Time

	Refused string // why there is no page
	code    int
}

type madeSection struct {
	Name string
	HTML template.HTML
}

// serve serves a page.
func (p *Pages) serve(make func(*http.Request) (view, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		m := p.page(r.URL.RequestURI(), r, make)
		var out bytes.Buffer
		if err := templates.ExecuteTemplate(&out, "page", m); err != nil {
			p.cfg.Logger.Error("status page not rendered", slog.Any("err", err))
			http.Error(w, "the page could not be made", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(m.code)
		_, _ = w.Write(out.Bytes()) // it fails only if the browser has disconnected
	}
}

// fresh is how long a rendered page is reused for equal requests.
const fresh = time.Second

// A recent has the pages that were rendered in the last second.
type recent struct {
	mu    sync.Mutex
	pages map[string]*made
}

// page returns a rendered page. Equal requests within a second share one.
func (p *Pages) page(key string, r *http.Request, build func(*http.Request) (view, error)) *made {
	p.made.mu.Lock()
	defer p.made.mu.Unlock() // one at a time: pages must not slow down what they are about
	now := time.Now()
	for key, m := range p.made.pages {
		if now.Sub(m.At) >= fresh {
			delete(p.made.pages, key)
		}
	}
	if m := p.made.pages[key]; m != nil {
		return m
	}
	m := p.render(r, build, now)
	p.made.pages[key] = m
	return m
}

func (p *Pages) render(r *http.Request, build func(*http.Request) (view, error), now time.Time) *made {
	v, err := build(r)
	m := &made{Title: v.Title, Under: v.Under, At: now, code: http.StatusOK}
	if err == nil && v.Form != nil {
		m.Form, err = execute(*v.Form)
	}
	for _, s := range v.Sections {
		if err != nil {
			break
		}
		var html template.HTML
		html, err = execute(s)
		m.Sections = append(m.Sections, madeSection{s.Name, html})
	}
	if err != nil {
		m = &made{Title: "Page not available", Under: v.Under, At: now, Refused: err.Error(), code: admin.CodeOf(err)}
		if m.code == http.StatusInternalServerError {
			p.cfg.Logger.Error("status page not rendered", slog.String("path", r.URL.Path), slog.Any("err", err))
		}
	}
	return m
}

// execute renders a section. The template escapes its data, so the result is safe HTML.
func execute(s section) (template.HTML, error) {
	var out bytes.Buffer
	err := templates.ExecuteTemplate(&out, s.Name, s.Data)
	return template.HTML(out.String()), err //nolint:gosec // G203: the template has escaped its data
}
