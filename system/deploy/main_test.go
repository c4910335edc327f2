package deploy_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/xdstender/tender/relay/envoytest"
)

// root is the root of the repository.
const root = "../.."

// Flags that make charts, make cluster and make imagetest set. package_test.go has those of make packagetest.
var (
	helmTool     = flag.String("helm", "", "the `program` Helm")
	kustomize    = flag.String("kustomize", "", "the `program` Kustomize")
	validateTool = flag.String("kubectl-validate", "", "the `program` kubectl-validate")
	definitions  = flag.String("definitions", "", "the `directory` with CustomResourceDefinitions")
	clusterTools = flag.String("cluster", "", "the `directory` with etcd, kube-apiserver and kube-controller-manager")
	imageFlag    = flag.String("image", "", "the `layout:version` to test, as make image writes it")
)

// A group is the tests that need flags, by the prefix of their names.
type group struct {
	prefix, target string // the target of make sets the flags
	flags          []*string
}

var groups = []group{
	{"TestChart_", "make charts", []*string{helmTool, kustomize, validateTool, definitions}},
	{"TestCluster_", "make cluster", []*string{helmTool, kustomize, definitions, clusterTools}},
	{"TestImage_", "make imagetest", []*string{imageFlag}},
	{"TestPackage_", "make packagetest", []*string{packagesDir, packageVersion, packageDate}},
}

// complete reports whether all flags of the group are set.
func (g group) complete() bool {
	return !slices.ContainsFunc(g.flags, func(value *string) bool { return *value == "" })
}

// TestMain runs the tests, or one of the processes of alone and of startContainer.
func TestMain(m *testing.M) {
	if mounts := os.Getenv(mountsVariable); mounts != "" {
		fmt.Fprintln(os.Stderr, becomeAlone(mounts, os.Args[1:]))
		os.Exit(1)
	}
	if text := os.Getenv(containerVariable); text != "" {
		runContainer(text)
		return
	}
	flag.Parse()
	selectTests()
	code := m.Run()
	envoytest.Clean()
	http.DefaultClient.CloseIdleConnections()
	// gRPC-Go (1.85) continues to watch the credential files of a bootstrap after its client is closed.
	watcher := goleak.IgnoreTopFunction("google.golang.org/grpc/credentials/tls/certprovider/pemfile.(*watcher).run")
	if err := goleak.Find(watcher); err != nil && code == 0 { // only here, because tests run in parallel
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// selectTests leaves out the groups whose flags are not set, unless -run selects tests.
func selectTests() {
	if flag.Lookup("test.run").Value.String() != "" {
		return
	}
	skip := flag.Lookup("test.skip").Value
	var all []string
	if skip.String() != "" {
		all = append(all, skip.String())
	}
	for _, g := range groups {
		if !g.complete() {
			all = append(all, "^"+g.prefix)
		}
	}
	_ = skip.Set(strings.Join(all, "|")) // any string is valid
}

// need fails a test of a group whose flags are not set.
func need(t *testing.T) {
	t.Helper()
	for _, g := range groups {
		if strings.HasPrefix(t.Name(), g.prefix) && !g.complete() {
			t.Fatalf("%s sets the flags of this test", g.target)
		}
	}
}

// readText returns the content of a file.
func readText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
