{{/* The name of the chart in labels. */}}
{{- define "tender.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* The name of objects: 50 characters at most, since some have more after it. */}}
{{- define "tender.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "tender.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "tender.serviceAccountName" -}}
{{- default (ternary (include "tender.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end }}

{{/* What chooses the pods. It never changes: a Deployment's selector cannot. */}}
{{- define "tender.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tender.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tender.labels" -}}
{{- $labels := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_"))
  "app.kubernetes.io/name" (include "tender.name" .)
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service -}}
{{- toYaml (merge $labels .Values.commonLabels) -}}
{{- end }}

{{/* The beginning of an object: metadata of a given name. Takes a dict with root, and perhaps name, labels, annotations. */}}
{{- define "tender.metadata" -}}
metadata:
  name: {{ .name | default (include "tender.fullname" .root) }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "tender.labels" .root | nindent 4 }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "tender.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The Secret with what clients are shown; empty without TLS. */}}
{{- define "tender.serverSecret" -}}
{{- if .Values.certManager.server.enabled -}}
{{- printf "%s-tls" (include "tender.fullname" .) -}}
{{- else -}}
{{- .Values.tls.secretName -}}
{{- end -}}
{{- end }}

{{/* The Secret with what the control plane is shown; empty if nothing is. */}}
{{- define "tender.clientSecret" -}}
{{- if .Values.certManager.client.enabled -}}
{{- printf "%s-origin-tls" (include "tender.fullname" .) -}}
{{- else -}}
{{- .Values.origin.tls.secretName -}}
{{- end -}}
{{- end }}

{{/* The Secret with the certificate for the other relays; empty if there is none, or if they are not reached. */}}
{{- define "tender.peersSecret" -}}
{{- if .Values.peers.enabled -}}
{{- if .Values.certManager.peers.enabled -}}
{{- printf "%s-peers-tls" (include "tender.fullname" .) -}}
{{- else -}}
{{- .Values.peers.secretName | default (include "tender.clientSecret" .) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The ConfigMap with the rules; empty if they are in a Secret, or there are none. */}}
{{- define "tender.authzConfigMap" -}}
{{- if .Values.authz.rules -}}
{{- printf "%s-authz" (include "tender.fullname" .) -}}
{{- else -}}
{{- .Values.authz.configMapName -}}
{{- end -}}
{{- end }}

{{/* The ports that are on, as YAML: a list of name, port, and who is served there. */}}
{{- define "tender.ports" -}}
{{- range $name := list "xds" "tls" "rest" "probe" "admin" }}
{{- with index $.Values.ports $name }}
- {name: {{ $name }}, port: {{ int . }}, client: {{ has $name (list "xds" "tls" "rest") }}}
{{- end }}
{{- end }}
{{- end }}

{{/* The bytes of a quantity of Kubernetes, such as 512Mi or 1G, as a whole number. */}}
{{- define "tender.bytes" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $text := kindIs "float64" . | ternary (printf "%.0f" (float64 (toString . | float64))) (toString .) -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- if or (not $number) (not (hasKey $units $unit)) -}}
{{- fail (printf "resources.limits.memory: %q is not a number with k, M, G, T, Ki, Mi, Gi, Ti or no unit" $text) -}}
{{- end -}}
{{- mulf (float64 $number) (get $units $unit) | int64 -}}
{{- end }}

{{/* What is spoken on a port, for meshes and gateways. Takes the root and the port's name. */}}
{{- define "tender.appProtocol" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $tls := or (include "tender.serverSecret" $root) $root.Values.config.TENDER_TLS_CERT -}}
{{- if eq $name "probe" -}}
http
{{- else if or (has $name (list "tls" "admin")) (and $tls (eq $name "rest")) (and $tls (not $root.Values.ports.tls)) -}}
{{ ternary "https" "tls" (has $name (list "admin" "rest")) }}
{{- else -}}
{{ ternary "http" "grpc" (eq $name "rest") }}
{{- end -}}
{{- end }}

{{/* The ports of control planes that are reached by TCP, as YAML: a list. */}}
{{- define "tender.originPorts" -}}
{{- $found := list -}}
{{- $further := .Values.config.TENDER_ORIGINS | default "" -}}
{{- range concat .Values.origin.addresses (regexSplit "[;,]" $further -1) -}}
{{- $port := regexFind ":[0-9]+$" (trim .) | trimPrefix ":" -}}
{{- if $port }}{{ $found = append $found (int $port) }}{{ end -}}
{{- end -}}
{{- default (uniq $found) .Values.networkPolicy.egress.originPorts | toJson -}}
{{- end }}

{{/* What all certificates have. Takes the root and the values of one. */}}
{{- define "tender.certificate" -}}
{{- $issuer := (index . 0).Values.certManager.issuer -}}
{{- $of := index . 1 -}}
duration: {{ $of.duration }}
renewBefore: {{ $of.renewBefore }}
privateKey: {algorithm: ECDSA, size: 256, rotationPolicy: Always}
issuerRef: {name: {{ $issuer.name }}, kind: {{ $issuer.kind }}, group: {{ $issuer.group }}}
{{- end }}
