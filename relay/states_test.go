package relay

import (
	"go/ast"
	"go/token"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// events are warnings and errors in the log that announce no state: something happened once, or needs a restart to end.
var events = []string{
	"variable of OpenTelemetry ignored", // until a restart
	"cached state is inconsistent in more places than are logged",
	"cached state is inconsistent; restart the relay and report this",
	"client and relay differ in Istio proxy type; run one relay per type",
	"a peer has halted changes that all clients of this relay have: consider tender rollout undo",
	"client does not read", // its stream ends
	"client is a relay; configure rollouts in the tier that proxies connect to",
	"client connection refused",
	"client rate-limited",
	"client not authorized for a resource name",
	"client rejected a response",
	"client requested an invalid name",
	"clients of one node group differ in Node fields (TENDER_NODE_GROUP_BY)",
	"downstream relay refused",
	"freeze expired while the relay was not running",
	"freeze not restored; origin does not exist",
	"load report has a non-finite metric, which is ignored",
	"load report truncated at the size limit",
	"local Envoy did not judge the edition; rollout continues",
	"local Envoy rejects what is not of the edition; it tries the edition again",
	"log records dropped: the log was not read", // it is read again
	"log level changed",
	"message of OpenTelemetry",
	"message of gRPC",
	"more resources failed validation than are logged",
	"operator decisions not restored; no origin is frozen and no removal is dropped",
	"operator dropped pending changes",
	"operator passed pending changes",
	"operator request refused",
	"origin failover to the next address",
	"origin requests load reports too often",
	"origin resources refused",
	"origin response refused",
	"origin reused a version for different content: its versions are ignored from now on; set TENDER_DELTA_VERSIONS=content to derive versions from content",
	"origin sent several variants of a resource for the same parameters: the first is used",
	"origin thawed; its changes are distributed",
	"poll cannot be answered in json",
	"relay stopping while origin is frozen; the freeze is lost",
	"report of a relay refused", // its clients are unknown until the next report
	"resource names over a limit are not served",
	"response exceeds the default limit of gRPC clients, 4 MiB",
	"rollback not restored for a node group; its clients receive the newest configuration",
	"rollout command executed",
	"snapshot omits resources with sensitive fields; clients wait for them after a restart; TENDER_SNAPSHOT_SENSITIVE=on stores them",
	"snapshot refused; its view starts cold",
	"snapshots above TENDER_MAX_GROUPS are restored when clients reconnect",
	"snapshots of a peer refused; their views start cold",
	"no peer sent its state; clients wait for an origin",
	"status page not rendered",
	"stopping with streams open",
	"traffic leaves this host without TLS; it can be intercepted and changed",
	"unused snapshot not removed",
	"unused snapshots not removed",
	"dropped removals not restored; no snapshot of the resources",
	"odd client", // of the demo
	"limit of open files is too low for TENDER_MAX_CONNECTIONS; raise it (ulimit -n, LimitNOFILE)",
	"node group limit of a peer reached (TENDER_MAX_GROUPS_PER_CLIENT); its clients of new groups are refused; raise it for load balancers",
}

// messages returns the messages in the code of the product that are constant: all of them, and those of warnings and errors.
func messages(t *testing.T) (all, warnings map[string]bool) {
	t.Helper()
	all, warnings = make(map[string]bool), make(map[string]bool)
	for name, file := range parseModule(t) {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "bench/") || strings.HasPrefix(name, "deploy/") ||
			strings.HasPrefix(name, "relay/relaytest/") || strings.HasPrefix(name, "relay/envoytest/") {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if from, ok := f.X.(*ast.Ident); ok && (from.Name == "status" || from.Name == "http") {
				return true // an error for a peer
			}
			switch level := levelOf(f.Sel.Name, call.Args); level {
			case "":
			default:
				for _, arg := range call.Args[:min(3, len(call.Args))] {
					if text, ok := constant(arg); ok {
						if text == "" {
							break // nothing is logged
						}
						all[text] = true
						warnings[text] = warnings[text] || level == "warn"
						break
					}
				}
			}
			return true
		})
	}
	maps.DeleteFunc(warnings, func(_ string, is bool) bool { return !is })
	return all, warnings
}

// levelOf returns warn for a call that may log a warning or an error, info for one that logs another record, and nothing
// for any other call.
func levelOf(method string, args []ast.Expr) string {
	switch method {
	case "Warn", "WarnContext", "Error", "ErrorContext", "Refused": // guard.Counters.Refused
		return "warn"
	case "Info", "InfoContext", "Debug", "DebugContext":
		return "info"
	case "Log", "LogAttrs", "NewRecord":
		if len(args) > 1 {
			if level, ok := args[1].(*ast.SelectorExpr); ok && (level.Sel.Name == "LevelInfo" || level.Sel.Name == "LevelDebug") {
				return "info"
			}
			return "warn"
		}
	}
	return ""
}

// constant returns the value of a string literal, or of a sum of them.
func constant(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, e.Kind == token.STRING && err == nil
	case *ast.BinaryExpr:
		x, okX := constant(e.X)
		y, okY := constant(e.Y)
		return x + y, e.Op == token.ADD && okX && okY
	}
	return "", false
}

// revocations returns the table of states in log.md: what announces a state, and what ends it.
func revocations(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile("../deploy/docs/log.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| Begin | End |\n| --- | --- |\n")
	if !found {
		t.Fatal("log.md has no table of states")
	}
	out := make(map[string][]string)
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 2 {
			break
		}
		ends := strings.Split(cells[1], "`, `")
		for i := range ends {
			ends[i] = strings.Trim(ends[i], " `")
		}
		out[strings.Trim(cells[0], " `")] = ends
	}
	return out
}

// TestB43_StatesAreRevoked checks that each warning or error in the log is an event, or a state that the table in
// log.md has with the line that ends it.
func TestB43_StatesAreRevoked(t *testing.T) {
	all, warnings := messages(t)
	states := revocations(t)
	has := func(text string) bool {
		return all[text] || slices.ContainsFunc(slices.Collect(maps.Keys(all)), func(full string) bool {
			return strings.HasPrefix(full, text+":") || strings.HasPrefix(full, text+";") || strings.HasPrefix(full, text+" (")
		})
	}
	for begin, ends := range states {
		for _, text := range append(ends, begin) {
			if !has(text) {
				t.Errorf("log.md has the line %q of the log, which no code writes", text)
			}
		}
	}
	for text := range warnings {
		begins := func(begin string) bool {
			return text == begin || strings.HasPrefix(text, begin+":") || strings.HasPrefix(text, begin+";") || strings.HasPrefix(text, begin+" (")
		}
		if !slices.Contains(events, text) && !slices.ContainsFunc(slices.Collect(maps.Keys(states)), begins) {
			t.Errorf("the log warns %q: add its end to the table of states in log.md, or the line to the events of this test", text)
		}
	}
	for _, text := range events {
		if !warnings[text] {
			t.Errorf("no code warns %q, an event of this test", text)
		}
	}
}
