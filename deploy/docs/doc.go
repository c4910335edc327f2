// Package docs reads the pages in this directory and elsewhere in the repository, for their tests in package deploy and
// in system/deploy. These tests run each command on the pages, unless a mark states why not.
//
// A command is in a block of the language console, after "$ ", or in a block of the language sh, which is a script. A
// script that only sets variables is passed to tender check. The blocks of a page run one after another in a directory
// of their own, beside a control plane and a relay of the test, whose addresses and paths replace those on the page.
// Marks after the language state exceptions:
//
//	exit=1            the commands end with that code; without it, 0
//	ends=listening    the last command runs until it is interrupted, once it has written that
//	needs=cluster     they are not run, because they need what no test has
//	takes=minutes     they are not run, because they take that long
//	test=TestName     they are not run, because that test runs the same
//
// Blocks of YAML and JSON are parsed:
//
//	file=/etc/x.yaml  commands that follow on the page find it there
//	message=p.Name    it is a message of that type, all fields of which exist
//	part=yes          it is not parsed, because it is part of something; other languages never are
//
// The package is not a stable API: programs that embed Tender use package relay.
package docs
