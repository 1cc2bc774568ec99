{{- define "echelon.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "echelon.labels" -}}
app.kubernetes.io/name: echelon
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "echelon.selector" -}}
app.kubernetes.io/name: echelon
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "echelon.secret" -}}
{{- .Values.secret.existing | default (printf "%s-group" (include "echelon.name" .)) -}}
{{- end }}

{{/* What all pods of a group have in common; `role` is leader or worker. */}}
{{- define "echelon.pod" -}}
{{- $values := .root.Values -}}
metadata:
  labels:
    {{- include "echelon.selector" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  # A service called echelon would otherwise set ECHELON_PORT.
  enableServiceLinks: false
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 60
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    fsGroup: 10001
    seccompProfile:
      type: RuntimeDefault
  {{- with $values.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: echelon
      image: "{{ $values.image.repository }}:{{ $values.image.tag | default .root.Chart.AppVersion }}"
      imagePullPolicy: {{ $values.image.pullPolicy }}
      {{- if eq .role "leader" }}
      args:
        - server.cli
        - serve
        - --gather-at=tcp://$(LWS_LEADER_ADDRESS):5550
        - --stages=$(LWS_GROUP_SIZE)
        - --local-stages=1
        - --host=0.0.0.0
      ports:
        - name: http
          containerPort: 8000
      startupProbe:
        httpGet: {path: /live, port: http}
        periodSeconds: 10
        failureThreshold: {{ mul $values.startupMinutes 6 }}
      livenessProbe:
        httpGet: {path: /live, port: http}
        periodSeconds: 10
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /ready, port: http}
        periodSeconds: 5
      {{- else }}
      args:
        - workers.hosts
        - tcp://$(LWS_LEADER_ADDRESS):5550
        - --stage=$(LWS_WORKER_INDEX)
      {{- end }}
      env:
        {{- if eq .role "leader" }}
        - name: ECHELON_MODEL
          value: {{ $values.model | quote }}
        - name: ECHELON_API_KEY
          valueFrom:
            secretKeyRef: {name: {{ include "echelon.secret" .root }}, key: api-key, optional: true}
        {{- range $name, $value := $values.options }}
        - name: {{ $name }}
          value: {{ $value | quote }}
        {{- end }}
        {{- end }}
        - name: ECHELON_DEVICE
          value: {{ $values.device | quote }}
        - name: ECHELON_TOKEN
          valueFrom:
            secretKeyRef: {name: {{ include "echelon.secret" .root }}, key: token}
        - name: HF_TOKEN
          valueFrom:
            secretKeyRef: {name: {{ include "echelon.secret" .root }}, key: hf-token, optional: true}
      {{- with $values.resources }}
      resources: {{ toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      volumeMounts:
        - {name: models, mountPath: /models}
        - {name: tmp, mountPath: /tmp}
        - {name: shm, mountPath: /dev/shm}
  volumes:
    - name: models
      {{- if or $values.modelCache.existingClaim $values.modelCache.create }}
      persistentVolumeClaim:
        claimName: {{ $values.modelCache.existingClaim | default (printf "%s-models" (include "echelon.name" .root)) }}
      {{- else }}
      emptyDir: {}
      {{- end }}
    - name: tmp
      emptyDir: {}
    - name: shm
      emptyDir: {medium: Memory}
{{- end }}
