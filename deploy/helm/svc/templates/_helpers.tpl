{{- define "svc.labels" -}}
app.kubernetes.io/name: {{ .name }}
{{ include "svc.releaseLabels" .root }}
{{- end }}

{{- define "svc.releaseLabels" -}}
app.kubernetes.io/part-of: svc
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "svc.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- /* The part of a pod that all workloads have. */ -}}
{{- define "svc.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "svc.containerSecurityContext" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "svc.probes" -}}
startupProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{- define "svc.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The excluded addresses are the metadata services of clouds, which have the credentials of the node. */ -}}
{{- define "svc.anyAddress" -}}
- ipBlock:
    cidr: 0.0.0.0/0
    except: [169.254.169.254/32]
- ipBlock:
    cidr: "::/0"
    except: ["fd00:ec2::254/128", "fd20:ce::254/128"]
{{- end }}

{{- /* The bucket of the bundles, for the registry and for publishing through the gateway. */ -}}
{{- define "svc.bucketEnvironment" -}}
{{- with .Values.registry.s3 }}
{{- if and $.Values.registry.enabled .url }}
- name: SVC_BLOB_URL
  value: {{ .url | quote }}
- name: AWS_ACCESS_KEY_ID
  valueFrom:
    secretKeyRef: {name: {{ .secretName }}, key: access-key-id}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom:
    secretKeyRef: {name: {{ .secretName }}, key: secret-access-key}
{{- with .region }}
- name: AWS_REGION
  value: {{ . | quote }}
{{- end }}
{{- with .endpoint }}
- name: AWS_ENDPOINT_URL_S3
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "svc.dnsEgress" -}}
- to:
    - namespaceSelector:
        matchLabels: {kubernetes.io/metadata.name: kube-system}
    # NodeLocal DNSCache
    - ipBlock: {cidr: 169.254.20.10/32}
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end }}
