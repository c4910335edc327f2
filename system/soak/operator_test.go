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

// An operator is the admin address of a relay. Its methods call the admin API.
type operator string

// overAdmin keeps no connection open, so that idle connections do not count as growth.
var overAdmin = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: relaytest.Patience}

// do sends a command to the relay. It returns an error if the relay is unreachable or rejects the command.
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

// answer passes the body of a response to read and closes it. It returns an error if the status is not 200.
func answer(resp *http.Response, read func(io.Reader) error) error {
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body) // only for the error text
		return fmt.Errorf("%s: %s: %s", resp.Request.URL, resp.Status, b)
	}
	return read(resp.Body)
}

// pending returns the pending changes of the relay.
func (o operator) pending() ([]admin.PendingChange, error) {
	resp, err := overAdmin.Get("http://" + string(o) + "/api/v1/pending")
	if err != nil {
		return nil, err
	}
	var all admin.Pending
	err = answer(resp, func(r io.Reader) error { return json.NewDecoder(r).Decode(&all) })
	return all.Pending, err
}

// metrics returns the values of all series. A key is the name and the labels in the text format.
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
