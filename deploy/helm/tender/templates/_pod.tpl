{{/* The pod of a relay, for the StatefulSet and the Deployment. */}}
{{- define "tender.pod" -}}
metadata:
  labels:
    {{- $version := dict "app.kubernetes.io/version" .Chart.AppVersion }}
    {{- merge (include "tender.selectorLabels" . | fromYaml) $version .Values.podLabels .Values.commonLabels | toYaml | nindent 4 }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "tender.serviceAccountName" . }}
  automountServiceAccountToken: false
  # Otherwise Kubernetes sets TENDER_… variables for a Service with the name tender.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int .Values.terminationGracePeriodSeconds }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  containers:
    - name: tender
      image: {{ include "tender.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve]
      env:
        {{- include "tender.env" . | trim | nindent 8 }}
      {{- with .Values.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        {{- range include "tender.ports" . | fromYamlArray }}
        - {name: {{ .name }}, containerPort: {{ .port }}, protocol: TCP}
        {{- end }}
      {{- if .Values.ports.probe }}
      startupProbe:
        httpGet: {path: /livez, port: probe}
        {{- toYaml .Values.probes.startup | nindent 8 }}
      livenessProbe:
        httpGet: {path: /livez, port: probe}
        {{- toYaml .Values.probes.liveness | nindent 8 }}
      readinessProbe:
        httpGet: {path: /readyz, port: probe}
        {{- toYaml .Values.probes.readiness | nindent 8 }}
      {{- end }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      {{- with include "tender.mounts" . }}
      volumeMounts:
        {{- . | trim | nindent 8 }}
      {{- end }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with include "tender.volumes" . }}
  volumes:
    {{- . | trim | nindent 4 }}
  {{- end }}
  {{- include "tender.placement" . | trim | nindent 2 }}
{{- end }}

{{/* Where the pod may run. */}}
{{- define "tender.placement" -}}
{{- $selector := include "tender.selectorLabels" . | fromYaml -}}
{{- $spread := list -}}
{{- range $key, $when := dict "topology.kubernetes.io/zone" .Values.spread.zone "kubernetes.io/hostname" .Values.spread.node -}}
{{- if ne $when "off" -}}
{{- $spread = append $spread (dict "maxSkew" 1 "topologyKey" $key "whenUnsatisfiable" $when "labelSelector" (dict "matchLabels" $selector)) -}}
{{- end -}}
{{- end -}}
{{- with concat $spread .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $selector) -}}
{{- if .Values.affinity }}
affinity:
  {{- toYaml .Values.affinity | nindent 2 }}
{{- else if eq .Values.antiAffinity "hard" }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      {{- list $term | toYaml | nindent 6 }}
{{- else if eq .Values.antiAffinity "soft" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      {{- list (dict "weight" 100 "podAffinityTerm" $term) | toYaml | nindent 6 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
