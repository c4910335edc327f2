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
	gatherTime    = 2 * time.Second // from a change until the relay makes an edition of it
	rolloutMargin = 8 * time.Second // delay of all stages beyond their configured durations
)

// RolloutLasts returns the minimum duration of the demo with Rollout, including a margin. Two editions pass all stages.
func (o Options) RolloutLasts() time.Duration {
	return (3*gatherTime + 2*3*o.stage() + o.haltShown() + rolloutMargin).Round(time.Second)
}

// haltShown returns how long the demo shows changes of endpoints while the rollout is halted.
func (o Options) haltShown() time.Duration { return o.stage() * 3 / 2 }

// stage returns the duration of a stage, with its default.
func (o Options) stage() time.Duration { return cmp.Or(o.Stage, 4*time.Second) }

// cohorts assigns the clients of the demo to the stages of rollouts. A nil *cohorts is a demo without rollouts.
type cohorts struct {
	stages rollout.Stages
	dir    string          // snapshot directory of the relay
	sizes  []int           // number of clients in each cohort; the last one is not in any stage
	of     map[*client]int // index of each client's cohort
}

// openCohorts returns cohorts without clients and creates the snapshot directory. The caller must call close.
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

// close removes the snapshot directory. c may be nil.
func (c *cohorts) close() error {
	if c == nil {
		return nil
	}
	return os.RemoveAll(c.dir)
}

// environ returns the environment variables of the relay that enable rollouts.
func (c *cohorts) environ() []string {
	if c == nil {
		return nil
	}
	return []string{"TENDER_ROLLOUT=" + c.stages.String(), "TENDER_SNAPSHOT_DIR=" + c.dir, "TENDER_DELTA_VERSIONS=content", "TENDER_COLD_WAIT=2s"}
}

// assign renames the clients and sets the cohort of each. It must be called before the clients run.
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

// canariesOf returns the number of canaries among a number of clients. From four clients on it is at least two, so that
// both variants are among the canaries.
func canariesOf(clients int) int {
	if clients < 4 {
		return 1
	}
	return max(2, min(clients/50, 10))
}

// clients returns how many clients are in the given number of first stages.
func (c *cohorts) clients(stages int) (n int) {
	for _, size := range c.sizes[:stages] {
		n += size
	}
	return n
}

// canaries returns the number of clients in the first stage.
func (d *demo) canaries() int { return d.cohorts.sizes[0] }

// others returns the number of clients that are not in the first stage.
func (d *demo) others() int { return d.Clients - d.canaries() }
