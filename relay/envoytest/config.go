package envoytest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// A Config is the dynamic configuration of an Envoy. A key is the section of /config_dump and the name of the
// resource, such as "dynamic_active_clusters/web"; the value is JSON. The key "runtime" holds the runtime. Versions
// and times are omitted, so that the Configs of two Envoys with the same resources are equal.
type Config map[string]string

// String returns the configuration, sorted by name.
func (c Config) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, "%s: %s\n", name, c[name])
	}
	return b.String()
}

// Names returns the names of the resources in a section, sorted.
func (c Config) Names(section string) (names []string) {
	for key := range c {
		if name, ok := strings.CutPrefix(key, section+"/"); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Config returns the current configuration of the Envoy. It fails the test if the admin endpoint does not answer.
func (e *Envoy) Config() Config {
	e.tb.Helper()
	c, err := e.config()
	if err != nil {
		e.tb.Fatalf("Envoy %s: %v", e.id, err)
	}
	return c
}

// AwaitConfig waits until the configuration of the Envoy equals want.
func (e *Envoy) AwaitConfig(want Config) {
	e.tb.Helper()
	e.Await("equal configuration", func() error { return e.Differs(want) })
}

// AwaitSame waits until the Envoy has the same configuration as another one. It reads both each time, because the
// other one may still hold resources that it will drop.
func (e *Envoy) AwaitSame(other *Envoy) {
	e.tb.Helper()
	e.Await("equal configuration", func() error { return e.DiffersFrom(other) })
}

// DiffersFrom returns an error with the differences between the configurations of two Envoys, or nil if they are equal.
func (e *Envoy) DiffersFrom(other *Envoy) error {
	want, err := other.config()
	if err != nil {
		return err
	}
	return e.Differs(want)
}

// Differs returns an error with the differences between the configuration of the Envoy and want, or nil if they are
// equal.
func (e *Envoy) Differs(want Config) error {
	got, err := e.config()
	if err != nil {
		return err
	}
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("configuration differs (-want +got):\n%s", diff)
	}
	return nil
}

// config reads /config_dump, which omits the private keys of Secrets, and /runtime.
func (e *Envoy) config() (Config, error) {
	var dump struct {
		Configs []map[string]json.RawMessage `json:"configs"`
	}
	if err := e.getJSON("/config_dump?include_eds", &dump); err != nil {
		return nil, err
	}
	c := make(Config)
	for _, part := range dump.Configs {
		for section, raw := range part {
			if !strings.HasPrefix(section, "dynamic_") && section != "ecds_filters" {
				continue // static resources or the bootstrap
			}
			var elements []map[string]any
			if err := json.Unmarshal(raw, &elements); err != nil {
				return nil, fmt.Errorf("%s: %w", section, err)
			}
			for _, element := range elements {
				c.add(section, element)
			}
		}
	}
	var runtime struct {
		Entries json.RawMessage `json:"entries"`
	}
	if err := e.getJSON("/runtime", &runtime); err != nil {
		return nil, err
	}
	c["runtime"] = string(runtime.Entries)
	return c, nil
}

// add adds an element of a section under its name. Several elements of one name are stored as sorted lines.
func (c Config) add(section string, element map[string]any) {
	forget(element)
	text := encode(element)
	key := section + "/" + nameOf(element)
	lines := append(strings.Split(c[key], "\n"), text)
	slices.Sort(lines)
	c[key] = strings.TrimPrefix(strings.Join(lines, "\n"), "\n")
}

// encode returns a value as JSON with sorted keys.
func encode(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic("encode what was decoded: " + err.Error())
	}
	return string(text)
}

// forget removes differences between Envoys with the same resources. It deletes versions and times, and sorts
// endpoints, because Envoy lists existing endpoints before new ones.
func forget(value any) {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range []string{"version_info", "last_updated", "last_update_attempt"} {
			delete(value, key)
		}
		for _, below := range value {
			forget(below)
		}
		if endpoints, ok := value["lb_endpoints"].([]any); ok {
			slices.SortFunc(endpoints, func(a, b any) int { return strings.Compare(encode(a), encode(b)) })
		}
	case []any:
		for _, below := range value {
			forget(below)
		}
	}
}

// nameOf returns the name of an element, or that of the resource inside it. It returns "" if there is none.
func nameOf(element map[string]any) string {
	for _, key := range []string{"name", "cluster_name"} {
		if name, ok := element[key].(string); ok {
			return name
		}
	}
	for _, key := range slices.Sorted(maps.Keys(element)) {
		if below, ok := element[key].(map[string]any); ok {
			if name := nameOf(below); name != "" {
				return name
			}
		}
	}
	return ""
}

// getJSON decodes the answer of the admin endpoint at a path.
func (e *Envoy) getJSON(path string, into any) error {
	text, err := e.Get(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Stats holds the values of counters and gauges by name.
type Stats map[string]int64

// Judged is a filter for [Envoy.Stats] that matches the statistics about accepted and rejected configuration.
const Judged = `\.(update_success|update_rejected|update_failure|init_fetch_timeout|connected_state|listener_modified|cluster_modified|` +
	`warming_clusters|total_listeners_warming)$|^control_plane\.`

// Sum returns the sum of the statistics whose last component is name, such as update_rejected of all types.
func (s Stats) Sum(name string) (sum int64) {
	for full, value := range s {
		if full == name || strings.HasSuffix(full, "."+name) {
			sum += value
		}
	}
	return sum
}

// Stats returns the statistics that match a regular expression, including those that have never changed.
func (e *Envoy) Stats(filter string) Stats {
	e.tb.Helper()
	s, err := e.stats(filter)
	if err != nil {
		e.tb.Fatalf("Envoy %s: %v", e.id, err)
	}
	return s
}

func (e *Envoy) stats(filter string) (Stats, error) {
	text, err := e.Get("/stats?filter=" + strings.NewReplacer("|", "%7C", `\`, "%5C", "^", "%5E", "+", "%2B").Replace(filter))
	if err != nil {
		return nil, err
	}
	s := make(Stats)
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil { // skips text values and histograms
			s[name] = n
		}
	}
	return s, nil
}

// Listener waits until a listener accepts connections and returns its address (host:port). If its configured port is
// 0, the address contains the port that the kernel chose.
func (e *Envoy) Listener(name string) string {
	e.tb.Helper()
	var address string
	e.Await("listener "+name, func() (err error) {
		if address, err = e.listener(name); err != nil {
			return err
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return address
}

// listener returns the address of a listener. It is an error if the listener has no port yet.
func (e *Envoy) listener(name string) (string, error) {
	var all struct {
		Statuses []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := e.getJSON("/listeners?format=json", &all); err != nil {
		return "", err
	}
	for _, l := range all.Statuses {
		if l.Name == name && l.Address.Socket.Port != 0 {
			return net.JoinHostPort(l.Address.Socket.Address, strconv.Itoa(l.Address.Socket.Port)), nil
		}
	}
	return "", fmt.Errorf("listeners are %v", all.Statuses)
}
