# Two images: `api` without torch, and `engine` for rank 0, the stages and the preparation of models.
#
#   docker build --target api -t echelon-api .
#   docker build --target engine -t echelon-engine .
#
# The engine has the build of torch that pip finds by default, on x86-64 the one for CUDA. For another, name its index:
#   docker build --target engine --build-arg TORCH_INDEX=URL -t echelon-engine .

FROM python:3.11-slim AS base
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1
# The mount point of the model volume, which takes its owner over.
RUN useradd --uid 10001 --create-home echelon && install --directory --owner=echelon --group=echelon /models
WORKDIR /home/echelon

FROM base AS wheel
COPY . /source
RUN pip wheel --no-deps --wheel-dir /wheels /source

FROM base AS api
COPY constraints.txt /tmp/
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --constraint /tmp/constraints.txt /wheels/*.whl
USER echelon
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "from http.client import HTTPConnection as C; c = C('127.0.0.1', 8000, timeout=4); \
c.request('GET', '/health'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["python", "-m"]
CMD ["server", "--settings", "/models/run/server.json"]

FROM base AS engine
ARG TORCH_INDEX=
COPY constraints.txt /tmp/
# A layer of its own: torch is large, and changes seldom.
RUN pip install --constraint /tmp/constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --constraint /tmp/constraints.txt "$(echo /wheels/*.whl)[engine]"
USER echelon
ENV ECHELON_CACHE=/models \
    HF_HOME=/models/hub \
    OMP_WAIT_POLICY=PASSIVE
ENTRYPOINT ["python", "-m"]
CMD ["speculation", "--config", "/models/run/engine.json"]
