// Command grafana writes the dashboard for Grafana, deploy/grafana/tender.json. Its rows go from symptoms to details.
// Its queries use exported metrics only, which a test of package deploy verifies.
//
//	go run ./deploy/grafana >deploy/grafana/tender.json
package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	if err := write(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "grafana:", err)
		os.Exit(1)
	}
}

// write writes the dashboard as JSON.
func write(w io.Writer) error {
	text, err := encode(newDashboard(rows))
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}
