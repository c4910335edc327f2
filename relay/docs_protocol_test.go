package relay

import (
	"flag"
	"io/fs"
	"maps"
	"os"
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
	// citedCode matches a word that is a code of deploy/docs/protocol.md.
	citedCode = regexp.MustCompile(`^(?:R\d{3}|[CHX]\d{2}|[ABD]\.\d{1,2})$`)

	// codeItem and codeHeading match where that page defines one.
	codeItem    = regexp.MustCompile(`(?m)^- \*\*(R\d{3}|[CHX]\d{2})\*\* `)
	codeHeading = regexp.MustCompile(`(?m)^#+ ([ABD]\.\d+) `)

	// heldAs and untested match what people write where no test is named after a code: the
	// codes whose tests hold it too, or why there is none.
	heldAs   = regexp.MustCompile(`^as ((?:[A-Z][.\d]+(?:, )?)+)$`)
	untested = regexp.MustCompile(`^not tested: \S+ \S+`)

	// codedTest matches the name of a test that begins with codes, such as TestB8_B15_R068_NothingIsRemoved, or the
	// beginning of one on a page.
	codedTest = regexp.MustCompile(`^(?:Test|Fuzz)((?:[ABCDHRX]\d+_)+)`)

	// coded matches where a test is declared.
	coded = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

	// citing lists the extensions of files that cite codes: code, pages, transcripts,
	// and what is shipped with comments.
	citing = []string{".go", ".md", ".txt", ".yml", ".yaml"}
)

// update has the page of the protocol written.
var update = flag.Bool("update", false, "write the names of tests into deploy/docs/protocol.md")

// transcripts is the folder of the transcripts of rules.
const transcripts = "relay/conformance/testdata/transcripts/"

// linksBelow stands before the links to the files with tests, at the end of the page.
const linksBelow = "\n<!-- Written by go test ./relay -run TestProtocolPage -update, as are the names of the test " +
	"files above. -->\n\n"

// TestCodesStandInProtocol holds that each code that is cited anywhere in the repository is
// defined in deploy/docs/protocol.md.
func TestCodesStandInProtocol(t *testing.T) {
	defined := definedCodes(t)
	cited := map[string]string{} // the first file that cites a code
	for name, text := range citers(t) {
		for _, c := range citedIn(text) {
			if cited[c] == "" || name < cited[c] {
				cited[c] = name
			}
		}
	}
	for _, c := range slices.Sorted(maps.Keys(cited)) {
		if defined[c] == 0 {
			t.Errorf("%s cites %s: deploy/docs/protocol.md does not define it", cited[c], c)
		}
	}
	if len(cited) < 200 {
		t.Errorf("found %d cited codes, want 200 at least", len(cited))
	}
}

// TestCodesAreDefinedOnce holds that deploy/docs/protocol.md defines no code twice, and
// that none got lost.
func TestCodesAreDefinedOnce(t *testing.T) {
	defined := definedCodes(t)
	kinds := map[byte]int{}
	for _, c := range slices.Sorted(maps.Keys(defined)) {
		if kinds[c[0]]++; defined[c] > 1 {
			t.Errorf("deploy/docs/protocol.md defines %s %d times", c, defined[c])
		}
	}
	for kind, least := range map[byte]int{'R': 143, 'X': 26, 'A': 16, 'B': 44, 'C': 37, 'D': 5, 'H': 18} {
		if kinds[kind] < least {
			t.Errorf("deploy/docs/protocol.md defines %d codes %c, want %d at least", kinds[kind], kind, least)
		}
	}
}

