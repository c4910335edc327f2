package telemetry

import (
	"strconv"
	"time"

	"github.com/xdstender/tender/relay/rollout"
)

// rollouts reads a value of the rollout of each origin.
func rollouts(value func(*Reading, *rollout.Status) float64) func(*Reading, put) {
	return func(r *Reading, put put) {
		for _, s := range r.Rollouts {
			put(value(r, s), s.Origin)
		}
	}
}

// cohortLabel returns the label of a cohort.
func cohortLabel(s *rollout.Status, cohort int) string {
	if cohort == len(s.Cohorts)-1 {
		return "rest"
	}
	return strconv.Itoa(cohort + 1)
}

// since returns how long before the reading a time was, in seconds; 0 if it is zero.
func since(r *Reading, at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return max(0, r.At.Sub(at).Seconds())
}

// rolloutStates reads in which state each rollout is.
func rolloutStates(r *Reading, put put) {
	for _, s := range r.Rollouts {
		for _, phase := range rollout.Phases {
			put(boolValue(s.Phase == phase), s.Origin, phase.String())
		}
	}
}

// cohortClients reads how many clients each cohort has.
func cohortClients(r *Reading, put put) {
	for _, s := range r.Rollouts {
		for i := range s.Cohorts {
			put(float64(s.Cohorts[i].Clients), s.Origin, cohortLabel(s, i))
		}
	}
}

// cohortAnswers reads the outcomes of the edition at the clients of each stage.
func cohortAnswers(r *Reading, put put) {
	for _, s := range r.Rollouts {
		for i, c := range s.Cohorts[:len(s.Cohorts)-1] {
			put(float64(c.Accepted), s.Origin, cohortLabel(s, i), "accepted")
			put(float64(c.Refused), s.Origin, cohortLabel(s, i), "refused")
			put(float64(c.Wanting-c.Accepted-c.Refused), s.Origin, cohortLabel(s, i), "unanswered")
		}
	}
}

// rolloutAwaits reads what each rollout waits for.
func rolloutAwaits(r *Reading, put put) {
	for _, s := range r.Rollouts {
		for _, await := range rollout.Awaits {
			put(boolValue(s.Await == await), s.Origin, string(await))
		}
	}
}

// rolloutOutcomes reads what became of editions.
func rolloutOutcomes(r *Reading, put put) {
	for _, s := range r.Rollouts {
		put(float64(s.Outcomes.Promoted), s.Origin, "promoted")
		put(float64(s.Outcomes.Halted), s.Origin, "halted")
		put(float64(s.Outcomes.Reverted), s.Origin, "reverted")
		put(float64(s.Outcomes.Superseded), s.Origin, "superseded")
		put(float64(s.Outcomes.Undone), s.Origin, "undone")
	}
}

// checkFailing returns for how long the check has given no answer that a rollout needs.
func checkFailing(r *Reading, s *rollout.Status) float64 {
	if s.Phase != rollout.Held && s.Phase != rollout.Rolling {
		return 0
	}
	return since(r, s.Failing)
}

// haltedTime returns when a rollout halted, in whole seconds as {changed} in TENDER_ROLLOUT_QUERY is; 0 if it is not halted.
func haltedTime(_ *Reading, s *rollout.Status) float64 {
	if s.Halted == nil {
		return 0
	}
	return float64(s.Halted.At.Unix())
}

// withheld reads of how many names the clients of each view are shown another state than the origin's, by why.
func withheld(r *Reading, put put) {
	reasons, waits := []string{inFreeze}, make(map[string]string)
	for _, s := range r.Rollouts {
		reasons = []string{inFreeze, inRollout, inHalted}
		if waits[s.Origin] = inRollout; s.Phase == rollout.Halted {
			waits[s.Origin] = inHalted
		}
	}
	sums := make(map[[3]string]int)
	for i := range r.Status.Views {
		v := &r.Status.Views[i]
		why, ok := waits[v.Origin]
		if !ok || !v.FrozenAt.IsZero() {
			why = inFreeze
		}
		for _, reason := range reasons {
			n := 0
			if reason == why {
				n = v.Withheld
			}
			sums[[3]string{r.viewLabel(v), v.Origin, reason}] += n
		}
	}
	for labels, n := range sums {
		put(float64(n), labels[:]...)
	}
}

// Why a name is withheld.
const (
	inFreeze  = "frozen"
	inRollout = "rollout"
	inHalted  = "halted"
)
