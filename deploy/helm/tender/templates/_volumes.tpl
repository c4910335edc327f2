{{/*
The volumes with files for the relay, as YAML: name to the source of the volume. Each is
mounted whole: with a subPath, no change would reach the pod.
*/}}
{{- define "tender.files" -}}
{{- $v := .Values -}}
{{- with include "tender.serverSecret" . }}
tls: {secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- with $v.tls.clientCA }}
{{- if .secretName }}
client-ca: {secret: {secretName: {{ .secretName }}, items: [{key: {{ .key }}, path: {{ .key }}}], defaultMode: 0440}}
{{- else if .configMapName }}
client-ca: {configMap: {name: {{ .configMapName }}}}
{{- end }}
{{- end }}
{{- if $v.authz.secretName }}
authz: {secret: {secretName: {{ $v.authz.secretName }}, defaultMode: 0440}}
{{- else if include "tender.authzConfigMap" . }}
authz: {configMap: {name: {{ include "tender.authzConfigMap" . }}}}
{{- end }}
{{- with include "tender.peersSecret" . }}
peers-tls: {secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- if $v.peers.enabled }}
{{- with $v.peers.ca }}
{{- if .secretName }}
peers-ca: {secret: {secretName: {{ .secretName }}, items: [{key: {{ .key }}, path: {{ .key }}}], defaultMode: 0440}}
{{- else if .configMapName }}
peers-ca: {configMap: {name: {{ .configMapName }}}}
{{- end }}
{{- end }}
{{- end }}
{{- with $v.origin.tls.ca }}
{{- if .secretName }}
origin-ca: {secret: {secretName: {{ .secretName }}, items: [{key: {{ .key }}, path: {{ .key }}}], defaultMode: 0440}}
{{- else if .configMapName }}
origin-ca: {configMap: {name: {{ .configMapName }}}}
{{- end }}
{{- end }}
{{- with include "tender.clientSecret" . }}
origin-tls: {secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- with $v.origin.token }}
{{- if .secretName }}
origin-token: {secret: {secretName: {{ .secretName }}, defaultMode: 0440}}
{{- else if .audience }}
origin-token: {projected: {defaultMode: 0440, sources: [{serviceAccountToken: {path: token, audience: {{ .audience | quote }}, expirationSeconds: {{ int .expirationSeconds }}}}]}}
{{- end }}
{{- end }}
{{- end }}

{{- define "tender.volumes" -}}
{{- range $name, $source := include "tender.files" . | fromYaml }}
- name: {{ $name }}
  {{- toYaml $source | nindent 2 }}
{{- end }}
{{- if and .Values.snapshots.enabled (not .Values.snapshots.claim.enabled) }}
- name: snapshots
  emptyDir: {sizeLimit: {{ .Values.snapshots.sizeLimit }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tender.mounts" -}}
{{- range $name, $_ := include "tender.files" . | fromYaml }}
- {name: {{ $name }}, mountPath: /etc/tender/{{ $name }}, readOnly: true}
{{- end }}
{{- if .Values.snapshots.enabled }}
- {name: snapshots, mountPath: /var/lib/tender}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
