package deploy_test

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// imageContents lists the contents of the image: its files, and the directory for snapshots.
var imageContents = []string{
	"etc/group",
	"etc/passwd",
	"etc/ssl/certs/ca-certificates.crt",
	"usr/local/bin/tender",
	"usr/share/doc/tender/LICENSE",
	"var/lib/tender",
}

// TestDockerfile compares the configuration and the files of the Dockerfile's image with those of build.sh. It also
// checks that the Dockerfile builds with the version of Go in go.mod and with the Makefile.
func TestDockerfile(t *testing.T) {
	file := readText(t, "image/Dockerfile")
	build, final, ok := strings.Cut(file, "\nFROM scratch\n")
	if !ok {
		t.Fatal("the image is not from scratch")
	}
	if diff := cmp.Diff(scriptConfig(t), dockerConfig(final)); diff != "" {
		t.Errorf("build.sh and Dockerfile differ (-build.sh +Dockerfile):\n%s", diff)
	}
	for _, name := range imageContents {
		want := "COPY deploy/image/root/ /\n"
		if _, err := os.Stat("image/root/" + name); err != nil {
			dir, base := path.Split("/" + name)
			want = regexp.QuoteMeta(base+" "+dir) + "\n|" + regexp.QuoteMeta(" /"+name) + "\n"
		}
		if !regexp.MustCompile(want).MatchString(final) {
			t.Errorf("the Dockerfile does not copy %s", name)
		}
	}
	if !strings.Contains(build, "RUN make bin/linux_$TARGETARCH/tender ") || !strings.Contains(readText(t, root+"/Makefile"), "\nbin/linux_%/tender: ") {
		t.Error("the Dockerfile does not build with the rule bin/linux_%/tender of the Makefile")
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(readText(t, root+"/go.mod"))
	if from := "FROM --platform=$BUILDPLATFORM golang:" + version[1] + "-"; !strings.Contains(build, from) {
		t.Errorf("the Dockerfile lacks %q, for the Go of go.mod", from)
	}
}

// scriptConfig returns the configuration of the image of build.sh, from its lines "--config.name value".
func scriptConfig(t *testing.T) map[string]string {
	t.Helper()
	script := readText(t, "image/build.sh")
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

// dockerConfig returns the configuration of the image of a Dockerfile, from its last stage, in the form of
// scriptConfig.
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
