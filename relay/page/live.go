package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"time"
)

// maxFollowers is how many may follow pages at once.
const maxFollowers = 64

// How often a page that is followed is looked at, and how long a follower may take to read.
const (
	pace    = 2 * time.Second
	patient = 10 * time.Second
)

// An update is what is new of a page: its title, and sections by name.
type update struct {
	Title    string                   `json:"title"`
	At       time.Time                `json:"at"`
	Sections map[string]template.HTML `json:"sections"`
}

// follow sends the changes of a page as events, until the browser disconnects or the pages are closed. The first event
// has the whole page, which may have changed since it was served.
func (p *Pages) follow(make func(*http.Request) (view, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case p.places <- struct{}{}:
			defer func() { <-p.places }()
		default:
			http.Error(w, fmt.Sprintf("%d pages are followed already, as many as may be", maxFollowers), http.StatusServiceUnavailable)
			return
		}
		f := follower{w: w, to: http.NewResponseController(w), has: map[string]template.HTML{}}
		// The server's bounds are for requests that are answered at once.
		if err := f.to.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		for {
			if m := p.page(r.URL.RequestURI()[len("/live"):], r, make); f.tell(m) != nil {
				return
			}
			select {
			case <-ticker.C:
			case <-r.Context().Done():
				return
			case <-p.closed:
				return
			}
		}
	}
}

// A follower receives the changes of a page.
type follower struct {
	w   http.ResponseWriter
	to  *http.ResponseController
	has map[string]template.HTML
}

// tell sends the sections that have changed. If the page does not exist any more, such as that of a client that has
// disconnected, it sends the event "gone".
func (f *follower) tell(m *made) error {
	event := "sections"
	u := update{Title: m.Title, At: m.At, Sections: map[string]template.HTML{}}
	if m.Refused != "" {
		event, u.Title = "gone", m.Refused
	}
	for _, s := range m.Sections {
		if f.has[s.Name] != s.HTML {
			f.has[s.Name], u.Sections[s.Name] = s.HTML, s.HTML
		}
	}
	data, err := json.Marshal(u)
	if err != nil {
		return err
	}
	if err := f.to.SetWriteDeadline(time.Now().Add(patient)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := fmt.Fprintf(f.w, "event: %s\ndata: %s\n\n", event, data); err != nil {
		return err
	}
	return f.to.Flush()
}
