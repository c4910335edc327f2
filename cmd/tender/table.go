package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/xdstender/tender/relay/humanize"
)

// How a table fits a terminal that is not wide, in characters.
const (
	narrow       = 80
	narrowCell   = 26 // of all cells but the last of a row
	narrowLines  = 3  // of a note
	columnBlanks = 2
)

// A table is text output: rows whose columns are aligned between empty lines, and notes, which are longer.
type table struct {
	wide  bool // nothing is cut to fit
	lines []tableLine
}

type tableLine struct {
	cells []string
	note  bool
}

// wideOnly is a cell that only a wide table has.
type wideOnly string

// row adds a row; one without cells is an empty line.
func (t *table) row(cells ...any) {
	cells = slices.DeleteFunc(cells, func(cell any) bool {
		_, is := cell.(wideOnly)
		return is && !t.wide
	})
	texts := make([]string, len(cells))
	for i, cell := range cells {
		texts[i] = printable(fmt.Sprint(cell))
		if !t.wide && i < len(cells)-1 {
			texts[i] = humanize.Cut(texts[i], narrowCell)
		}
	}
	t.lines = append(t.lines, tableLine{cells: texts})
}

// note adds a text, which is folded to fit.
func (t *table) note(format string, args ...any) {
	t.lines = append(t.lines, tableLine{cells: []string{printable(fmt.Sprintf(format, args...))}, note: true})
}

// print writes the table.
func (t *table) print(w io.Writer) error {
	var out bytes.Buffer
	for from := 0; from < len(t.lines); {
		to := from
		for to < len(t.lines) && (to == from || len(t.lines[to].cells) > 0) {
			to++
		}
		t.block(&out, t.lines[from:to])
		from = to
	}
	_, err := w.Write(out.Bytes())
	return err
}

// block writes lines whose columns are aligned.
func (t *table) block(out *bytes.Buffer, lines []tableLine) {
	var widths []int
	for _, l := range lines {
		for i, cell := range l.cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if !l.note && i < len(l.cells)-1 {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	for _, l := range lines {
		if l.note {
			t.fold(out, l.cells[0])
			continue
		}
		var b strings.Builder
		for i, cell := range l.cells {
			b.WriteString(cell)
			if i < len(l.cells)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+columnBlanks))
			}
		}
		text := b.String()
		if !t.wide {
			text = humanize.Cut(text, 2*narrow) // a terminal folds what is somewhat longer
		}
		fmt.Fprintln(out, strings.TrimRight(text, " "))
	}
}

// fold writes a note, indented.
func (t *table) fold(out *bytes.Buffer, text string) {
	const indent = "    "
	words, line, lines := strings.Fields(text), indent, 1
	for i, word := range words {
		if !t.wide && line != indent && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > narrow {
			fmt.Fprintln(out, line)
			if lines == narrowLines {
				line = fmt.Sprintf("%s… and %d words more: -o wide", indent, len(words)-i)
				break
			}
			line, lines = indent, lines+1
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(out, line)
}
