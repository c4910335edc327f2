package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// writePackage prints the variables of deploy/package/nfpm.yaml as assignments of a shell: the version of a deb or rpm
// package, and the time of its files.
func (o options) writePackage(version string, w io.Writer) error {
	at, err := o.time()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "PACKAGE_VERSION='%s'\nSOURCE_DATE_EPOCH=%d\n", packageVersion(version, at.Format("20060102150405")), at.Unix())
	return err
}

var (
	// describedVersion matches a release, and what git describe prints for a commit after one.
	describedVersion = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(?:-([0-9A-Za-z.]+?))??(?:-(\d+)-(g[0-9a-f]+))?(-dirty)?$`)
	// noVersion matches characters that versions of packages may not have.
	noVersion = regexp.MustCompile(`[^0-9A-Za-z.]+`)
)

// packageVersion returns the version of a package, such that dpkg and rpm order packages by the age of their commits: a
// candidate of a release before it (1.2.3~rc.1), commits after it (1.2.3+4.gabcdef), and commits without a release before
// all releases, by time.
func packageVersion(version, at string) string {
	match := describedVersion.FindStringSubmatch(version)
	if match == nil {
		return "0~" + at + "." + cmp.Or(strings.Trim(noVersion.ReplaceAllString(version, "."), "."), "unknown")
	}
	number, candidate, commits, commit, dirty := match[1], match[2], match[3], match[4], match[5]
	if candidate != "" {
		number += "~" + candidate
	}
	if commits != "" {
		number += "+" + commits + "." + commit
	}
	if dirty != "" {
		number += "+dirty"
	}
	return number
}
