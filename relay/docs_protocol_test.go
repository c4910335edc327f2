package relay

import (
	"cmp"
	"flag"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/xdstender/tender/relay/humanize"
)

var (
	// citedCode matches a code of relay/PROTOCOL.md.
	citedCode = regexp.MustCompile(`^(?:R\d{3}|[CHX]\d{2}|[ABD]\.\d{1,2})$`)

	// codeItem and codeHeading match the definition of a code on that page.
	codeItem    = regexp.MustCompile(`(?m)^- \*\*(R\d{3}|[CHX]\d{2})\*\* `)
	codeHeading = regexp.MustCompile(`(?m)^#+ ([ABD]\.\d+) `)

	// heldAs and untested match the text for a code without tests: other codes whose tests cover it, or the reason.
	heldAs   = regexp.MustCompile(`^as ((?:[A-Z][.\d]+(?:, )?)+)$`)
	untested = regexp.MustCompile(`^not tested: \S+ \S+`)

	// codedTest matches the name of a test with a prefix of codes, such as TestB8_B15_R068_NothingIsRemoved.
	codedTest = regexp.MustCompile(`^(?:Test|Fuzz)((?:[ABCDHRX]\d+_)+)`)

	// coded matches the declaration of a test, or of a benchmark, which has no code.
	coded = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)

	// citing has the extensions of files that may cite codes.
	citing = []string{".go", ".md", ".txt", ".yml", ".yaml"}
)

// update writes the page of the protocol.
var update = flag.Bool("update", false, "write the names of tests into relay/PROTOCOL.md")

// transcripts is the directory of the transcripts of rules in a package, and playedIn is the package whose transcripts the
// page names without their package.
const transcripts, playedIn = "/testdata/transcripts/", "relay/conformance"

// transcript returns the name of a transcript on the page, "R044_x" or "upstream/R044_x", if file is one. file is a path in the
// module.
func transcript(file string) (name string, ok bool) {
	dir, base, ok := strings.Cut(file, transcripts)
	base, isText := strings.CutSuffix(base, ".txt")
	if dir == playedIn {
		return base, ok && isText
	}
	return dir + "/" + base, ok && isText
}

// linksBelow precedes the links to test files at the end of the page.
const linksBelow = "\n<!-- Written by go test ./relay -run TestProtocolPage -update, as are the names of the test " +
	"files above. -->\n\n"

// TestCodesStandInProtocol checks that relay/PROTOCOL.md defines each code that is cited anywhere in the
// repository.
func TestCodesStandInProtocol(t *testing.T) {
	defined := definedCodes(t)
	cited := map[string]string{} // first citing file by code
	for name, text := range citers(t) {
		for _, c := range citedIn(text) {
			if cited[c] == "" || name < cited[c] {
				cited[c] = name
			}
		}
	}
	for _, c := range slices.Sorted(maps.Keys(cited)) {
		if defined[c] == 0 {
			t.Errorf("%s cites %s: relay/PROTOCOL.md does not define this code", cited[c], c)
		}
	}
	if len(cited) < 200 {
		t.Errorf("found %d cited codes, want at least 200", len(cited))
	}
}

// TestCodesAreDefinedOnce checks that relay/PROTOCOL.md defines no code twice, and has the expected number of
// codes.
func TestCodesAreDefinedOnce(t *testing.T) {
	defined := definedCodes(t)
	kinds := map[byte]int{}
	for _, c := range slices.Sorted(maps.Keys(defined)) {
		if kinds[c[0]]++; defined[c] > 1 {
			t.Errorf("relay/PROTOCOL.md defines %s %d times", c, defined[c])
		}
	}
	for kind, minimum := range map[byte]int{'R': 143, 'X': 26, 'A': 16, 'B': 44, 'C': 37, 'D': 5, 'H': 18} {
		if kinds[kind] < minimum {
			t.Errorf("relay/PROTOCOL.md defines %d codes %c, want at least %d", kinds[kind], kind, minimum)
		}
	}
}

