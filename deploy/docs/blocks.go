package docs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A Block is a fenced block of a page.
type Block struct {
	Page   string // path from the root of the repository
	Line   int    // number of its first line
	Lang   string
	Marks  map[string]string
	Lines  []string
	Output []string // lines of the block of text that follows a block of commands
}

// String returns the page and the line of the block.
func (b *Block) String() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// Command reports whether the block has commands to type.
func (b *Block) Command() bool { return b.Lang == "console" || b.Lang == "sh" }

// text reports whether the block is output of commands, or other text.
func (b *Block) text() bool { return b.Lang == "" || b.Lang == "text" }

// Data reports whether the block has data that can be parsed.
func (b *Block) Data() bool { return b.Lang == "yaml" || b.Lang == "json" }

// Runs reports whether the test of all commands runs the block.
func (b *Block) Runs() bool {
	return b.Command() && b.Marks["needs"] == "" && b.Marks["takes"] == "" && b.Marks["test"] == ""
}

// Pages returns the text of each page whose prose and commands are tested, by its path from the root of the repository.
func Pages(root string) (map[string]string, error) {
	texts := map[string]string{}
	read := func(path string) error {
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		texts[filepath.ToSlash(name)] = string(text)
		return err
	}
	var err error
	for _, page := range []string{"README.md", "bench/README.md", "relay/DESIGN.md"} {
		err = errors.Join(err, read(filepath.Join(root, page)))
	}
	for _, dir := range []string{"deploy", ".github"} {
		err = errors.Join(err, filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".md" {
				return err
			}
			return read(path)
		}))
	}
	return texts, err
}

var fence = regexp.MustCompile("^( *)```(.*)$")

// Blocks returns the blocks of a page. Errors: a block does not end, has an unknown mark, or its language does not match
// its content.
func Blocks(page, text string) (all []*Block, err error) {
	var open, last *Block
	indent := ""
	for i, line := range strings.Split(text, "\n") {
		match := fence.FindStringSubmatch(line)
		switch {
		case match == nil && open != nil:
			open.Lines = append(open.Lines, strings.TrimPrefix(line, indent))
		case match == nil:
			if line != "" {
				last = nil // what follows now is not its output
			}
		case open == nil:
			open, indent = &Block{Page: page, Line: i + 1}, match[1]
			if err := open.mark(match[2]); err != nil {
				return nil, fmt.Errorf("%s: %w", open, err)
			}
		default:
			if err := open.end(last); err != nil {
				return nil, err
			}
			all, last, open = append(all, open), open, nil
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s: the block does not end", open)
	}
	return all, nil
}

// end completes a block. A block of text is the output of the block of commands before it, if there is one.
func (b *Block) end(before *Block) error {
	if !b.text() {
		return nil
	}
	if before != nil && before.Command() {
		before.Output = b.Lines
	}
	if strings.Contains("\n"+strings.Join(b.Lines, "\n"), "\n$ ") {
		return fmt.Errorf("%s: there are commands in the block, so its language is console", b)
	}
	return nil
}

// needs has the values of the mark needs: what the commands need and no test has.
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

// mark sets the language and the marks of the block from the text after its three backquotes.
func (b *Block) mark(info string) error {
	words := strings.Fields(info)
	b.Marks = map[string]string{}
	if len(words) == 0 {
		return nil
	}
	b.Lang = words[0]
	if slices.Contains([]string{"bash", "shell", "shell-session", "zsh"}, b.Lang) {
		return fmt.Errorf("the language of what people type is console or sh, not %s", b.Lang)
	}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		if value == "" || !b.allows(key, value) {
			return fmt.Errorf("the mark %q is unknown; the comment of package docs lists them", word)
		}
		b.Marks[key] = value
	}
	return nil
}

// allows reports whether the block may have a mark.
func (b *Block) allows(key, value string) bool {
	switch key {
	case "exit", "ends", "test":
		return b.Command()
	case "needs":
		return b.Command() && needs[value] != ""
	case "takes":
		return b.Command() && value == "minutes"
	case "file", "message":
		return b.Data()
	case "part":
		return !b.Command() && value == "yes"
	}
	return false
}

var heredoc = regexp.MustCompile(`<<-?'?(\w+)'?`)

// Scripts returns what is typed in the block: one script, or each command after "$ " with its continuation lines.
func (b *Block) Scripts() (all []string, err error) {
	if b.Lang == "sh" {
		return []string{strings.Join(b.Lines, "\n")}, nil
	}
	goesOn, end := false, ""
	for i, line := range b.Lines {
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
			return nil, fmt.Errorf("%s:%d: %q is no command after \"$ \"; what commands print is in a block of its own", b.Page, b.Line+i+1, line)
		}
		goesOn = strings.HasSuffix(line, `\`)
	}
	if len(all) == 0 || goesOn || end != "" {
		return nil, fmt.Errorf("%s: there is no command in the block, or it does not end", b)
	}
	return all, nil
}
