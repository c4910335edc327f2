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

// The layout of a table that is not wide, in characters.
const (
	narrow       = 80 // maximum length of a line of a note; a row may be twice as long
	narrowCell   = 26 // maximum length of a cell, except for the last cell of a row; see cutColumns
	narrowLines  = 3  // maximum number of lines of a note
	columnBlanks = 2  // spaces between columns, also in a wide table
)

// A Table is text output of rows and notes. Empty rows divide it into blocks with separately aligned columns. The zero
// value is an empty table. A Table is not safe for concurrent use.
type Table struct {
	Wide  bool // print all cells and notes in full; set it before the first Row
	lines []tableLine
}

// A tableLine is a row, or a note with one cell. A line without cells is empty.
type tableLine struct {
	cells []string
	note  bool
}

// WideOnly is a cell that Row adds only to a wide table.
type WideOnly string

// Row adds a row with cells formatted as by [fmt.Sprint], and escapes unprintable characters. Without cells, it adds an
// empty line.
func (t *Table) Row(cells ...any) {
	cells = slices.DeleteFunc(cells, func(cell any) bool {
		_, is := cell.(WideOnly)
		return is && !t.Wide
	})
	texts := make([]string, len(cells))
	for i, cell := range cells {
		texts[i] = Printable(fmt.Sprint(cell))
	}
	t.lines = append(t.lines, tableLine{cells: texts})
}

// Note adds an indented text below the last row, and escapes unprintable characters. Print folds it to several lines
// unless the table is wide.
func (t *Table) Note(format string, args ...any) {
	t.lines = append(t.lines, tableLine{cells: []string{Printable(fmt.Sprintf(format, args...))}, note: true})
}

// Print writes the table to w with one call of Write.
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

// cutColumns cuts the cells of a column to narrowCell. If different cells would become equal, the column has longer
// cells. The last cell of a row is not cut.
func cutColumns(lines []tableLine) {
	columns := 0
	for _, l := range lines {
		columns = max(columns, len(l.cells))
	}
	for i := range columns {
		var cells []*string
		for _, l := range lines {
			if !l.note && i < len(l.cells)-1 {
				cells = append(cells, &l.cells[i])
			}
		}
		most := narrowCell
		for !cutsDiffer(cells, most) { // ends, since the whole texts differ
			most *= 2
		}
		for _, cell := range cells {
			*cell = humanize.Cut(*cell, most)
		}
	}
}

// cutsDiffer reports whether different texts are different after they were cut to a number of characters.
func cutsDiffer(texts []*string, most int) bool {
	full := make(map[string]string)
	for _, text := range texts {
		cut := humanize.Cut(*text, most)
		if other, has := full[cut]; has && other != *text {
			return false
		}
		full[cut] = *text
	}
	return true
}

// block writes lines with aligned columns. Notes and the last cells of rows do not count for the widths.
func (t *Table) block(out *bytes.Buffer, lines []tableLine) {
	if !t.Wide {
		cutColumns(lines)
	}
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
		length := 0
		for i, cell := range l.cells {
			if i == len(l.cells)-1 {
				if !t.Wide { // a terminal wraps a line of up to twice its width
					cell = humanize.Cut(cell, max(2*narrow-length, narrowCell))
				}
				b.WriteString(cell)
				break
			}
			b.WriteString(cell)
			b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+columnBlanks))
			length += widths[i] + columnBlanks
		}
		fmt.Fprintln(out, strings.TrimRight(b.String(), " "))
	}
}

// fold writes a note with indentation. Unless the table is wide, it wraps lines, and cuts the note after narrowLines.
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
