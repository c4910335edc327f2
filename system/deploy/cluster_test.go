package deploy_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// clusterPatience is the timeout for conditions in a cluster that normally take seconds.
const clusterPatience = 5 * time.Minute

// controllers are the controllers that create and delete the objects of the chart.
const controllers = "namespace-controller,serviceaccount-controller,statefulset-controller,deployment-controller,replicaset-controller," +
	"daemonset-controller,garbage-collector-controller,persistentvolumeclaim-protection-controller"

// token is the bearer token of the administrator.
const token = "administrator"

// A cluster consists of etcd, an API server and its controllers, without nodes. Tests act as the kubelets.
type cluster struct {
	t          *testing.T
	dir        string
	url        string
	kubeconfig string
	client     *http.Client
}

// startCluster starts a cluster that runs until the end of the test.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir()}
	etcd, peer := proxy.FreeAddress(t), proxy.FreeAddress(t) // these programs do not accept port 0
	c.start("etcd", "--data-dir="+c.dir+"/etcd", "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls=http://"+etcd, "--advertise-client-urls=http://"+etcd,
		"--listen-peer-urls=http://"+peer, "--initial-advertise-peer-urls=http://"+peer, "--initial-cluster=default=http://"+peer)

	address := proxy.FreeAddress(t)
	host, port, _ := net.SplitHostPort(address)
	ca := certs.NewCA(t)
	pair := ca.Sign(certs.Leaf{Names: []string{host}})
	c.url = "https://" + address
	key := c.write("accounts.key", newAccountKey(t))
	c.start("kube-apiserver", "--etcd-servers=http://"+etcd, "--bind-address="+host, "--secure-port="+port,
		"--tls-cert-file="+c.write("tls.crt", pair.Cert), "--tls-private-key-file="+c.write("tls.key", pair.Key), "--cert-dir="+c.dir,
		"--token-auth-file="+c.write("tokens.csv", []byte(token+",admin,admin,system:masters\n")), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--service-cluster-ip-range=10.0.0.0/16")
	c.kubeconfig = c.write("kubeconfig", kubeconfig(c.url, ca.PEM))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	c.client = &http.Client{Transport: transport, Timeout: clusterPatience}
	c.await("the API server to be ready", func() (bool, string) {
		code, body, err := c.request(http.MethodGet, "/readyz", "", nil)
		return code == http.StatusOK, fmt.Sprintf("%d %s %v", code, body, err)
	})
	c.start("kube-controller-manager", "--kubeconfig="+c.kubeconfig, "--controllers="+controllers, "--leader-elect=false", "--secure-port=0",
		"--service-account-private-key-file="+key)
	return c
}

// kubeconfig returns the configuration of a client with the rights of the administrator.
func kubeconfig(url string, ca []byte) []byte {
	text, err := json.Marshal(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []object{{"name": "test", "cluster": object{"server": url, "certificate-authority-data": ca}}},
		"users":    []object{{"name": "admin", "user": object{"token": token}}},
		"contexts": []object{{"name": "test", "context": object{"cluster": "test", "user": "admin"}}},
	})
	if err != nil {
		panic(err) // cannot happen: all fields are strings
	}
	return text
}

// newAccountKey returns a key for signing tokens of ServiceAccounts, in PEM.
func newAccountKey(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

// write writes a file into the directory of the cluster, and returns its path.
func (c *cluster) write(name string, content []byte) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// start starts a program of the cluster, and kills it at the end of the test. It logs the program's output if the test
// fails.
func (c *cluster) start(program string, args ...string) {
	c.t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(*clusterTools, program), args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = &log, &log, c.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Fatalf("%v: make cluster builds it", err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if the process has already ended
		_ = cmd.Wait()
		if c.t.Failed() {
			c.t.Logf("the end of the log of %s:\n%s", program, log.Bytes()[max(0, log.Len()-4000):])
		}
	})
}

// request sends a request to the API server as the administrator.
func (c *cluster) request(method, path, contentType string, body []byte) (code int, answer []byte, err error) {
	request, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", contentType)
	response, err := c.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// call sends an object to the API server and returns the response. It fails the test if the server rejects the object.
func (c *cluster) call(method, path, contentType string, body any) (answer object) {
	c.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	code, raw, err := c.request(method, path, contentType, text)
	if err != nil || code >= 300 {
		c.t.Fatalf("%s %s: %d, %v\n%s", method, path, code, err, raw)
	}
	if err := yaml.Unmarshal(raw, &answer); err != nil {
		c.t.Fatal(err)
	}
	return answer
}

// items returns the objects at a path.
func (c *cluster) items(path string) (all []object) {
	c.t.Helper()
	for _, item := range list(c.call(http.MethodGet, path, "", nil), "items") {
		all = append(all, item.(object))
	}
	return all
}

// patch applies a merge patch to an object.
func (c *cluster) patch(path string, change object) {
	c.t.Helper()
	c.call(http.MethodPatch, path, "application/merge-patch+json", change)
}

// paths maps the kinds of the applied objects to their API paths.
var paths = map[string]string{
	"Namespace": "/api/v1/namespaces", "ServiceAccount": "/api/v1/namespaces/%s/serviceaccounts", "Service": "/api/v1/namespaces/%s/services",
	"ConfigMap": "/api/v1/namespaces/%s/configmaps", "Deployment": "/apis/apps/v1/namespaces/%s/deployments",
	"StatefulSet": "/apis/apps/v1/namespaces/%s/statefulsets", "DaemonSet": "/apis/apps/v1/namespaces/%s/daemonsets",
	"PodDisruptionBudget":      "/apis/policy/v1/namespaces/%s/poddisruptionbudgets",
	"NetworkPolicy":            "/apis/networking.k8s.io/v1/namespaces/%s/networkpolicies",
	"CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}

// apply applies an object like kubectl apply --server-side. The API server rejects unknown fields.
func (c *cluster) apply(m manifest) {
	c.t.Helper()
	path := paths[m.kind()]
	if path == "" {
		c.t.Fatalf("the path of kind %s is unknown", m.kind())
	}
	if strings.Contains(path, "%s") {
		path = fmt.Sprintf(path, text(m.object, "metadata", "namespace"))
	}
	c.call(http.MethodPatch, path+"/"+m.name()+"?fieldManager=test&fieldValidation=Strict", "application/apply-patch+yaml", m.object)
}

// await polls condition until it returns true. standing describes the current state, for the failure message.
func (c *cluster) await(what string, condition func() (done bool, standing string)) {
	c.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	standing := ""
	for end := time.Now().Add(clusterPatience); time.Now().Before(end); <-tick.C {
		var done bool
		if done, standing = condition(); done {
			return
		}
	}
	c.t.Fatalf("waited for %s: %s", what, standing)
}

// helm runs Helm against the cluster, and returns its output.
func (c *cluster) helm(args ...string) string {
	c.t.Helper()
	printed, err := run(c.t, *helmTool, append(args, "--kubeconfig", c.kubeconfig)...)
	if err != nil {
		c.t.Fatalf("%v\n%s", err, printed)
	}
	return printed
}
