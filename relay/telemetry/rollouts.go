package telemetry

import (
	"strconv"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
)

// rollouts reads a value per rollout.
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

// since returns the seconds from a time to the reading, or 0 for the zero time.
func since(r *Reading, at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return max(0, r.At.Sub(at).Seconds())
}

// rolloutStates reads the state of each rollout.
func rolloutStates(r *Reading, put put) {
	for _, s := range r.Rollouts {
		for _, phase := range rollout.Phases {
			put(boolValue(s.Phase == phase), s.Origin, phase.String())
		}
	}
}

// cohortClients reads the number of clients per cohort.
func cohortClients(r *Reading, put put) {
	for _, s := range r.Rollouts {
		for i := range s.Cohorts {
			put(float64(s.Cohorts[i].Clients), s.Origin, cohortLabel(s, i))
		}
	}
}

// cohortAnswers reads the numbers of clients per stage that accepted, rejected or did not answer the edition.
func cohortAnswers(r *Reading, put put) {
	for _, s := range r.Rollouts {
		for i, c := range s.Cohorts[:len(s.Cohorts)-1] {
			put(float64(c.Accepted), s.Origin, cohortLabel(s, i), "accepted")
			put(float64(c.Rejected), s.Origin, cohortLabel(s, i), "rejected")
			put(float64(c.Subscribed-c.Accepted-c.Rejected), s.Origin, cohortLabel(s, i), "unanswered")
		}
	}
}

// rolloutAwaits reads the condition that each rollout waits for.
func rolloutAwaits(r *Reading, put put) {
	for _, s := range r.Rollouts {
		for _, await := range rollout.Awaits {
			put(boolValue(s.Await == await), s.Origin, string(await))
		}
	}
}

// rolloutOutcomes reads the number of editions by outcome.
func rolloutOutcomes(r *Reading, put put) {
	for _, s := range r.Rollouts {
		put(float64(s.Outcomes.Promoted), s.Origin, "promoted")
		put(float64(s.Outcomes.Halted), s.Origin, "halted")
		put(float64(s.Outcomes.Reverted), s.Origin, "reverted")
		put(float64(s.Outcomes.Superseded), s.Origin, "superseded")
		put(float64(s.Outcomes.Undone), s.Origin, "undone")
	}
}

// checkFailing returns the seconds since the check of an open edition last returned a result; 0 if it returns results.
func checkFailing(r *Reading, s *rollout.Status) float64 {
	if s.Phase != rollout.Held && s.Phase != rollout.Rolling {
		return 0
	}
	return since(r, s.Failing)
}

// haltedTime returns when a rollout halted, in whole Unix seconds; 0 if it is not halted.
func haltedTime(_ *Reading, s *rollout.Status) float64 {
	if s.Halted == nil {
		return 0
	}
	return float64(s.Halted.At.Unix())
}

// pendingChanges reads the numbers of pending changes. All reasons that an origin can have are put, so that alerts end.
func pendingChanges(r *Reading, put put) {
	for _, o := range r.Origins {
		for _, reason := range admin.PendingReasons {
			put(float64(o.Status.Pending[reason]), o.Status.Name, reason)
		}
	}
}
