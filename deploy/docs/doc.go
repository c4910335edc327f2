// Package docs has the pages for people, and tests of them: each command that they show is
// run, or says why it is not, and each flag exists; figures are those that were measured.
//
// A command stands in a block of the language console, after "$ ", or in one of the language sh,
// which is a script; one of variables alone is what tender check is given. The blocks of a page run one after
// another in a directory of their own, beside a control plane and a relay that the test runs; addresses
// and paths on the page stand for theirs. Words after the language say what is otherwise:
//
//	exit=1            the commands end with that code; without it, 0
//	ends=listening    the last goes on until it is interrupted, once it has written that
//	needs=cluster     they are not run, since they need what no test has (see needs)
//	takes=minutes     they are not run, since they take that long
//	test=TestName     they are not run, since that test runs the same
//
// Blocks of YAML and JSON are parsed:
//
//	file=/etc/x.yaml  commands that follow on the page find it there
//	message=p.Name    it is a message of that type, all fields of which there are
//	part=yes          it is not parsed, since it is a part of something; other languages never are
package docs
