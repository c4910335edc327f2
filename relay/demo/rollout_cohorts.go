package demo

import (
	"cmp"
	"fmt"
	"os"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/relay/rollout"
)

const (
	gatherTime    = 2 * time.Second // from a change until the relay cuts an edition
	rolloutMargin = 8 * time.Second // what all stages may take beyond the times that are set
)

// RolloutLasts returns how long the demo of rollouts takes at least, with some margin: two editions pass all stages.
func (o Options) RolloutLasts() time.Duration {
	return (3*gatherTime + 2*3*o.stage() + o.haltShown() + rolloutMargin).Round(time.Second)
}

// haltShown returns for how long endpoints change while the rollout is halted.
func (o Options) haltShown() time.Duration { return o.stage() * 3 / 2 }

func (o Options) stage() time.Duration { return cmp.Or(o.Stage, 4*time.Second) }

// cohorts are the clients of the demo by the stage in which the relay serves them an edition. Nil is a demo without
// rollouts.
type cohorts struct {
	stages rollout.Stages
	dir    string // of snapshots
	sizes  []int  // how many clients are in each cohort, the rest last
	of     map[*client]int
}

// openCohorts returns the stages of a demo, and makes a directory that close removes.
func openCohorts(stage time.Duration) (*cohorts, error) {
	c := &cohorts{of: make(map[*client]int)}
	if err := c.stages.UnmarshalText(fmt.Appendf(nil, "id=canary* %[1]v, 20%% %[1]v, 50%% %[1]v", stage)); err != nil {
		return nil, err
	}
	c.sizes = make([]int, len(c.stages)+1)
	var err error
	c.dir, err = os.MkdirTemp("", "tender-demo-")
	return c, err
}

func (c *cohorts) close() error {
	if c == nil {
		return nil
	}
	return os.RemoveAll(c.dir)
}

// environ returns the variables of the relay that turn rollouts on.
func (c *cohorts) environ() []string {
	if c == nil {
		return nil
	}
	return []string{"TENDER_ROLLOUT=" + c.stages.String(), "TENDER_SNAPSHOT_DIR=" + c.dir, "TENDER_DELTA_VERSIONS=content", "TENDER_COLD_WAIT=2s"}
}

// assign names the clients, and finds the cohort of each.
func (c *cohorts) assign(clients []*client) {
	if c == nil {
		return
	}
	canaries := canariesOf(len(clients))
	for i, cl := range clients {
		if cl.name = fmt.Sprintf("canary-%d", i+1); i >= canaries {
			cl.name = fmt.Sprintf("edge-%d", i+1-canaries)
		}
		cl.deliveries = newDeliveries()
		cohort := c.stages.Cohort(&corepb.Node{Id: cl.name}, false)
		c.of[cl] = cohort
		c.sizes[cohort]++
	}
}

// canariesOf returns how many of so many clients are canaries: of both variants if there are some others.
func canariesOf(clients int) int {
	if clients < 4 {
		return 1
	}
	return max(2, min(clients/50, 10))
}

// clients returns how many clients are in the first stages.
func (c *cohorts) clients(stages int) (n int) {
	for _, size := range c.sizes[:stages] {
		n += size
	}
	return n
}

// canaries and others return how many clients are in the first stage, and how many are not.
func (d *demo) canaries() int { return d.cohorts.sizes[0] }
func (d *demo) others() int   { return d.Clients - d.canaries() }
