package cli

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

// A Table is text output: rows whose columns are aligned between empty lines, and notes, which are longer.
type Table struct {
	Wide  bool // nothing is cut to fit
	lines []tableLine
}

type tableLine struct {
	cells []string
	note  bool
}

// WideOnly is a cell that only a wide table has.
type WideOnly string

// Row adds a Row; one without cells is an empty line.
func (t *Table) Row(cells ...any) {
	cells = slices.DeleteFunc(cells, func(cell any) bool {
		_, is := cell.(WideOnly)
		return is && !t.Wide
	})
	texts := make([]string, len(cells))
	for i, cell := range cells {
		texts[i] = Printable(fmt.Sprint(cell))
		if !t.Wide && i < len(cells)-1 {
			texts[i] = humanize.Cut(texts[i], narrowCell)
		}
	}
	t.lines = append(t.lines, tableLine{cells: texts})
}

// Note adds a text, which is folded to fit.
func (t *Table) Note(format string, args ...any) {
	t.lines = append(t.lines, tableLine{cells: []string{Printable(fmt.Sprintf(format, args...))}, note: true})
}

// Print writes the table.
func (t *Table) Print(w io.Writer) error {
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
func (t *Table) block(out *bytes.Buffer, lines []tableLine) {
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
		if !t.Wide {
			text = humanize.Cut(text, 2*narrow) // a terminal folds what is somewhat longer
		}
		fmt.Fprintln(out, strings.TrimRight(text, " "))
	}
}

// fold writes a note, indented.
func (t *Table) fold(out *bytes.Buffer, text string) {
	const indent = "    "
	words, line, lines := strings.Fields(text), indent, 1
	for i, word := range words {
		if !t.Wide && line != indent && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > narrow {
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
