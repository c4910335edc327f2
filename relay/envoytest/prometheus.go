package envoytest

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// StartPrometheus starts a Prometheus with a YAML configuration, waits until it is ready, and returns its URL. It
// uses the binary on the PATH, else the one that `make deps` installs. The process is killed when tb ends.
func StartPrometheus(tb testing.TB, config string) (url string) {
	tb.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		path = filepath.Join(root(tb), ".bin", "prometheus")
		_, err = os.Stat(path)
	}
	if err != nil {
		tb.Fatalf("no Prometheus: %v: run `make deps`", err)
	}
	dir, address := tb.TempDir(), proxy.FreeAddress(tb)
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		tb.Fatalf("write the configuration of Prometheus: %v", err)
	}
	p := StartProcess(tb, "Prometheus", exec.Command(path, "--config.file="+file, "--storage.tsdb.path="+dir+"/data",
		"--web.listen-address="+address, "--log.level=warn"))
	url = "http://" + address
	p.Await("readiness", func() error {
		resp, err := http.Get(url + "/-/ready")
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
	return url
}
