package deploy_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCommandsAreComplete checks that each command on the pages ends, and that the tests exist that blocks name instead
// of running. TestCommands in system/deploy runs the other commands.
func TestCommandsAreComplete(t *testing.T) {
	tests, run := declaredTests(t), 0
	for _, b := range read(t).blocks {
		if name := b.Marks["test"]; name != "" && !tests[name] {
			t.Errorf("%s: there is no test %s", b, name)
		}
		if !b.Command() {
			continue
		}
		if _, err := b.Scripts(); err != nil {
			t.Error(err)
		}
		if b.Runs() {
			run++
		}
	}
	if run < 15 {
		t.Errorf("pages have %d blocks of commands to run, want 15 at least", run)
	}
}

// declaredTests returns the names of all tests of the repository.
func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	declared, names := regexp.MustCompile(`(?m)^func (Test\w+)\(`), map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := entry.Name(); entry.IsDir() && path != root && (strings.HasPrefix(base, ".") || base == "node_modules") {
			return fs.SkipDir // installed or generated
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		content, err := os.ReadFile(path)
		for _, match := range declared.FindAllSubmatch(content, -1) {
			names[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

var (
	// invocation matches a call of tender on a page: its command, and the rest of the line.
	invocation = regexp.MustCompile("(?:[`$|;&(/] ?|--[ ]|=\\S* )tender ([a-z][a-z-]+)((?:[ \\t][^`|;&\\n]*)?)")
	flagged    = regexp.MustCompile(`(?:^|\s)(--[a-z][a-z-]*|-[a-zA-Z])\b`)
	target     = regexp.MustCompile("[`$] ?make ([a-z]+)")

	// span matches the text between backquotes, or after "$ ".
	span = regexp.MustCompile("`[^`\n]+`|(?m)^ *\\$ .*$")
)

// TestFlagsOnPages checks that the commands, flags and targets of make that pages name exist, also where they are not
// run. The commands and flags are those on the page of commands, which TestCLIPage in cmd/tender compares with the code.
func TestFlagsOnPages(t *testing.T) {
	makefile, usage := readText(t, root+"/Makefile"), usages(t)
	found := 0
	for page, text := range read(t).pages {
		for _, match := range target.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+match[1]+":") {
				t.Errorf("%s names make %s: there is no such target", page, match[1])
			}
		}
		for _, code := range span.FindAllString(text, -1) {
			for _, call := range invocation.FindAllStringSubmatch(code, -1) {
				found++
				flags, ok := usage[call[1]]
				if !ok {
					t.Errorf("%s names tender %s: there is no such command", page, call[1])
				}
				for _, flag := range flagged.FindAllStringSubmatch(call[2], -1) {
					if ok && !regexp.MustCompile(`(?m)^ .*`+flag[1]+`\b`).MatchString(flags) {
						t.Errorf("%s names tender %s %s: there is no such flag", page, call[1], flag[1])
					}
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("pages name %d commands, want 40 at least", found)
	}
}

// usages returns the section of each command on the page of commands. The section of rollout includes its subcommands.
func usages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"help": "", "completion": ""} // the page omits both
	_, sections, _ := strings.Cut(readText(t, "docs/cli.md"), "\n## `tender ")
	for section := range strings.SplitSeq(sections, "\n## `tender ") {
		command, usage, _ := strings.Cut(section, "`\n")
		command, _, _ = strings.Cut(command, " ")
		all[command] += usage
	}
	return all
}
