package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// accounting is the source file that charges clients for connections, frames and messages.
const accounting = "downstream/guard/account.go"

// uncharged maps its functions on the hot path to the statement that they begin with in the build without accounting.
var uncharged = map[string]string{
	"func (a *Account) received(bytes []byte) error {": "return nil",
	"func (a *Account) Hold(bytes int) error {":        "return nil",
	"func (a *Account) Release(bytes int) {":           "return",
	"func (a *Account) Responded(bytes int) {":         "return",
	"func (a *Account) throttle() (began bool) {":      "return false",
	"func (a *Account) AwaitRead(size int) int {":      "return size",
}

// buildUnbounded builds a Tender without accounting of client traffic, from the sources in root, into dir. The binary
// is for measurements only: no setting of Tender disables the accounting.
func buildUnbounded(root, dir string) (binary string, err error) {
	b, err := os.ReadFile(filepath.Join(root, accounting))
	if err != nil {
		return "", fmt.Errorf("build without bounds: %w", err)
	}
	source := string(b)
	for function, at := range uncharged {
		if strings.Count(source, function) != 1 {
			return "", fmt.Errorf("build without bounds: %s has no %q", accounting, function)
		}
		source = strings.Replace(source, function, function+"\n\tif true {\n\t\t"+at+"\n\t}", 1)
	}
	edited, overlay := filepath.Join(dir, "account.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(edited, []byte(source), 0o600); err != nil {
		return "", err
	}
	original, err := filepath.Abs(filepath.Join(root, accounting))
	if err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {original: edited}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return "", err
	}
	binary = filepath.Join(dir, "tender")
	build := exec.Command("go", "build", "-trimpath", "-overlay", overlay, "-o", binary, "./cmd/tender")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build without bounds: %w\n%s", err, out)
	}
	return binary, nil
}
