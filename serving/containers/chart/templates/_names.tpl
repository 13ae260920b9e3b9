{{- define "pilotlight.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "pilotlight.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "pilotlight.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "pilotlight.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "pilotlight.selector" -}}
app.kubernetes.io/name: {{ include "pilotlight.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pilotlight.labels" -}}
{{ include "pilotlight.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "pilotlight.image" -}}
{{- $repository := required "image.repository is missing: the image that `docker build -f serving/containers/Dockerfile.server` has made, in a registry that the cluster reaches (--set image.repository=REGISTRY/pilotlight-server)" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "pilotlight.databaseSecret" -}}
{{ required "database.existingSecret is missing: the name of a Secret with the address of a PostgreSQL database (kubectl create secret generic pilotlight-database --from-literal=url=postgresql://USER:PASSWORD@HOST/DATABASE, then --set database.existingSecret=pilotlight-database)" .Values.database.existingSecret }}
{{- end }}

{{- /* Until then a server that is asked to stop has ended by itself. */ -}}
{{- define "pilotlight.graceSeconds" -}}
{{ ceil (addf .Values.stopDelay .Values.requestTimeout .Values.stopTimeout 5) | int }}
{{- end }}

{{- /* Helm has all numbers as floats, and would write a long one as 4.294967296e+09. */ -}}
{{- define "pilotlight.setting" -}}
{{- if kindIs "float64" . -}}
{{ if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else -}}
{{ . }}
{{- end }}
{{- end }}

{{- /* Nothing where gRPC is switched off. */ -}}
{{- define "pilotlight.grpcPort" -}}
{{- $port := include "pilotlight.setting" (get .Values.settings "grpc_port") -}}
{{- if not (has $port (list "" "off" "false")) }}{{ $port }}{{ end -}}
{{- end }}

{{- /* The variables of a container have to differ, or server-side apply refuses the pod without saying where one is from. */ -}}
{{- define "pilotlight.refuseSetting" -}}
{{- $instead := dict
  "host" "" "port" "" "state_dir" ""
  "state" "database.existingSecret"
  "stop_delay" "stopDelay" "request_timeout" "requestTimeout" "stop_timeout" "stopTimeout"
  "peer_host" "peers.existingSecret" "peer_ca" "peers.existingSecret"
  "peer_cert" "peers.existingSecret" "peer_key" "peers.existingSecret"
  "peer_port" "peers.port"
  "scaled_deployment" "autoscaling.mode" "kubernetes_credentials" "autoscaling.mode"
  "min_servers" "autoscaling.minReplicas" "max_servers" "autoscaling.maxReplicas"
  "server_target_load" "autoscaling.targetLoad" "server_scale_down_delay" "autoscaling.scaleDownDelay"
-}}
{{- if hasKey $instead . -}}
{{- $advice := "leave it out, a pod has no other" -}}
{{- with get $instead . }}{{ $advice = printf "set the value %s instead" . }}{{ end -}}
{{- fail (printf "settings.%s is the chart's own: %s" . $advice) -}}
{{- end -}}
{{- end }}

{{- /* As a text: YAML reads an off without quotes as false. */ -}}
{{- define "pilotlight.isAutoscaled" -}}
{{- if has (toString .Values.autoscaling.mode) (list "hpa" "leader") }}true{{ end -}}
{{- end }}

{{- define "pilotlight.isScaledByLeader" -}}
{{- if eq (toString .Values.autoscaling.mode) "leader" -}}
{{- if not .Values.peers.existingSecret -}}
{{- fail "autoscaling.mode leader needs peers.existingSecret: without it servers do not know each other's load" -}}
{{- end -}}
{{- if gt .Values.autoscaling.minReplicas .Values.autoscaling.maxReplicas -}}
{{- fail "autoscaling.minReplicas must be at most autoscaling.maxReplicas" -}}
{{- end -}}
true
{{- end -}}
{{- end }}

{{- /* Left out, the number would fall to one whenever autoscaling is switched on. */ -}}
{{- define "pilotlight.replicas" -}}
{{- $present := lookup "apps/v1" "Deployment" .Release.Namespace (include "pilotlight.fullname" .) -}}
{{- if and $present (include "pilotlight.isAutoscaled" .) -}}
{{ $present.spec.replicas }}
{{- else -}}
{{ .Values.replicas }}
{{- end -}}
{{- end }}
