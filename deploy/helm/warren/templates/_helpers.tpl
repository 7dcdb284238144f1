{{- define "warren.namespace" -}}
{{- .Values.namespace.name | default .Release.Namespace -}}
{{- end -}}

{{- define "warren.selectorLabels" -}}
app: agent-sandbox-controller
{{- end -}}

{{- define "warren.labels" -}}
{{ include "warren.selectorLabels" . }}
app.kubernetes.io/name: warren
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* One flag for a key of `controller`, if the key is present: false and 0 are values. */ -}}
{{- define "warren.flag" -}}
{{- if hasKey .values .key }}
{{- $value := get .values .key }}
{{- if not (kindIs "invalid" $value) }}
- {{ printf "--%s=%v" (.key | kebabcase) (kindIs "float64" $value | ternary (printf "%v" $value) $value) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "warren.flagKeys" -}}
clusterDomain leaderElectionNamespace enableTracing enablePprof enablePprofDebug pprofBlockProfileRate pprofMutexProfileFraction kubeApiQps kubeApiBurst sandboxConcurrentWorkers sandboxClaimConcurrentWorkers sandboxWarmPoolConcurrentWorkers sandboxTemplateConcurrentWorkers sandboxWarmPoolMaxBatchSize sandboxWarmPoolReadinessGracePeriod sandboxWarmPoolUnschedulableRecheckInterval enableWarmPoolEviction
{{- end -}}
