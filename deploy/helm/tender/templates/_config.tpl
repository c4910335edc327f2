{{/*
The variables that values other than config set, as YAML: name to value, all text. What is
left out here has the default of Tender.
*/}}
{{- define "tender.typed" -}}
{{- $v := .Values -}}
{{- $env := dict
  "TENDER_ORIGIN" (join "," $v.origin.addresses)
  "TENDER_ORIGIN_PROTOCOL" $v.origin.protocol
  "TENDER_ORIGIN_TLS" $v.origin.tls.mode
  "TENDER_ORIGIN_TLS_SERVER_NAME" $v.origin.tls.serverName
  "TENDER_LISTEN" (printf ":%d" (int $v.ports.xds))
  "TENDER_NODE_ID" $v.node.id
  "TENDER_NODE_CLUSTER" $v.node.cluster
  "TENDER_NODE_LOCALITY" $v.node.locality
  "TENDER_NODE_GROUP_BY" (join "," $v.node.groupBy)
  "TENDER_DRAIN" (printf "%ds" (int $v.drainSeconds))
  "TENDER_CONNECTION_AGE" $v.connectionAge
  "TENDER_LOG_LEVEL" $v.log.level
  "TENDER_LOG_FORMAT" $v.log.format -}}
{{- with $v.node.metadata }}{{ $_ := set $env "TENDER_NODE_METADATA" (toJson .) }}{{ end -}}
{{- with $v.ports.tls }}{{ $_ := set $env "TENDER_TLS_LISTEN" (printf ":%d" (int .)) }}{{ end -}}
{{- with $v.ports.rest }}{{ $_ := set $env "TENDER_REST_LISTEN" (printf ":%d" (int .)) }}{{ end -}}
{{- with $v.ports.probe }}{{ $_ := set $env "TENDER_PROBE_LISTEN" (printf ":%d" (int .)) }}{{ end -}}
{{- with $v.ports.admin }}{{ $_ := set $env "TENDER_ADMIN_LISTEN" (printf "127.0.0.1:18080,:%d" (int .)) }}{{ end -}}
{{- if $v.peers.enabled -}}
{{- $_ := set $env "TENDER_PEERS" (printf "dns:///%s-headless.%s.svc:%d" (include "tender.fullname" .) .Release.Namespace (int $v.ports.admin)) -}}
{{- $_ := set $env "TENDER_PEERS_TLS_SERVER_NAME" $v.peers.serverName -}}
{{- end -}}
{{- if $v.snapshots.enabled -}}
{{- $_ := set $env "TENDER_SNAPSHOT_DIR" "/var/lib/tender/snapshots" -}}
{{- $_ := set $env "TENDER_MAX_SNAPSHOT_AGE" $v.snapshots.maxAge -}}
{{- if $v.snapshots.sensitive }}{{ $_ := set $env "TENDER_SNAPSHOT_SENSITIVE" "on" }}{{ end -}}
{{- end -}}
{{- with $v.rollout -}}
{{- if .stages -}}
{{- $_ := set $env "TENDER_ROLLOUT" .stages -}}
{{- $_ := set $env "TENDER_DELTA_VERSIONS" "content" -}}
{{- end -}}
{{- $_ := set $env "TENDER_ROLLOUT_TYPES" (join "," .types) -}}
{{- if .rejections }}{{ $_ := set $env "TENDER_ROLLOUT_REJECTIONS" (int .rejections) }}{{ end -}}
{{- $_ := set $env "TENDER_ROLLOUT_CHECK" .check.url -}}
{{- end -}}
{{- range $name, $path := include "tender.paths" . | fromYaml }}{{ $_ := set $env $name $path }}{{ end -}}
{{- range $name, $value := $env -}}
{{- if ne (toString $value) "" }}
{{ $name }}: {{ toString $value | quote }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Of the variables that name files in volumes of the chart, name to path. */}}
{{- define "tender.paths" -}}
{{- $v := .Values -}}
{{- if include "tender.serverSecret" . }}
TENDER_TLS_CERT: /etc/tender/tls/tls.crt
TENDER_TLS_KEY: /etc/tender/tls/tls.key
{{- end }}
{{- if or $v.tls.clientCA.secretName $v.tls.clientCA.configMapName }}
TENDER_TLS_CLIENT_CA: /etc/tender/client-ca/{{ $v.tls.clientCA.key }}
{{- end }}
{{- if or $v.authz.secretName (include "tender.authzConfigMap" .) }}
TENDER_AUTHZ: /etc/tender/authz/{{ ternary "authz.yaml" $v.authz.key (not (empty $v.authz.rules)) }}
{{- end }}
{{- if include "tender.peersSecret" . }}
TENDER_PEERS_TLS_CERT: /etc/tender/peers-tls/tls.crt
TENDER_PEERS_TLS_KEY: /etc/tender/peers-tls/tls.key
{{- end }}
{{- if and $v.peers.enabled (or $v.peers.ca.secretName $v.peers.ca.configMapName) }}
TENDER_PEERS_TLS_CA: /etc/tender/peers-ca/{{ $v.peers.ca.key }}
{{- end }}
{{- if or $v.origin.tls.ca.secretName $v.origin.tls.ca.configMapName }}
TENDER_ORIGIN_TLS_CA: /etc/tender/origin-ca/{{ $v.origin.tls.ca.key }}
{{- end }}
{{- if include "tender.clientSecret" . }}
TENDER_ORIGIN_TLS_CERT: /etc/tender/origin-tls/tls.crt
TENDER_ORIGIN_TLS_KEY: /etc/tender/origin-tls/tls.key
{{- end }}
{{- if $v.origin.token.secretName }}
TENDER_ORIGIN_TOKEN_FILE: /etc/tender/origin-token/{{ $v.origin.token.key }}
{{- else if $v.origin.token.audience }}
TENDER_ORIGIN_TOKEN_FILE: /etc/tender/origin-token/token
{{- end }}
{{- end }}

