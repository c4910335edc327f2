package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"time"
)

// maxFollowers is the maximum number of open event streams.
const maxFollowers = 64

const (
	// followInterval is the interval at which an event stream renders its page again.
	followInterval = 2 * time.Second

	// followWriteTimeout is the timeout of writing one event.
	followWriteTimeout = 10 * time.Second
)

// An update is the data of an event: the title of the page, and its changed sections by name.
type update struct {
	Title    string                   `json:"title"`
	At       time.Time                `json:"at"`
	Sections map[string]template.HTML `json:"sections"`
}

// follow sends the changes of a page as events, until the browser disconnects or the pages are closed. The first event
// contains all sections, because they may have changed since the page was served.
func (p *Pages) follow(build func(*http.Request) (view, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case p.followers <- struct{}{}:
			defer func() { <-p.followers }()
		default:
			text := fmt.Sprintf("too many open event streams: at most %d are allowed", maxFollowers)
			http.Error(w, text, http.StatusServiceUnavailable)
			return
		}
		f := follower{w: w, controller: http.NewResponseController(w), sent: map[string]template.HTML{}}
		// The read timeout of the server would end the stream.
		if err := f.controller.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		ticker := time.NewTicker(followInterval)
		defer ticker.Stop()
		for {
			page := p.page(r.URL.RequestURI()[len("/live"):], r, build)
			if f.send(page) != nil {
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

// A follower is an event stream of one browser.
type follower struct {
	w          http.ResponseWriter
	controller *http.ResponseController
	sent       map[string]template.HTML // the newest content of each section
}

// send sends the sections that have changed. If the page does not exist any more, it sends the event "gone". An example
// is the page of a client that has disconnected.
func (f *follower) send(page *renderedPage) error {
	event := "sections"
	u := update{Title: page.Title, At: page.At, Sections: map[string]template.HTML{}}
	if page.Error != "" {
		event, u.Title = "gone", page.Error
	}
	for _, s := range page.Sections {
		if f.sent[s.Name] != s.HTML {
			f.sent[s.Name], u.Sections[s.Name] = s.HTML, s.HTML
		}
	}
	data, err := json.Marshal(u)
	if err != nil {
		return err
	}
	err = f.controller.SetWriteDeadline(time.Now().Add(followWriteTimeout))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := fmt.Fprintf(f.w, "event: %s\ndata: %s\n\n", event, data); err != nil {
		return err
	}
	return f.controller.Flush()
}
