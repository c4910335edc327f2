package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// results is the file that deploy/docs/capacity.md quotes.
const results = root + "/bench/results/2026-11-21-b3961e91a0bf.md"

// cells returns the cells of a table's row.
func cells(row string) []string {
	all := strings.Split(strings.Trim(row, "| \n"), "|")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// coefficients returns those of the model, in its units, by kind and term; and their rows.
func coefficients(t *testing.T, text string) (of map[string]float64, rows []string) {
	t.Helper()
	of = map[string]float64{}
	for _, match := range regexp.MustCompile(`(?m)^\| (CPU|RSS) \| ([^|]+) \| ([\d.]+) (µs|MiB|KiB|bytes) \|$`).FindAllStringSubmatch(text, -1) {
		value, err := strconv.ParseFloat(match[3], 64)
		if err != nil {
			t.Fatal(err)
		}
		of[match[1]+" "+match[2]] = value
		rows = append(rows, match[0])
	}
	if len(of) != 9 {
		t.Fatalf("%s has %d coefficients of the model, want 9", results, len(of))
	}
	return of, rows
}

// TestCapacity holds the figures of capacity.md to the results of the bench, and works its
// examples out.
func TestCapacity(t *testing.T) {
	page := pages(t)["deploy/docs/capacity.md"]
	text, err := os.ReadFile(results)
	if err != nil {
		t.Fatal(err)
	}
	of, rows := coefficients(t, string(text))
	for _, row := range rows {
		if !strings.Contains(page, row+"\n") {
			t.Errorf("capacity.md has no row %s", row)
		}
	}
	// What the page quotes, as the results have it and as the page has it.
	for result, quote := range map[string]string{
		"| tender | 3 | 324 | 71.9 | 101 | 102 | 1083091 |":                                          "1,083,091 bytes, at 324 µs",
		"| tender | 2 | 1575 | 1862 | 49.0 |":                                                        "after 1,575 ms, for 1,862 ms of CPU",
		"| tender | 5 | 388 | 267 | 35.1 |":                                                          "after 388 ms",
		"| tender | 3 | 1208 | 375 | 407 |":                                                          "375 ms, and nothing is sent again",
		"Errors of the fit: CPU 7 %, at most 13 %; RSS 11 %, at most 22 %.":                          "7 % in CPU (at most 13 %) and 11 % in RSS (at most\n22 %)",
		"| 5000 clients, 100 resources of 1024 B, wildcard, 4/s | 0.394 | 0.423 | 7 % | 280 | 234 |": "280 MiB where it says 234",
		"wildcard, 4/s, tree of three | 0.425 |":                                                     "took 0.425 cores where one relay took 0.394",
		", of 1000 of 1024 B, a change every 1 s | 1 + 2 | 0.106 | 236 | 0.21 | 0.49 |":              "| 10000 | 1 + 2 | 0.21 | 0.49 |",
		", of 1000 of 1024 B, a change every 1 s | 1 + 20 | 0.106 | 236 | 2.12 | 4.63 |":             "| 100000 | 1 + 20 | 2.12 | 4.63 |",
		", of 1000 of 1024 B, a change every 1 s | 1 + 200 | 0.106 | 236 | 21.2 | 46.1 |":            "| 1000000 | 1 + 200 | 21.2 | 46.1 |",
		fmt.Sprintf("| CPU | more, if it is by name | %g µs |", of["CPU more, if it is by name"]):    fmt.Sprintf("(by name: × %.1f µs)", of["CPU a delivery"]+of["CPU more, if it is by name"]),
		fmt.Sprintf("| RSS | a client and name | %g bytes |", of["RSS a client and name"]):           fmt.Sprintf("names × %g bytes", of["RSS a client and name"]),
		fmt.Sprintf("| CPU | a delivery | %g µs |", of["CPU a delivery"]):                            fmt.Sprintf("changes × %g µs + deliveries × %g µs", of["CPU a change"], of["CPU a delivery"]),
		fmt.Sprintf("| RSS | the process | %g MiB |", of["RSS the process"]):                         fmt.Sprintf("= %g + clients × (%g KiB", of["RSS the process"], of["RSS a client"]),
		fmt.Sprintf("| RSS | a KiB of resources | %g bytes |", of["RSS a KiB of resources"]):         fmt.Sprintf("resources × (%g bytes + KiB each × %g bytes)", of["RSS a resource"], of["RSS a KiB of resources"]),
	} {
		if !strings.Contains(string(text), result) {
			t.Errorf("the results do not have %q, which is quoted as %q", result, quote)
		}
		if !strings.Contains(page, quote) {
			t.Errorf("capacity.md does not say %q, which is how %q is quoted", quote, result)
		}
	}
	_, examples, _ := strings.Cut(page, "<!-- examples")
	found := 0
	for line := range strings.Lines(examples) {
		if cells := cells(line); len(cells) == 9 && !strings.Contains(line, "---") && cells[0] != "" {
			found++
			if want := workedOut(t, cells, of); strings.Join(cells[5:], " | ") != want {
				t.Errorf("capacity.md: %s ends with %q, want %q", cells[0], strings.Join(cells[5:], " | "), want)
			}
		}
	}
	if found < 5 {
		t.Errorf("capacity.md has %d examples, want 5 at least", found)
	}
}

// workedOut returns the last columns of an example: of 5,000 clients on one relay.
func workedOut(t *testing.T, cells []string, of map[string]float64) string {
	t.Helper()
	number := func(s string) float64 {
		v, err := strconv.ParseFloat(strings.ReplaceAll(s, ",", ""), 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	const clients, kib, mib = 5000.0, 1 << 10, 1 << 20
	resources, bytes, changes := number(cells[1]), number(cells[2]), number(cells[4])
	share, names, perDelivery, overhead := 1.0, 0.0, of["CPU a delivery"], 164.0
	if cells[3] != "all" {
		names = number(cells[3])
		share, perDelivery, overhead = names/resources, perDelivery+of["CPU more, if it is by name"], 196
	}
	deliveries := changes * clients * share
	cores := (changes*of["CPU a change"] + deliveries*perDelivery) / 1e6
	memory := of["RSS the process"] + clients*(of["RSS a client"]*kib+names*of["RSS a client and name"])/mib +
		resources*(of["RSS a resource"]+bytes/kib*of["RSS a KiB of resources"])/mib
	rate := deliveries * (bytes + overhead) * 8 / 1e6
	return fmt.Sprintf("%s | %.2f | %.0f | %.0f", thousands(deliveries), cores, memory, rate)
}

// thousands writes a number as the pages do.
func thousands(v float64) string {
	s := strconv.FormatFloat(v, 'f', -1, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
