// Command release writes the notes, the chart, the variables of packages and the signatures of a release:
//
//	release notes -version v1.2.3 CHANGELOG.md >notes.md
//	release chart -version v1.2.3 -commit 0123456789ab -date 2026-11-25T10:00:00Z -out dist deploy/helm/tender
//	release package -date 2026-11-25T10:00:00Z v1.2.3
//	release sign -key signing.pem dist/SHA256SUMS
//
// Equal arguments and files make equal output, so that a release can be reproduced.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// options are the flags of all commands.
type options struct{ version, commit, date, out, key string }

// run runs one command. Its output goes to w.
func run(args []string, w io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("no command; use notes, chart, package or sign")
	}
	var o options
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.StringVar(&o.version, "version", "", "version of the release, such as v1.2.3, or a commit")
	flags.StringVar(&o.commit, "commit", "", "commit of the release")
	flags.StringVar(&o.date, "date", "", "time of the commit, as RFC 3339 has it")
	flags.StringVar(&o.out, "out", "dist", "directory of the release")
	flags.StringVar(&o.key, "key", "", "file with the signing key: ECDSA P-256 in PEM")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return fmt.Errorf("%s: %d arguments, want one", args[0], flags.NArg())
	}
	switch args[0] {
	case "notes":
		return o.writeNotes(flags.Arg(0), w)
	case "chart":
		return o.writeChart(flags.Arg(0), w)
	case "package":
		return o.writePackage(flags.Arg(0), w)
	case "sign":
		return o.signFile(flags.Arg(0), w)
	}
	return fmt.Errorf("command %q is unknown; use notes, chart, package or sign", args[0])
}

// releaseVersion matches the tag of a release. Any other version is a commit between two releases: the output of git
// describe for such a commit has a second hyphen.
var releaseVersion = regexp.MustCompile(`^v(\d+\.\d+\.\d+(?:-[0-9A-Za-z.]+)?)$`)

// released returns the version without its v. ok is false if it is not the version of a release.
func (o options) released() (version string, ok bool) {
	match := releaseVersion.FindStringSubmatch(o.version)
	if match == nil {
		return "", false
	}
	return match[1], true
}

// time returns the date of the release in UTC.
func (o options) time() (time.Time, error) {
	at, err := time.Parse(time.RFC3339, o.date)
	if err != nil {
		return time.Time{}, fmt.Errorf("-date: %q is not a time; use RFC 3339, such as 2026-11-25T10:00:00Z", o.date)
	}
	return at.UTC(), nil
}

// writeFile writes a file with mode 0644, regardless of the umask.
func writeFile(name string, content []byte) error {
	if err := os.WriteFile(name, content, 0o644); err != nil {
		return err
	}
	return os.Chmod(name, 0o644)
}
