package docs_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// A block is a fenced block of a page.
type block struct {
	page   string // its path from the root of the module
	line   int    // of its first line
	lang   string
	marks  map[string]string
	lines  []string
	output []string // of the block of text that follows
}

func (b *block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// command reports whether people are to type what is in the block.
func (b *block) command() bool { return b.lang == "console" || b.lang == "sh" }

// text reports whether the block is what commands print, or just text.
func (b *block) text() bool { return b.lang == "" || b.lang == "text" }

// data reports whether the block has data that can be parsed.
func (b *block) data() bool { return b.lang == "yaml" || b.lang == "json" }

// run reports whether a test runs what is in the block.
func (b *block) run() bool {
	return b.command() && b.marks["needs"] == "" && b.marks["takes"] == "" && b.marks["test"] == ""
}

// pages returns the text of each page, by its path from the root of the module.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil || entry.IsDir() || filepath.Ext(name) != ".md" || !forPeople(name) {
			return err
		}
		text, err := os.ReadFile(path)
		texts[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(texts) < 12 {
		t.Fatalf("found %d pages, want 12 at least", len(texts))
	}
	return texts
}

// forPeople reports whether a file is a page whose prose and commands are tested.
func forPeople(name string) bool {
	return name == "README.md" || name == "bench/README.md" || name == "relay/DESIGN.md" ||
		strings.HasPrefix(name, "deploy/") || strings.HasPrefix(name, ".github/")
}

var fence = regexp.MustCompile("^( *)```(.*)$")

// blocks returns the blocks of a page.
func blocks(page, text string) (all []*block, err error) {
	var open, last *block
	indent := ""
	for i, line := range strings.Split(text, "\n") {
		match := fence.FindStringSubmatch(line)
		switch {
		case match == nil && open != nil:
			open.lines = append(open.lines, strings.TrimPrefix(line, indent))
		case match == nil:
			if line != "" {
				last = nil // what follows now is not its output
			}
		case open == nil:
			open, indent = &block{page: page, line: i + 1}, match[1]
			if err := open.mark(match[2]); err != nil {
				return nil, fmt.Errorf("%s: %w", open, err)
			}
		default:
			if open.text() && last != nil && last.command() {
				last.output = open.lines
			}
			if open.text() && strings.Contains("\n"+strings.Join(open.lines, "\n"), "\n$ ") {
				return nil, fmt.Errorf("%s: there are commands in the block, so its language is console", open)
			}
			all, last, open = append(all, open), open, nil
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s: the block does not end", open)
	}
	return all, nil
}

// needs are what commands may need that no test has.
var needs = map[string]string{
	"checkout": "a clone of the repository that it may write to",
	"cluster":  "a Kubernetes cluster",
	"rollout":  "a relay with TENDER_ROLLOUT",
	"docker":   "a daemon that runs containers",
	"envoy":    "an Envoy",
	"network":  "another host",
	"program":  "a program that is not among those that make deps installs",
	"release":  "what a release has published",
	"root":     "root on the host",
}

// mark takes over what is after the three backquotes of a block.
func (b *block) mark(info string) error {
	words := strings.Fields(info)
	b.marks = map[string]string{}
	if len(words) == 0 {
		return nil
	}
	b.lang = words[0]
	if slices.Contains([]string{"bash", "shell", "shell-session", "zsh"}, b.lang) {
		return fmt.Errorf("the language of what people type is console or sh, not %s", b.lang)
	}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		known := value != ""
		switch key {
		case "exit", "ends", "test":
			known = known && b.command()
		case "needs":
			known = needs[value] != "" && b.command()
		case "takes":
			known = value == "minutes" && b.command()
		case "file", "message":
			known = known && b.data()
		case "part":
			known = value == "yes" && !b.command()
		default:
			known = false
		}
		if !known {
			return fmt.Errorf("the mark %q is unknown; the comment of this package lists them", word)
		}
		b.marks[key] = value
	}
	return nil
}

var heredoc = regexp.MustCompile(`<<-?'?(\w+)'?`)

// scripts returns what is typed in a block: one script, or each command after "$ ", with the
// lines on which it goes on.
func (b *block) scripts() (all []string, err error) {
	if b.lang == "sh" {
		return []string{strings.Join(b.lines, "\n")}, nil
	}
	goesOn, end := false, ""
	for i, line := range b.lines {
		command, begins := strings.CutPrefix(line, "$ ")
		switch {
		case goesOn || end != "":
			all[len(all)-1] += "\n" + line
			if line == end {
				end = ""
			}
		case begins:
			all = append(all, command)
			if match := heredoc.FindStringSubmatch(command); match != nil {
				end = match[1]
			}
		case line != "":
			return nil, fmt.Errorf("%s:%d: %q is no command after \"$ \"; what commands print is in a block of its own", b.page, b.line+i+1, line)
		}
		goesOn = strings.HasSuffix(line, `\`)
	}
	if len(all) == 0 || goesOn || end != "" {
		return nil, fmt.Errorf("%s: there is no command in the block, or it does not end", b)
	}
	return all, nil
}

// assignment is a line that gives a variable a value, and does nothing else.
var assignment = regexp.MustCompile(`^\s*(export\s+)?\w+=\S*(\s+\w+=\S*)*\s*(#.*)?$`)

// assigns reports whether a script is of variables alone.
func assigns(script string) bool {
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") && !assignment.MatchString(line) {
			return false
		}
	}
	return true
}
