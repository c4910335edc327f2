package relay

import (
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A word is used for one thing in all texts for operators. deploy/docs/concepts.md defines it under "Terms".
type word struct {
	term  string
	wrong []string // patterns of the same thing in another word, and of the word for another thing

	// allowed are texts that match a pattern and are right, each with the reason.
	allowed map[string]string
}

const (
	// serverNames are of those who turn away what others send to them.
	serverNames = `(relays?|tender|servers?|control planes?|origins?|istiod|consul|listeners?|peers?|chart)`
	// sentNames are of what others send to a server, or give to a relay.
	sentNames = `(connections?|streams?|requests?|polls?|snapshots?|handshakes?|files?|certificates?|values?|commands?|headers?)`
	// clientNames are of those who turn away what a server sends to them.
	clientNames = `(clients?|envoys?|proxies|proxy|canary|canaries)`
)

// words are the terms that were two words for one thing once, or one word for two things.
var words = []word{
	{term: "Reject", wrong: []string{
		clientNames + ` (that |which |have |has |had )?refus(es?|ed|ing)`,
		`refused by (a |the |its |their )?(\d+ )?` + clientNames,
		`refus(es?|ed|ing|als?)( of)? (the |an |a |each |its )?(editions?|resources?|updates?|nacks?)`,
	}},
	{term: "Refuse", wrong: []string{
		serverNames + ` (that |also |itself |has |have )?reject(s|ed)?`,
		`rejected by (the |a |its )?` + serverNames,
		sentNames + ` (is|are|was|were|be|been) (then )?rejected`,
		`(connections?|streams?|requests?|snapshots?|files?|polls?|responses?) rejected`,
		`reject(s|ed|ing)? (a |the |all |any |new |such |an )*` + sentNames,
	}, allowed: map[string]string{
		"rejects a value":  "a validator of Envoy's API, as an Envoy does (tender_validation_findings)",
		"REJECTED BY PEER": "two columns of tender rollout status: the node and the address of a client",
	}},
	{term: "Pending", wrong: []string{`with(hold|holds|held|holding)`, `(hold|holds|held|holding) back`}},
	{term: "Node group", wrong: []string{`client groups?`, `groups? of nodes`}},
	{term: "Origin", wrong: []string{`management servers?`, `upstream servers?`, `configuration servers?`}},
	{term: "Relay", wrong: []string{`tender (instances?|servers?|process|processes|nodes?|daemons?)`}},
	{term: "Edition", wrong: []string{`change ?sets?`, `rollout (version|revision|release)s?`}},
	{term: "Stage", wrong: []string{`waves?`, `rollout steps?`, `progressive (distribution|delivery|rollouts?)`}},
	{term: "Tier", wrong: []string{`\w\S* --fleet`, `api/v1/fleet`, `fleets? of relays`, `relay fleets?`}},
	{term: "Lagging", wrong: []string{`late`, `(largest|biggest) lags?`, `slowest first`}},
	{term: "Admin address", wrong: []string{`admin (surfaces?|ports?|interfaces?|servers?)`}},
	{term: "Thaw", wrong: []string{`unfree?ze`, `unfreezes`, `unfrozen`}},
}

// names are those with a form of reject or refuse: of metrics, variables, alerts, fields of JSON and columns. A name has no
// sentence around it, so it is listed with the one who acts.
var names = map[string][]string{
	"reject": { // a client, by a NACK
		"tender_client_rejecting", "TENDER_REPORT_REJECTS", "TENDER_ROLLOUT_REJECTIONS",
		"TenderClientsReject", "TenderClientRejects",
		"rejected", "rejecting", "rejection", "rejections",
		"REJECTED", "REJECTED BY", "REJECTING",
	},
	"refus": { // the relay
		"tender_client_refusals_total", "tender_snapshots_refused_total", "tender_tls_refusals_total",
		"TenderCredentialsRefused", "TenderOriginRefused",
		"refused", "refusals",
		"REFUSED BY THE RELAY",
	},
}

// TestWords checks that texts for operators use one word for one thing: the pages, the strings of the program (output and
// help of commands, log messages, errors, descriptions of metrics and variables), the status page, the alerts, the
// dashboard, the descriptions of the API, and all other files for installations, with their comments: the chart with its
// notes and errors, manifests, bootstraps, the unit and the packages.
func TestWords(t *testing.T) {
	texts := operatorTexts(t)
	_, terms, _ := strings.Cut(pages(t)["../deploy/docs/concepts.md"], "\n## Terms\n")
	for _, w := range words {
		if !strings.Contains(terms, "**"+w.term+"**") {
			t.Errorf("deploy/docs/concepts.md does not define %q", w.term)
		}
		wrong := regexp.MustCompile(`(?i)\b(` + strings.Join(w.wrong, "|") + `)\b`)
		used := map[string]bool{}
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			for _, match := range wrong.FindAllString(texts[name], -1) {
				if used[match] = true; w.allowed[match] == "" {
					t.Errorf("%s has %q: see %q under Terms in deploy/docs/concepts.md", name, match, w.term)
				}
			}
		}
		for text := range w.allowed {
			if !used[text] {
				t.Errorf("no text has %q, which is allowed", text)
			}
		}
	}
}

