package soak

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// An operator is whoever has a relay do things, and looks how it is: at its admin address.
type operator string

// overAdmin leaves nothing open behind.
var overAdmin = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: relaytest.Patience}

// do has the relay do what a command says. Errors: the relay is not there, or refuses.
func (o operator) do(command string, args any) error {
	body, err := json.Marshal(args)
	if err != nil {
		return err
	}
	resp, err := overAdmin.Post("http://"+string(o)+"/api/v1/"+command, "application/json", strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	return answer(resp, func(io.Reader) error { return nil })
}

// answer reads what was answered, and closes it.
func answer(resp *http.Response, read func(io.Reader) error) error {
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body) // what can be read of it is in the error
		return fmt.Errorf("%s: %s: %s", resp.Request.URL, resp.Status, b)
	}
	return read(resp.Body)
}

func (o operator) holds() ([]admin.Hold, error) {
	resp, err := overAdmin.Get("http://" + string(o) + "/api/v1/holds")
	if err != nil {
		return nil, err
	}
	var all admin.Holds
	err = answer(resp, func(r io.Reader) error { return json.NewDecoder(r).Decode(&all) })
	return all.Holds, err
}

// metrics returns the values of all series, each by its name and labels as they are written.
func (o operator) metrics() (map[string]float64, error) {
	resp, err := overAdmin.Get("http://" + string(o) + "/metrics")
	if err != nil {
		return nil, err
	}
	values := make(map[string]float64)
	err = answer(resp, func(r io.Reader) error {
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			if at := strings.LastIndexByte(lines.Text(), ' '); at > 0 && !strings.HasPrefix(lines.Text(), "#") {
				if values[lines.Text()[:at]], err = strconv.ParseFloat(lines.Text()[at+1:], 64); err != nil {
					return err
				}
			}
		}
		return lines.Err()
	})
	return values, err
}