// TestProtocolPage holds that each rule and each decision of deploy/docs/protocol.md names the
// files with its tests, those whose names begin with its code. Where there are none, the page
// names other codes whose tests hold it, or says why it is not tested. With -update, it writes the names.
func TestProtocolPage(t *testing.T) {
	const name = "../deploy/docs/protocol.md"
	page := pages(t)[name]
	files := testFiles(t)
	want, missing := withTests(page, files)
	for _, code := range missing {
		t.Errorf("%s: %s has no test named after it: write one, or \"as R044\" for the code whose tests hold it, "+
			"or \"not tested: \" and why", name, code)
	}
	if page == want {
		return
	}
	if !*update {
		t.Fatalf("%s does not name the tests that there are: run go test ./relay -run TestProtocolPage -update", name)
	}
	if err := os.WriteFile(name, []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPagesOfRulesAreNarrow checks that the lines of the pages that comments cite have at most 120 characters.
func TestPagesOfRulesAreNarrow(t *testing.T) {
	for _, name := range []string{"../deploy/docs/protocol.md", "DESIGN.md"} {
		n := 0
		for line := range strings.Lines(pages(t)[name]) {
			n++
			if length := utf8.RuneCountInString(strings.TrimSpace(line)); length > 120 {
				t.Errorf("%s:%d has %d characters, want 120 at most", name, n, length)
			}
		}
	}
}

// TestCitedCodes holds what counts as a citation.
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

// definedCodes returns how often deploy/docs/protocol.md defines each code.
func definedCodes(t *testing.T) map[string]int {
	t.Helper()
	defined := map[string]int{}
	page := pages(t)["../deploy/docs/protocol.md"]
	for _, where := range []*regexp.Regexp{codeItem, codeHeading} {
		for _, match := range where.FindAllStringSubmatch(page, -1) {
			defined[match[1]]++
		}
	}
	return defined
}

// citedIn returns the codes that a text cites, by themselves or in names of tests. It looks
// at words, since a search through the whole repository takes half a minute with the race detector.
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

// citedBy returns the codes that the name of a test begins with.
func citedBy(test string) (cited []string) {
	match := codedTest.FindStringSubmatch(test)
	if match == nil {
		return nil
	}
	for c := range strings.SplitSeq(strings.TrimSuffix(match[1], "_"), "_") {
		if strings.Contains("ABD", c[:1]) { // written with a dot
			c = c[:1] + "." + c[1:]
		}
		cited = append(cited, c)
	}
	return cited
}

// citers returns the files that may cite codes, by their paths from here.
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
				return fs.SkipDir // what is installed or built
			}
			return nil
		}
		if !slices.Contains(citing, filepath.Ext(base)) || base == "docs_protocol_test.go" { // has examples that are none
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

// testFiles returns the files with tests named after each code, by their paths in the
// module without _test.go; and the transcripts named so, without the path of their folder.
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
		if played, ok := strings.CutPrefix(name, transcripts); ok {
			played = strings.TrimSuffix(played, ".txt")
			add("Test"+played, played)
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

// withTests returns the page with the names of files wherever it defines a code that has
// tests, and with the links of these names at its end. It returns the codes that have
// neither tests nor a word on why not.
func withTests(page string, files map[string][]string) (text string, missing []string) {
	page, _, _ = strings.Cut(page, linksBelow)
	var out []string
	named := map[string]bool{}
	tests := func(code, written string) string {
		for _, file := range files[code] {
			named[file] = true
		}
		said, ok := testsOf(code, written, files)
		if !ok {
			missing = append(missing, code)
		}
		return said
	}
	paragraph := func(code, written string) string {
		return strings.TrimSpace(humanize.Wrap("**Tests.** "+tests(code, written), "", ""))
	}
	decision := "" // the one that the lines are of, if it has no tests yet
	for _, block := range strings.Split(strings.TrimSpace(page), "\n\n") {
		if written, ok := strings.CutPrefix(block, "**Tests.** "); ok && decision != "" {
			block = paragraph(decision, strings.ReplaceAll(written, "\n", " "))
			decision = ""
		} else if strings.HasPrefix(block, "#") {
			if decision != "" {
				out = append(out, paragraph(decision, ""))
			}
			decision = ""
			if match := codeHeading.FindStringSubmatch(block); match != nil && match[1][0] != 'A' { // sections of tables
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
		path := file + "_test.go"
		if !strings.Contains(file, "/") {
			path = transcripts + file + ".txt"
		}
		between := " "
		if len("[]: ../../")+len(file)+len(path) > 120 {
			between = "\n  "
		}
		links.WriteString("[" + file + "]:" + between + "../../" + path + "\n")
	}
	return strings.Join(out, "\n\n") + "\n" + linksBelow + links.String(), missing
}

// itemsWithTests returns a list with the tests of each item of a code as tests has them.
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

// testsOf returns what the page says of the tests of a code: the names of the files, or
// what is written there if there are none and it is a reason.
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
