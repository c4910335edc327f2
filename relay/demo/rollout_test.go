package demo

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// TestRunRollout runs all acts, with clients in every cohort and with a single client.
func TestRunRollout(t *testing.T) {
	for _, clients := range []int{1, 8} {
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			temporary := t.TempDir()
			t.Setenv("TMPDIR", temporary)
			text := simulate(t, Options{Clients: clients, Rollout: true, Stage: time.Second, Command: "bin/tender"}, "")
			all := fmt.Sprintf("%d/%[1]d", clients)
			canaries := canariesOf(clients)
			expect(t, text,
				`Status page: http://127\.0\.0\.1:\d+/`,
				`The relay has TENDER_ROLLOUT='id=canary\* 1s, 20% 1s, 50% 1s', so a change reaches`,
				`  id=canary\* +\d+ clients  first`,
				`  the rest +\d+ clients  1s later, if no client before them has rejected it`,
				`  bin/tender rollout status --admin 127\.0\.0\.1:\d+`,
				`1\. A good change: .*`,
				` *\S+s +0/.* the relay gathers changes for 2s`,
				fmt.Sprintf(` *\S+s +%d/.*  stage 1 of 3, id=canary\*: all of its clients have it`, canaries),
				` .*  stage 2 of 3, 20%: all of its clients have it`,
				` .*  stage 3 of 3, 50%: all of its clients have it`,
				` *\S+s +`+all+` .*  promoted: .*`,
				`2\. A bad change: .*`,
				` .*  stage 1 of 3, id=canary\*: its clients reject the listener; canary-\d says:`,
				` +Error adding/updating listener\(s\) ingress: Error: terminal filter named envoy\.filters\.http\.router of`,
				` .*  HALTED: no other client is served it\. The reason:`,
				` +\d clients? rejected the edition \(limit 0\): canary-\d rejected`,
				` .*  reverted: all canaries have the last good configuration, \d+\.\d\dms after the first was sent the change`,
				fmt.Sprintf(` .*  all %d clients have the last good configuration and the newest endpoints; 0 of the %d that are no canaries were sent the change`, clients, clients-canaries),
				`3\. The fix: .*`,
				` *\S+s +`+all+` .*  promoted: .*`,
				fmt.Sprintf(`The bad listener was sent to \d of %d canaries, .*, and to 0 of the %d other clients\.`, canaries, clients-canaries),
				fmt.Sprintf(`All %d clients agree with the origin: yes`, clients),
			)
			if left, err := fs.Glob(os.DirFS(temporary), "tender-demo-*"); err != nil || len(left) > 0 {
				t.Errorf("the demo did not remove %q from the temporary directory, %v", left, err)
			}
		})
	}
}

func TestRunRolloutEndsWithItsContext(t *testing.T) {
	text := simulate(t, Options{Clients: 2, Rollout: true}, "1. A good change")
	expect(t, text, `Ended before the rollouts were over\.`)
}

// TestEnvoyError checks that clients reject the listener of the bad change and no other resource of the mesh.
func TestEnvoyError(t *testing.T) {
	m, err := newMesh(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	of := func(next func() (change, error)) (refused []string) {
		c, err := next()
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range c.updates {
			for _, r := range u.Resources {
				if envoyError(update{typeURL: u.TypeURL, resources: map[string][]byte{r.Name: r.Value()}}) != "" {
					refused = append(refused, r.Name)
				}
			}
		}
		return refused
	}
	for typeURL, resources := range m.resources {
		for name, r := range resources {
			if words := envoyError(update{typeURL: typeURL, resources: map[string][]byte{name: r.Value()}}); words != "" {
				t.Errorf("%s of the mesh is rejected: %s", name, words)
			}
		}
	}
	if good, bad, fix := of(m.shortenTimeout), of(m.breakIngress), of(m.fixIngress); good != nil || !slices.Equal(bad, []string{ingress}) || fix != nil {
		t.Errorf("clients reject %q, %q and %q, want only the ingress of the bad change", good, bad, fix)
	}
	if words := envoyError(update{typeURL: wire.ListenerType, resources: map[string][]byte{"a": []byte(strings.Repeat("\x1a\xff", 9))}}); words != "" {
		t.Errorf("a malformed listener is rejected: %s", words)
	}
}
