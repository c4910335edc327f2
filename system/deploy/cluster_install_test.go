package deploy_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/envoytest"
)

// TestCluster_Install installs the chart into a cluster with the command on the page for Kubernetes. The controllers
// create pods and claims, the test runs a relay for each pod, and the StatefulSet becomes ready. It then upgrades the
// chart in a namespace with the restricted Pod Security Standard, and uninstalls it, which deletes pods and claims.
func TestCluster_Install(t *testing.T) {
	need(t)
	c := startCluster(t)
	c.helm(inRepository(t, documentedInstall(t))...)
	const pods, sets = "/api/v1/namespaces/tender/pods", "/apis/apps/v1/namespaces/tender/statefulsets"
	k := &kubelet{cluster: c, pods: pods, binary: envoytest.Command(t), running: map[string]*running{}}
	k.untilAvailable(sets + "/tender")
	for _, r := range k.running {
		r.stop()
	}
	if claims := c.items("/api/v1/namespaces/tender/persistentvolumeclaims"); len(claims) != 3 {
		t.Errorf("found %d claims, want one for each of 3 pods", len(claims))
	}

	c.patch("/api/v1/namespaces/tender", object{"metadata": object{"labels": object{"pod-security.kubernetes.io/enforce": "restricted"}}})
	c.helm("upgrade", "tender", chartDir, "--namespace", "tender", "--reset-then-reuse-values", "--set", "log.level=debug,minReadySeconds=0")
	k.binary = "" // relays ran in the first installation; from here pods are only reported as ready
	k.untilAvailable(sets + "/tender")
	for _, pod := range c.items(pods) {
		if env := k.relayOf(pod).environ; env["TENDER_LOG_LEVEL"] != "debug" || env["TENDER_ORIGIN"] == "" {
			t.Errorf("after the upgrade, a pod has the environment %v", env)
		}
	}

	c.helm("uninstall", "tender", "--namespace", "tender")
	for _, path := range []string{pods, sets, "/api/v1/namespaces/tender/services", "/api/v1/namespaces/tender/persistentvolumeclaims"} {
		c.await("no objects at "+path, func() (bool, string) {
			left := c.items(path)
			return len(left) == 0, fmt.Sprint(len(left), " objects")
		})
	}
}

// TestCluster_Accepts checks that the API server accepts all objects. It installs, upgrades and uninstalls the chart
// with each file of values, and applies the manifests of deploy/kubernetes.
func TestCluster_Accepts(t *testing.T) {
	need(t)
	c := startCluster(t)
	files, err := filepath.Glob(*definitions + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d definitions: %v", len(files), err)
	}
	for _, file := range files {
		for _, m := range decode(t, file, readText(t, file)).objects {
			c.apply(m)
		}
	}
	c.await("the definitions to be served", func() (bool, string) {
		for _, path := range []string{"/apis/cert-manager.io/v1/certificates", "/apis/monitoring.coreos.com/v1/servicemonitors", "/apis/monitoring.coreos.com/v1/prometheusrules"} {
			if code, _, err := c.request(http.MethodGet, path, "", nil); code != http.StatusOK {
				return false, fmt.Sprintf("%s: %d, %v", path, code, err)
			}
		}
		return true, ""
	})
	for _, file := range valuesFiles(t) {
		release := strings.TrimSuffix(filepath.Base(file), ".yaml")
		args := []string{release, chartDir, "--namespace", release, "--values", file}
		c.helm(append([]string{"install", "--create-namespace"}, args...)...)
		c.helm(append([]string{"upgrade", "--set", "revisionHistoryLimit=2"}, args...)...)
		if got := c.helm("list", "--namespace", release, "--output", "yaml"); !regexp.MustCompile(`(?s)revision: "?2"?.*status: deployed`).MatchString(got) {
			t.Errorf("%s: helm list prints\n%s", release, got)
		}
		c.helm("uninstall", release, "--namespace", release)
	}
	for _, dir := range overlays(t) {
		printed, err := run(t, *kustomize, "build", dir)
		if err != nil {
			t.Fatal(err)
		}
		r := decode(t, filepath.Base(dir), printed)
		namespace := text(r.objects[0].object, "metadata", "namespace")
		c.apply(manifest{object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": namespace}}})
		for _, m := range r.objects {
			c.apply(m)
		}
	}
}

// A kubelet acts as the kubelet of all pods: it runs their containers, and reports the pods as ready.
type kubelet struct {
	*cluster
	pods    string              // API path of the pods
	binary  string              // path of the relay; if empty, it reports pods as ready without running them
	running map[string]*running // by name of the pod
}

// untilAvailable runs pods until all replicas of a StatefulSet are available in its latest revision.
func (k *kubelet) untilAvailable(set string) {
	k.t.Helper()
	k.await("the StatefulSet to be available", func() (bool, string) {
		for _, pod := range k.items(k.pods) {
			if text(pod, "status", "phase") == "Pending" && text(pod, "metadata", "deletionTimestamp") == "" {
				k.runPod(pod)
			}
		}
		s := k.call(http.MethodGet, set, "", nil)
		replicas, status := number(s, "spec", "replicas"), at(s, "status")
		return number(status, "availableReplicas") == replicas && number(status, "updatedReplicas") == replicas &&
			number(status, "observedGeneration") == number(s, "metadata", "generation"), fmt.Sprint(status)
	})
}

// runPod starts the relay of a pod, waits until it is ready, and reports the pod as ready.
func (k *kubelet) runPod(pod object) {
	k.t.Helper()
	name := text(pod, "metadata", "name")
	relay := k.relayOf(pod)
	if k.binary != "" {
		c := relay.container(k.t)
		c.Binary = k.binary
		k.running[name] = startContainer(k.t, c)
	}
	now := time.Now().UTC().Format(time.RFC3339)
	k.patch(k.pods+"/"+name+"/status", object{"status": object{
		"phase":      "Running",
		"conditions": []object{{"type": "Ready", "status": "True", "lastTransitionTime": now}},
		"containerStatuses": []object{{
			"name": "tender", "image": text(relay.relay, "image"), "imageID": "", "ready": true, "started": true, "restartCount": 0,
			"state": object{"running": object{"startedAt": now}},
		}},
	}})
}

// relayOf returns the relay of a pod that was read from the API server.
func (k *kubelet) relayOf(pod object) relayPod {
	k.t.Helper()
	container := list(pod, "spec", "containers")[0].(object)
	r := rendering{name: text(pod, "metadata", "name")}
	return relayPod{r, manifest{pod}, pod, container, r.environ(k.t, container)}
}
