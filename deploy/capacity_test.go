package deploy_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestCapacity compares the figures of capacity.md with the results of the benchmark that it names, and computes the
// last four columns of its examples.
func TestCapacity(t *testing.T) {
	page := readText(t, "docs/capacity.md")
	results := readText(t, root+"/bench/results/"+regexp.MustCompile(`bench/results/([\w.-]+)`).FindStringSubmatch(page)[1])
	plain := strings.ReplaceAll(page, ",", "")
	model := map[string]float64{}
	for _, row := range regexp.MustCompile(`(?m)^\| (CPU|RSS) \| ([^|]+) \| ([\d.]+) (?:µs|MiB|KiB|bytes) \|$`).FindAllStringSubmatch(results, -1) {
		model[row[1]+" "+row[2]] = number(t, row[3])
		if !strings.Contains(page, row[0]+"\n") {
			t.Errorf("capacity.md does not have the coefficient %s", row[0])
		}
	}
	if len(model) != 9 {
		t.Fatalf("the results have %d coefficients of the model, want 9", len(model))
	}
	for _, formula := range []string{
		fmt.Sprintf("= changes × %g µs + deliveries × %g µs            (by name: × %.1f µs)\n", model["CPU a change"], model["CPU a delivery"], model["CPU a delivery"]+model["CPU more, if it is by name"]),
		fmt.Sprintf("= %g + clients × (%g KiB + names × %g bytes) + resources × (%g bytes + KiB each × %g bytes)\n",
			model["RSS the process"], model["RSS a client"], model["RSS a client and name"], model["RSS a resource"], model["RSS a KiB of resources"]),
	} {
		if !strings.Contains(page, formula) {
			t.Errorf("capacity.md does not have the formula %s", formula)
		}
	}
	// Figures of the text, and of the table of fleets.
	for _, figure := range []string{"1083091", "324", "1575", "1862", "388", "375", "280", "234", "0.394", "0.425", "0.21 | 0.49 |", "2.12 | 4.63 |", "21.2 | 46.1 |", "13 %", "22 %"} {
		if !strings.Contains(plain, figure) || !strings.Contains(results, figure) {
			t.Errorf("capacity.md and the results do not both have %s", figure)
		}
	}
	examples := regexp.MustCompile(`(?m)^\| .* \| ([\d.]+) \| (\d+) \| (all|\d+) \| ([\d.]+) \| (.* \| .* \| .* \| .*) \|$`).FindAllStringSubmatch(plain, -1)
	for _, row := range examples {
		if want := example(t, model, row[1:5]); row[5] != want {
			t.Errorf("capacity.md: an example ends with %s, want %s:\n%s", row[5], want, row[0])
		}
	}
	if len(examples) < 5 {
		t.Errorf("capacity.md has %d examples, want 5 at least", len(examples))
	}
}

// example returns the last columns of a row of examples, for 5,000 clients and the first columns: resources, bytes, names,
// and changes a second.
func example(t *testing.T, model map[string]float64, columns []string) string {
	t.Helper()
	const clients, kib, mib = 5000, 1 << 10, 1 << 20
	resources, bytes, changes := number(t, columns[0]), number(t, columns[1]), number(t, columns[3])
	share, names, delivery, overhead := 1.0, 0.0, model["CPU a delivery"], 164.0
	if columns[2] != "all" {
		names = number(t, columns[2])
		share, delivery, overhead = names/resources, delivery+model["CPU more, if it is by name"], 196
	}
	deliveries := changes * clients * share
	memory := model["RSS the process"] + clients*(model["RSS a client"]*kib+names*model["RSS a client and name"])/mib +
		resources*(model["RSS a resource"]+bytes/kib*model["RSS a KiB of resources"])/mib
	return fmt.Sprintf("%.0f | %.2f | %.0f | %.0f", deliveries, (changes*model["CPU a change"]+deliveries*delivery)/1e6, memory, deliveries*(bytes+overhead)*8/1e6)
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
