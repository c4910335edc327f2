package relay

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	// citedCode matches a word that is a code of deploy/docs/protocol.md.
	citedCode = regexp.MustCompile(`^(?:R\d{3}|[CHX]\d{2}|[ABD]\.\d{1,2})$`)

	// codeRow and codeHeading match where that page defines one.
	codeRow     = regexp.MustCompile(`(?m)^\| (R\d{3}|[CHX]\d{2}) \|`)
	codeHeading = regexp.MustCompile(`(?m)^#+ ([ABD]\.\d+) `)

	// codedTest matches the name of a test that begins with codes, such as
	// TestB8_B15_R068_NothingIsRemoved, or the beginning of one on a page.
	codedTest = regexp.MustCompile(`^(?:Test|Fuzz)((?:[ABCDHRX]\d+_)+)`)

	// citing lists the extensions of files that cite codes: code, pages, transcripts,
	// and what is shipped with comments.
	citing = []string{".go", ".md", ".txt", ".yml", ".yaml"}
)

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
	for kind, least := range map[byte]int{'R': 143, 'X': 26, 'A': 16, 'B': 44, 'C': 37, 'D': 5} {
		if kinds[kind] < least {
			t.Errorf("deploy/docs/protocol.md defines %d codes %c, want %d at least", kinds[kind], kind, least)
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
	for _, where := range []*regexp.Regexp{codeRow, codeHeading} {
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
