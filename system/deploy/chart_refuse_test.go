package deploy_test

import (
	"strings"
	"testing"
)

// TestChart_BadValuesAreRefused checks that the chart refuses values with which the relay would not start or would
// not do what the values suggest. The error must name the value and the problem.
func TestChart_BadValuesAreRefused(t *testing.T) {
	need(t)
	for set, want := range map[string][]string{
		"origin.addresses=null":          {"origin.addresses: it is required"},
		"origin.addresses={istiod}":      {`origin.addresses: "istiod" is not an address`, "allowed: host:port"},
		"origin.addresses={http://a:80}": {`origin.addresses: "http://a:80" is not an address`},

		"kind=DaemonSet":                          {"'/kind'", "'Deployment', 'StatefulSet'"},
		"replicas=two":                            {"'/replicas'", "want integer"},
		"replica=2":                               {"'replica' not allowed"},
		"ports.xds=70000":                         {"'/ports/xds'", "65,535"},
		"ports.http=80":                           {"'/ports'", "'http' not allowed"},
		"log.level=verbose":                       {"'/log/level'", "'debug'"},
		"connectionAge=forever":                   {"'/connectionAge'", "'forever'"},
		"image.digest=latest":                     {"'/image/digest'"},
		"origin.protocol=v2":                      {"'/origin/protocol'", "'sotw'"},
		"snapshots.sizeLimit=1GB":                 {"'/snapshots/sizeLimit'"},
		"podDisruptionBudget.maxUnavailable=half": {"'/podDisruptionBudget/maxUnavailable'"},
		"antiAffinity=always":                     {"'/antiAffinity'", "'soft'"},
		"authz.rules.versoin=1":                   {"'/authz/rules'", "'versoin' not allowed"},
		"resources.limits.memory=1GB":             {`resources.limits.memory: "1GB"`, "Gi"},

		"config.TENDER_DRIAN=1s":                   {"'/config'", "'TENDER_DRIAN' not allowed"},
		"config.tender_linger=1s":                  {"'/config'", "'tender_linger' not allowed"},
		"config.TENDER_DRAIN=50s":                  {"config.TENDER_DRAIN: another value of the chart sets it", "45s"},
		"config.TENDER_ORIGIN=a:1":                 {"config.TENDER_ORIGIN: another value of the chart sets it"},
		"config.TENDER_ORIGIN_HEADERS=a=b":         {"config.TENDER_ORIGIN_HEADERS", "set it by extraEnv, from a Secret"},
		"extraEnv[0].name=TENDER_LISTEN":           {"extraEnv: another value of the chart sets TENDER_LISTEN"},
		"extraEnv[0].name=A,extraEnv[0].form=text": {"'/extraEnv/0'", "'form' not allowed"},

		"snapshots.claim.enabled=false,rollout.stages=5% 10m":      {"rollout.stages: a new pod would have no last good configuration", "set kind to StatefulSet"},
		"rollout.check.url=prometheus:9090":                        {"'/rollout/check/url'"},
		"rollout.check.url=https://user:hunter2@gate":              {"TENDER_ROLLOUT_CHECK (rollout.check.url): it has a user", "by extraEnv, from a Secret"},
		"config.TENDER_ROLLOUT_CHECK=https://a@gate":               {"TENDER_ROLLOUT_CHECK (rollout.check.url): it has a user"},
		"rollout.stages=5% 1h,config.TENDER_DELTA_VERSIONS=origin": {"config.TENDER_DELTA_VERSIONS: another value of the chart sets it", "content"},
		"rollout.rejections=-1":                                    {"'/rollout/rejections'"},
		"drainSeconds=56":                                          {"terminationGracePeriodSeconds: 60 is too short for drainSeconds 56", "at least 61"},
		"kind=Deployment":                                          {"snapshots.claim.enabled", "set it to false, or kind to StatefulSet"},
		"ports.rest=18000":                                         {"ports: two ports are equal"},
		"ports.probe=18080":                                        {"ports: two ports are equal", "admin"},
		"ports.tls=18443":                                          {"ports.tls: there is no certificate"},
		"ports.admin=18444":                                        {"ports.admin", "set tls.clientCA and authz"},
		"tls.clientCA.secretName=ca":                               {"tls.clientCA: mTLS requires a certificate of the relay"},
		"authz.secretName=rules":                                   {"authz", "set tls.clientCA"},
		"authz.secretName=a,authz.configMapName=b":                 {"authz: more than one is set"},
		"origin.token.secretName=a,origin.token.audience=b":        {"origin.token: more than one is set"},
		"peers.enabled=true":                                       {"peers.enabled: relays connect to ports.admin of each other, which is 0"},
		"peers.enabled=true,ports.admin=18444,tls.secretName=a,tls.clientCA.secretName=b,authz.secretName=c":                       {"peers.enabled: there is no certificate for the other relays"},
		"peers.enabled=true,ports.admin=18444,tls.secretName=a,tls.clientCA.secretName=b,peers.secretName=c,authz.rules.version=1": {"authz.rules.peers: with peers.enabled"},
		"peers.secretName=a,certManager.peers.enabled=true":                                                                        {"peers.secretName and certManager.peers: more than one is set"},
		"certManager.peers.enabled=true,certManager.issuer.name=a":                                                                 {"certManager.peers: peers.enabled is false"},
		"authz.rules.operators.write={a}":                                                                                          {"'/authz/rules/operators'", "'write' not allowed"},
		"certManager.server.enabled=true":                                                                                          {"certManager.issuer.name: it is required"},
		"serviceMonitor.enabled=true,ports.probe=0":                                                                                {"serviceMonitor.enabled", "ports.probe is 0"},
		"autoscaling.enabled=true,autoscaling.minReplicas=20":                                                                      {"autoscaling.minReplicas: 20 is more than autoscaling.maxReplicas, 10"},
		"autoscaling.enabled=true,autoscaling.streamsPerPod=0,autoscaling.cpuUtilization=0":                                        {"autoscaling.enabled: there is no metric"},
		"autoscaling.enabled=true,resources.requests.cpu=null":                                                                     {"autoscaling.cpuUtilization", "resources.requests.cpu"},
		"snapshots.enabled=false":                                                                                                  {"snapshots.claim.enabled", "snapshots.enabled is false"},
		"certManager.server.enabled=true,certManager.issuer.name=x,tls.secretName=y":                                               {"certManager.server: more than one is set"},
	} {
		printed, err := template(t, "--set", "origin.addresses={a.example:1}", "--set", set)
		if err == nil {
			t.Errorf("the chart accepts %s, and renders\n%s", set, printed)
			continue
		}
		for _, text := range want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("the chart refuses %s with\n%v\nwhich lacks %q", set, err, text)
			}
		}
	}
}