{{/* A value of config as text: YAML makes numbers of digits, and booleans of on and off. */}}
{{- define "tender.text" -}}
{{- if kindIs "bool" . -}}
{{- ternary "on" "off" . -}}
{{- else if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- printf "%.0f" . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end }}

{{/* The environment of the relay, without duplicates. */}}
{{- define "tender.env" -}}
{{- $env := include "tender.typed" . | fromYaml -}}
{{- range $name, $value := .Values.config -}}
{{- if hasSuffix "_HEADERS" $name -}}
{{- fail (printf "config.%s: headers may be secrets, and everyone with permission to read the pod could read them; set it by extraEnv, from a Secret" $name) -}}
{{- end -}}
{{- if hasKey $env $name -}}
{{- fail (printf "config.%s: another value of the chart sets it to %q; set that value instead (the table in README.md of the chart has its name)" $name (get $env $name)) -}}
{{- end -}}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $env $name (include "tender.text" $value) }}{{ end -}}
{{- end -}}
{{- if contains "@" (get $env "TENDER_ROLLOUT_CHECK" | toString) -}}
{{- fail "TENDER_ROLLOUT_CHECK (rollout.check.url): it has a user, and everyone with permission to read the pod could read the password; set it by extraEnv, from a Secret" -}}
{{- end -}}
{{- $own := keys $env -}}
{{- with include "tender.memoryLimit" . }}{{ $_ := set $env "GOMEMLIMIT" . }}{{ end -}}
{{- range .Values.extraEnv -}}
{{- if has .name $own -}}
{{- fail (printf "extraEnv: another value of the chart sets %s; set that value instead" .name) -}}
{{- end }}
- {{ toYaml . | nindent 2 | trim }}
{{- $_ := unset $env .name -}}
{{- end -}}
{{- range $name, $value := $env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end -}}
{{- end }}