var (
	// Names in texts: a metric, a variable, an alert, the key of an object, and the heading of a column.
	namePatterns = []*regexp.Regexp{
		regexp.MustCompile(`[^#\w](tender_\w+)`), regexp.MustCompile(`\bTENDER_[A-Z0-9_]+`), regexp.MustCompile(`alert: (\w+)`),
		regexp.MustCompile(`(?:^|\s)"?(\w+)"?: \{? ?"?(?:description|type|items|\$ref|anyOf)`),
	}
	capitals = regexp.MustCompile(`^[A-Z ]+$`)
)

// TestNamesOfWords checks the names that have one of the words.
func TestNamesOfWords(t *testing.T) {
	found := map[string]bool{}
	for _, text := range operatorTexts(t) {
		for _, pattern := range namePatterns {
			for _, match := range pattern.FindAllStringSubmatch(text, -1) {
				found[match[len(match)-1]] = true
			}
		}
	}
	for _, text := range programStrings(t) {
		for _, s := range text {
			if capitals.MatchString(s) {
				found[s] = true
			}
		}
	}
	for stem, want := range names {
		var got []string
		for _, name := range slices.Sorted(maps.Keys(found)) {
			if strings.Contains(strings.ToLower(name), stem) {
				got = append(got, name)
			}
		}
		if want := slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
			t.Errorf("names with %q are\n%q, want\n%q: a client rejects by a NACK, and the relay refuses", stem, got, want)
		}
	}
}

// operatorTexts returns the texts for operators by file. White space is one space, and markup of code is removed.
func operatorTexts(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, text := range pages(t) {
		if name == "../README.md" || name == "../.github/SECURITY.md" || strings.HasPrefix(name, "../deploy/") {
			all[name] = text
		}
	}
	for _, pattern := range []string{
		"page/templates/*.html", "../deploy/prometheus/*.yaml", "../deploy/grafana/*.json", "../deploy/docs/*.yaml",
		"../deploy/docs/*.json", "../deploy/helm/tender/*.yaml", "../deploy/helm/tender/templates/*", "../deploy/kubernetes/*/*.yaml",
		"../deploy/compose/*.yaml", "../deploy/envoy/*.yaml", "../deploy/systemd/*", "../deploy/package/*", "../deploy/image/Dockerfile",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, want files", pattern, err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all[name] = string(text)
		}
	}
	for name, parts := range programStrings(t) {
		all[name] = strings.Join(parts, "; ")
	}
	for name, text := range all {
		all[name] = strings.Join(strings.Fields(strings.ReplaceAll(text, "`", "")), " ")
	}
	if len(all) < 200 {
		t.Fatalf("found %d texts, want those of the program and its pages", len(all))
	}
	return all
}

// programStrings returns the strings in the code of the product by file. Concatenated ones are one string.
func programStrings(t *testing.T) map[string][]string {
	t.Helper()
	product := func(name string) bool {
		top, _, _ := strings.Cut(name, "/")
		return !strings.HasSuffix(name, "_test.go") && top != "bench" && top != "system" &&
			!strings.HasPrefix(name, "relay/relaytest/") && !strings.HasPrefix(name, "relay/envoytest/")
	}
	all := map[string][]string{}
	for name, file := range parseFiles(t, product) {
		ast.Inspect(file, func(n ast.Node) bool {
			if _, imports := n.(*ast.ImportSpec); imports {
				return false
			}
			expr, is := n.(ast.Expr)
			if !is {
				return true
			}
			text, constant := constantText(expr)
			if constant {
				all[name] = append(all[name], text)
			}
			return !constant
		})
	}
	return all
}

// constantText returns the value of a string, or of a sum of strings. A part that is not constant is "…".
func constantText(e ast.Expr) (text string, is bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, e.Kind == token.STRING && err == nil
	case *ast.BinaryExpr:
		left, isLeft := constantText(e.X)
		right, isRight := constantText(e.Y)
		if e.Op != token.ADD || !isLeft && !isRight {
			return "", false
		}
		for _, part := range []struct {
			text *string
			is   bool
		}{{&left, isLeft}, {&right, isRight}} {
			if !part.is {
				*part.text = "…"
			}
		}
		return left + right, true
	}
	return "", false
}