// TestProtocolPage checks that each rule and decision in relay/PROTOCOL.md names the files with its tests, which
// are the tests whose names begin with its code. Without such tests, the page names other codes whose tests cover it,
// or the reason. With -update, it writes the names.
func TestProtocolPage(t *testing.T) {
	const name = "PROTOCOL.md"
	page := pages(t)[name]
	files := testFiles(t)
	want, missing := withTests(page, files)
	for _, code := range missing {
		t.Errorf("%s: %s has no test named after it: write one, or \"as R044\" for a code whose tests cover it, "+
			"or \"not tested: \" and the reason", name, code)
	}
	if page == want {
		return
	}
	if !*update {
		t.Fatalf("%s does not name all test files: run go test ./relay -run TestProtocolPage -update", name)
	}
	if err := os.WriteFile(name, []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPagesNameTests checks that the tests and benchmarks that the pages for developers name exist.
func TestPagesNameTests(t *testing.T) {
	declared, named := map[string]bool{}, regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w+)`")
	for name, text := range citers(t) {
		if strings.HasSuffix(name, "_test.go") {
			for _, match := range coded.FindAllStringSubmatch(text, -1) {
				declared[match[1]] = true
			}
		}
	}
	for _, name := range []string{"PROTOCOL.md", "DESIGN.md"} {
		for _, match := range named.FindAllStringSubmatch(pages(t)[name], -1) {
			if !declared[match[1]] {
				t.Errorf("%s names %s, which does not exist", name, match[1])
			}
		}
	}
}

// TestRulePageLineLength checks that the pages that comments cite have at most 120 characters per line.
func TestRulePageLineLength(t *testing.T) {
	for _, name := range []string{"PROTOCOL.md", "DESIGN.md"} {
		n := 0
		for line := range strings.Lines(pages(t)[name]) {
			n++
			if length := utf8.RuneCountInString(strings.TrimSpace(line)); length > 120 {
				t.Errorf("%s:%d has %d characters, want at most 120", name, n, length)
			}
		}
	}
}

// TestCitedCodes checks the detection of citations.
func TestCitedCodes(t *testing.T) {
	for text, want := range map[string]string{
		"see R044, B.7 and C08 (D.4).":                  "B.7 C08 D.4 R044",
		"func TestB8_B15_R068_H05_X22_Something(":       "B.15 B.8 H05 R068 X22",
		"`TestR044_…`":                                  "R044",
		"TestR044b_Name, ABC08, gRFC A71, R44, 0xC08ff": "",
		"func TestBackoff2_Times(":                      "",
		"FuzzC18_Names":                                 "C18",
	} {
		if got := strings.Join(slices.Sorted(slices.Values(citedIn(text))), " "); got != want {
			t.Errorf("%q cites %q, want %q", text, got, want)
		}
	}
}

// definedCodes returns the number of definitions of each code in relay/PROTOCOL.md.
func definedCodes(t *testing.T) map[string]int {
	t.Helper()
	defined := map[string]int{}
	page := pages(t)["PROTOCOL.md"]
	for _, where := range []*regexp.Regexp{codeItem, codeHeading} {
		for _, match := range where.FindAllStringSubmatch(page, -1) {
			defined[match[1]]++
		}
	}
	return defined
}

// citedIn returns the codes that a text cites, directly or in names of tests. It splits the text into words, because a
// regular expression over the whole repository takes half a minute with the race detector.
func citedIn(text string) (cited []string) {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool {
		return r != '.' && r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		word = strings.Trim(word, ".")
		if strings.HasPrefix(word, "Test") || strings.HasPrefix(word, "Fuzz") {
			cited = append(cited, citedBy(word)...)
		} else if len(word) <= len("R044") && citedCode.MatchString(word) {
			cited = append(cited, word)
		}
	}
	return cited
}

// citedBy returns the codes in the prefix of the name of a test.
func citedBy(test string) (cited []string) {
	match := codedTest.FindStringSubmatch(test)
	if match == nil {
		return nil
	}
	for c := range strings.SplitSeq(strings.TrimSuffix(match[1], "_"), "_") {
		if strings.Contains("ABD", c[:1]) { // these codes have a dot
			c = c[:1] + "." + c[1:]
		}
		cited = append(cited, c)
	}
	return cited
}

// citers returns the files that may cite codes, by path relative to this package.
func citers(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir("..", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			if hidden := strings.HasPrefix(base, ".") && base != ".." && base != ".github"; hidden || base == "node_modules" {
				return fs.SkipDir // installed or generated
			}
			return nil
		}
		// has examples that are not citations
		if !slices.Contains(citing, filepath.Ext(base)) || base == "docs_protocol_test.go" {
			return nil
		}
		text, err := os.ReadFile(name)
		texts[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// testFiles returns, by code, the files with tests whose names begin with the code, as paths in the module without
// _test.go. It also returns transcripts with such names, see transcript.
func testFiles(t *testing.T) map[string][]string {
	t.Helper()
	files := map[string][]string{}
	add := func(test, file string) {
		for _, code := range citedBy(test) {
			if !slices.Contains(files[code], file) {
				files[code] = append(files[code], file)
			}
		}
	}
	for name, text := range citers(t) {
		name = strings.TrimPrefix(filepath.ToSlash(name), "../")
		if played, ok := transcript(name); ok {
			add("Test"+path.Base(played), played)
		} else if short, ok := strings.CutSuffix(name, "_test.go"); ok {
			for _, match := range coded.FindAllStringSubmatch(text, -1) {
				add(match[1], short)
			}
		}
	}
	for _, of := range files {
		slices.Sort(of)
	}
	return files
}

// withTests returns the page with the current test files of each code, and with the links to them at its end. It also
// returns the codes that have neither tests nor a reason.
func withTests(page string, files map[string][]string) (text string, missing []string) {
	page, _, _ = strings.Cut(page, linksBelow)
	var out []string
	named := map[string]bool{}
	tests := func(code, written string) string {
		for _, file := range files[code] {
			named[file] = true
		}
		text, ok := testsOf(code, written, files)
		if !ok {
			missing = append(missing, code)
		}
		return text
	}
	paragraph := func(code, written string) string {
		return strings.TrimSpace(humanize.Wrap("**Tests.** "+tests(code, written), "", ""))
	}
	decision := "" // of the current lines, if its tests have not been written yet
	for _, block := range strings.Split(strings.TrimSpace(page), "\n\n") {
		if written, ok := strings.CutPrefix(block, "**Tests.** "); ok && decision != "" {
			block = paragraph(decision, strings.ReplaceAll(written, "\n", " "))
			decision = ""
		} else if strings.HasPrefix(block, "#") {
			if decision != "" {
				out = append(out, paragraph(decision, ""))
			}
			decision = ""
			if match := codeHeading.FindStringSubmatch(block); match != nil && match[1][0] != 'A' { // A.n are sections of tables
				decision = match[1]
			}
		} else if codeItem.MatchString(block) {
			block = itemsWithTests(block, tests)
		}
		out = append(out, block)
	}
	if decision != "" {
		out = append(out, paragraph(decision, ""))
	}
	var links strings.Builder
	for _, file := range slices.Sorted(maps.Keys(named)) {
		at := file + "_test.go"
		if dir, base := path.Split(file); base != strings.ToLower(base) {
			at = strings.TrimSuffix(cmp.Or(dir, playedIn), "/") + transcripts + base + ".txt"
		}
		target, inRelay := strings.CutPrefix(at, "relay/")
		if !inRelay {
			target = "../" + at
		}
		between := " "
		if len("[]: ")+len(file)+len(target) > 120 {
			between = "\n  "
		}
		links.WriteString("[" + file + "]:" + between + target + "\n")
	}
	return strings.Join(out, "\n\n") + "\n" + linksBelow + links.String(), missing
}

// itemsWithTests returns a list of rules with the text that tests returns for each code.
func itemsWithTests(list string, tests func(code, written string) string) string {
	const label = "\n  - Tests: "
	items := strings.Split(list, "\n- ")
	for i, item := range items {
		if i > 0 {
			item = "- " + item
		}
		if match := codeItem.FindStringSubmatch(item); match != nil {
			before, written, _ := strings.Cut(item, label)
			named := tests(match[1], strings.Join(strings.Fields(written), " "))
			item = before + "\n" + strings.TrimSuffix(humanize.Wrap("Tests: "+named, "  - ", "    "), "\n")
		}
		items[i] = item
	}
	return strings.Join(items, "\n")
}

// testsOf returns the text of the page about the tests of a code: the names of the files or, without tests, the written
// reason if it is valid.
func testsOf(code, written string, files map[string][]string) (string, bool) {
	if of := files[code]; len(of) > 0 {
		return "[" + strings.Join(of, "], [") + "]", true
	}
	if match := heldAs.FindStringSubmatch(written); match != nil {
		for other := range strings.SplitSeq(match[1], ", ") {
			if len(files[other]) == 0 {
				return written, false
			}
		}
		return written, true
	}
	return written, untested.MatchString(written)
}