{{/* The memory limit of the container in bytes; empty if there is none. */}}
{{- define "tender.memory" -}}
{{- with .Values.resources.limits }}{{ with .memory }}{{ include "tender.bytes" . }}{{ end }}{{ end -}}
{{- end }}

{{/* GOMEMLIMIT in bytes; empty without a limit of memory. */}}
{{- define "tender.memoryLimit" -}}
{{- with include "tender.memory" . }}{{ div (mul (int64 .) (int64 $.Values.memoryLimitPercent)) 100 }}{{ end -}}
{{- end }}

{{/*
Refuses combinations of values that the relay cannot use. values.schema.json checks each value alone.
*/}}
{{- define "tender.check" -}}
{{- $v := .Values -}}
{{- if not $v.origin.addresses -}}
{{- fail "origin.addresses: it is required; set it to the addresses of your control plane, as in --set 'origin.addresses={istiod.istio-system.svc:15010}'" -}}
{{- end -}}
{{- range $v.origin.addresses -}}
{{- if not (regexMatch "^(unix:(//)?/[^, ]+|file:///[^, ]+|(dns:///)?[^/, ]+:[0-9]{1,5})$" .) -}}
{{- fail (printf "origin.addresses: %q is not an address; allowed: host:port, dns:///host:port, unix:///path or file:///dir" .) -}}
{{- end -}}
{{- end -}}
{{- if lt (int $v.terminationGracePeriodSeconds) (add $v.drainSeconds 5 | int) -}}
{{- fail (printf "terminationGracePeriodSeconds: %d is too short for drainSeconds %d; allowed: at least %d" (int $v.terminationGracePeriodSeconds) (int $v.drainSeconds) (add $v.drainSeconds 5)) -}}
{{- end -}}
{{- if and $v.snapshots.claim.enabled (ne $v.kind "StatefulSet") -}}
{{- fail (printf "snapshots.claim.enabled: the pods of a %s would share one claim, and each relay needs its own; set it to false, or kind to StatefulSet" $v.kind) -}}
{{- end -}}
{{- if and $v.snapshots.claim.enabled (not $v.snapshots.enabled) -}}
{{- fail "snapshots.claim.enabled: snapshots.enabled is false, so nothing would use the claim; set it to false" -}}
{{- end -}}
{{- if and $v.rollout.stages (not $v.snapshots.claim.enabled) -}}
{{- fail "rollout.stages: a new pod would have no last good configuration, and would serve a change to all its clients at once; set kind to StatefulSet, and snapshots.claim.enabled to true" -}}
{{- end -}}
{{- include "tender.checkPorts" . -}}
{{- include "tender.checkFiles" . -}}
{{- include "tender.checkPeers" . -}}
{{- include "tender.checkScale" . -}}
{{- end }}

{{- define "tender.checkPorts" -}}
{{- $seen := dict "18080" "the admin address on loopback" -}}
{{- range include "tender.ports" . | fromYamlArray -}}
{{- with get $seen (toString .port) -}}
{{- fail (printf "ports: two ports are equal; the other one is %s" .) -}}
{{- end -}}
{{- $_ := set $seen (toString .port) (printf "ports.%s" .name) -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.ports.probe) -}}
{{- fail "serviceMonitor.enabled: Prometheus cannot scrape the relays, because ports.probe is 0; set it" -}}
{{- end -}}
{{- end }}

