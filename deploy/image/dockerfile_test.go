package image

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDockerfile holds that the Dockerfile makes the image that build.sh makes: what is in its
// configuration, with which Go it is built, and by which rule of the Makefile.
func TestDockerfile(t *testing.T) {
	file := read(t, "Dockerfile")
	build, final, ok := strings.Cut(file, "\nFROM scratch\n")
	if !ok {
		t.Fatal("the image is not from scratch")
	}
	if diff := cmp.Diff(scriptConfig(t), dockerConfig(final)); diff != "" {
		t.Errorf("build.sh and Dockerfile differ (-build.sh +Dockerfile):\n%s", diff)
	}
	if diff := cmp.Diff(contents, copied(t, final)); diff != "" {
		t.Errorf("files in the image (-want +Dockerfile):\n%s", diff)
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "../../go.mod"))
	if from := "FROM --platform=$BUILDPLATFORM golang:" + version[1] + "-"; !strings.Contains(build, from) {
		t.Errorf("the Dockerfile lacks %q, for the Go of go.mod", from)
	}
	if !strings.Contains(build, "RUN make bin/linux_$TARGETARCH/tender ") || !strings.Contains(read(t, "../../Makefile"), "\nbin/linux_%/tender: ") {
		t.Error("the Dockerfile does not build by the Makefile's rule for bin/linux_%/tender")
	}
}

// scriptConfig returns the configuration of an image by build.sh: its lines "--config.name value".
func scriptConfig(t *testing.T) map[string]string {
	t.Helper()
	script := read(t, "build.sh")
	user := regexp.MustCompile(`(?m)^user=(\d+)$`).FindStringSubmatch(script)
	if user == nil {
		t.Fatal("build.sh has no user")
	}
	config := map[string]string{}
	values := strings.NewReplacer("$user", user[1], "$version", "$VERSION", "$commit", "$COMMIT", "$utc", "$DATE")
	for _, line := range regexp.MustCompile(`(?m)^\t--config\.(\w+) "?(.*?)"?$`).FindAllStringSubmatch(script, -1) {
		name, value := line[1], values.Replace(line[2])
		switch label, content, _ := strings.Cut(value, "="); name {
		case "label":
			config["label "+label] = content
		case "exposedports":
			config["expose"] = value
		case "workingdir":
			config["workdir"] = value
		default:
			config[name] = value
		}
	}
	if len(config) < 10 {
		t.Fatalf("build.sh has %d lines of configuration, want 10 at least", len(config))
	}
	return config
}

// dockerConfig returns the same by the last stage of a Dockerfile.
func dockerConfig(stage string) map[string]string {
	config := map[string]string{}
	unquote := strings.NewReplacer(`["`, "", `"]`, "", `"`, "")
	for line := range strings.Lines(stage) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch value = unquote.Replace(value); name {
		case "ARG", "COPY", "#", "":
		case "LABEL":
			label, content, _ := strings.Cut(value, "=")
			config["label "+label] = content
		default:
			config[strings.ToLower(name)] = value
		}
	}
	return config
}

// contents is what is in an image: files, and the directory for snapshots.
var contents = []string{
	"etc/group",
	"etc/passwd",
	"etc/ssl/certs/ca-certificates.crt",
	"usr/local/bin/tender",
	"usr/share/doc/tender/LICENSE",
	"var/lib/tender",
}

// copied returns what the last stage of a Dockerfile copies into the image.
func copied(t *testing.T, stage string) []string {
	t.Helper()
	var files []string
	for _, line := range regexp.MustCompile(`(?m)^COPY (?:--\S+ )*(\S+) /(\S*)$`).FindAllStringSubmatch(stage, -1) {
		source, target := line[1], line[2]
		if target == "" {
			tree := os.DirFS("../../" + source)
			if err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
				if err == nil && !entry.IsDir() {
					files = append(files, name)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if strings.HasSuffix(target, "/") {
			target += path.Base(source)
		}
		files = append(files, target)
	}
	slices.Sort(files)
	return files
}
