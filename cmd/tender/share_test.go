package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	tenderconfig "github.com/xdstender/tender/relay/config"
)

// Flags with which make release writes manual pages and shell completions. A test writes them, so that the command does
// not depend on package doc.
var (
	shareFile    = flag.String("share", "", "write the manual pages and completions into this `file`, a gzipped tar")
	shareVersion = flag.String("share.version", version, "`version` in the manual pages")
	shareDate    = flag.String("share.date", "2026-11-21T10:00:00Z", "`time` in RFC 3339 format, for the manual pages and the archive")
)

// A sharedFile is a file that is installed below /usr/local/share or /usr/share.
type sharedFile struct {
	name    string
	content []byte
}

// TestShare verifies that each command has a manual page with its flags, that each shell has completions, and that the
// archive is reproducible. With -share, it writes the archive.
func TestShare(t *testing.T) {
	at, err := time.Parse(time.RFC3339, *shareDate)
	if err != nil {
		t.Fatal(err)
	}
	files := shared(t, at)
	archive := packed(t, files, at)
	if again := packed(t, shared(t, at), at); !bytes.Equal(archive, again) {
		t.Error("two archives of the same files differ")
	}
	content := map[string]string{}
	for _, file := range files {
		content[file.name] = string(file.content)
	}
	checkPages(t, newRootCommand(thisHost()), content)
	for page, want := range map[string][]string{
		"man/man1/tender.1":                  {`.TH "TENDER" "1" "` + at.Format("Jan 2006") + `" "tender ` + *shareVersion + `" "Tender"`, ".SH EXIT STATUS"},
		"man/man1/tender-serve.1":            {".SH ENVIRONMENT", `TENDER_ORIGIN_TLS_CA\fP`, "30m"},
		"man/man1/tender-completion-bash.1":  {"tender completion bash"},
		"bash-completion/completions/tender": {"__start_tender"},
		"zsh/site-functions/_tender":         {"#compdef tender"},
		"fish/vendor_completions.d/tender.fish": {
			"complete -c tender"},
	} {
		for _, want := range want {
			if !strings.Contains(content[page], want) {
				t.Errorf("%s does not contain %q:\n%.1500s", page, want, content[page])
			}
		}
	}
	if host, err := os.Hostname(); err == nil && strings.Contains(content["man/man1/tender-get.1"], "tender-get/"+host) {
		t.Error("the page of tender get contains the name of this host")
	}
	if *shareFile != "" {
		if err := os.WriteFile(*shareFile, archive, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// checkPages verifies that a command and its subcommands have manual pages with all their flags.
func checkPages(t *testing.T, cmd *cobra.Command, content map[string]string) {
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	page := content["man/man1/"+name+".1"]
	if !strings.Contains(page, ".SH SYNOPSIS") {
		t.Errorf("%s has no manual page:\n%s", cmd.CommandPath(), page)
	}
	for _, flag := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z-]+)`).FindAllStringSubmatch(cmd.LocalFlags().FlagUsages(), -1) {
		if !strings.Contains(page, `\fB--`+flag[1]+`\fP`) {
			t.Errorf("the page of %s does not contain --%s:\n%s", cmd.CommandPath(), flag[1], page)
		}
	}
	for _, below := range cmd.Commands() {
		checkPages(t, below, content)
	}
}

// shared returns the manual pages of all commands, dated at, and the completions of all shells.
func shared(t *testing.T, at time.Time) []sharedFile {
	t.Helper()
	root := newRootCommand(thisHost())
	root.InitDefaultCompletionCmd()
	root.DisableAutoGenTag = true
	root.Long += "\n\n# EXIT STATUS\n0 when all went well, 1 when something failed, 2 when the command line is wrong.\n"
	var files []sharedFile
	add := func(name string, write func(io.Writer) error) {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatalf("make %s: %v", name, err)
		}
		files = append(files, sharedFile{name, b.Bytes()})
	}
	addPages(root, at, add)
	add("bash-completion/completions/tender", func(w io.Writer) error { return root.GenBashCompletionV2(w, true) })
	add("zsh/site-functions/_tender", root.GenZshCompletion)
	add("fish/vendor_completions.d/tender.fish", func(w io.Writer) error { return root.GenFishCompletion(w, true) })
	return files
}

// addPages calls add for the manual page of a command and of each available subcommand.
func addPages(cmd *cobra.Command, at time.Time, add func(string, func(io.Writer) error)) {
	if cmd.Name() == "serve" {
		cmd.Long += environment()
	}
	header := doc.GenManHeader{Date: &at, Source: "tender " + *shareVersion, Manual: "Tender"}
	add("man/man1/"+strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1", func(w io.Writer) error { return doc.GenMan(cmd, &header, w) })
	for _, below := range cmd.Commands() {
		if below.IsAvailableCommand() {
			addPages(below, at, add)
		}
	}
}

// environment returns the section ENVIRONMENT of a manual page, with all variables.
func environment() string {
	var b strings.Builder
	b.WriteString("\n\n# ENVIRONMENT\n")
	link := regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	for _, v := range tenderconfig.Variables() {
		text := fmt.Sprintf("%s. %s Default: %s. Allowed: %s.", v.Meaning, v.Advice, v.Default, v.Allowed)
		fmt.Fprintf(&b, "**%s**\n\t%s\n\n", v.Name, link.ReplaceAllString(text, "$1"))
	}
	return b.String()
}

// packed returns a gzipped tar of the files. Equal files and times make equal bytes.
func packed(t *testing.T, files []sharedFile, at time.Time) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	slices.SortFunc(files, func(a, b sharedFile) int { return cmp.Compare(a.name, b.name) })
	for _, file := range files {
		header := &tar.Header{Name: "share/" + file.name, Mode: 0o644, Size: int64(len(file.content)), ModTime: at, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(file.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