{{- define "tender.checkFiles" -}}
{{- $v := .Values -}}
{{- $given := .Values.config -}}
{{- $cert := or (include "tender.serverSecret" .) $given.TENDER_TLS_CERT -}}
{{- $ca := or $v.tls.clientCA.secretName $v.tls.clientCA.configMapName $given.TENDER_TLS_CLIENT_CA -}}
{{- $rules := or $v.authz.secretName (include "tender.authzConfigMap" .) $given.TENDER_AUTHZ -}}
{{- range $what, $names := dict
  "tls.clientCA" (list $v.tls.clientCA.secretName $v.tls.clientCA.configMapName)
  "origin.tls.ca" (list $v.origin.tls.ca.secretName $v.origin.tls.ca.configMapName)
  "authz" (list $v.authz.secretName $v.authz.configMapName (ternary "" "rules" (empty $v.authz.rules)))
  "origin.token" (list $v.origin.token.secretName $v.origin.token.audience)
  "tls.secretName and certManager.server" (list $v.tls.secretName (ternary "certManager" "" $v.certManager.server.enabled))
  "origin.tls.secretName and certManager.client" (list $v.origin.tls.secretName (ternary "certManager" "" $v.certManager.client.enabled))
  "peers.ca" (list $v.peers.ca.secretName $v.peers.ca.configMapName)
  "peers.secretName and certManager.peers" (list $v.peers.secretName (ternary "certManager" "" $v.certManager.peers.enabled)) -}}
{{- if gt (len (compact $names)) 1 -}}
{{- fail (printf "%s: more than one is set; set only one" $what) -}}
{{- end -}}
{{- end -}}
{{- if and (or $v.certManager.server.enabled $v.certManager.client.enabled $v.certManager.peers.enabled) (not $v.certManager.issuer.name) -}}
{{- fail "certManager.issuer.name: it is required for certificates of cert-manager; set it to the name of an issuer" -}}
{{- end -}}
{{- if and $v.ports.tls (not $cert) -}}
{{- fail "ports.tls: there is no certificate for it; set tls.secretName or certManager.server.enabled" -}}
{{- end -}}
{{- if and $ca (not $cert) -}}
{{- fail "tls.clientCA: mTLS requires a certificate of the relay; set tls.secretName or certManager.server.enabled" -}}
{{- end -}}
{{- if and $rules (not $ca) -}}
{{- fail "authz: rules require client certificates; set tls.clientCA" -}}
{{- end -}}
{{- if and $v.ports.admin (not (and $ca $rules)) -}}
{{- fail "ports.admin: operators are authenticated by mTLS and authorized by rules; set tls.clientCA and authz" -}}
{{- end -}}
{{- end }}

{{- define "tender.checkPeers" -}}
{{- $v := .Values -}}
{{- if $v.peers.enabled -}}
{{- if not $v.ports.admin -}}
{{- fail "peers.enabled: relays connect to ports.admin of each other, which is 0; set ports.admin, tls.clientCA and authz" -}}
{{- end -}}
{{- if not (or (include "tender.peersSecret" .) $v.config.TENDER_PEERS_TLS_CERT) -}}
{{- fail "peers.enabled: there is no certificate for the other relays; set certManager.peers.enabled or peers.secretName" -}}
{{- end -}}
{{- if and $v.authz.rules (not $v.authz.rules.peers) -}}
{{- fail "authz.rules.peers: with peers.enabled, relays refuse each other unless this list has the identity of their certificate" -}}
{{- end -}}
{{- else if $v.certManager.peers.enabled -}}
{{- fail "certManager.peers: peers.enabled is false, so nothing would use the certificate; set peers.enabled" -}}
{{- end -}}
{{- end }}

{{- define "tender.checkScale" -}}
{{- with .Values.autoscaling -}}
{{- if and .enabled (not .streamsPerPod) (not .cpuUtilization) -}}
{{- fail "autoscaling.enabled: there is no metric; set autoscaling.streamsPerPod or autoscaling.cpuUtilization" -}}
{{- end -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- fail (printf "autoscaling.minReplicas: %d is more than autoscaling.maxReplicas, %d" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- if and .enabled .cpuUtilization (not (dig "requests" "cpu" "" $.Values.resources)) -}}
{{- fail "autoscaling.cpuUtilization: it is a percentage of resources.requests.cpu, which is not set" -}}
{{- end -}}
{{- end -}}
{{- end }}
