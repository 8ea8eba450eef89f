# The service and the nightly job in one image: the extras serve and sql, compiled ahead, not as root.
# docs/how-to/containers.md says how to use it. A constraints.txt of `make constraints`, made with this version of Python
# on this kind of machine, decides the versions; without one they are the newest.
FROM python:3.13-slim AS build

WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.tx[t] ./
COPY src src
RUN python -m venv /opt/mrfrec \
    && if [ -f constraints.txt ]; then /opt/mrfrec/bin/pip install --no-cache-dir --require-hashes -r constraints.txt; fi \
    && if [ -f constraints.txt ]; then nodeps=--no-deps; fi \
    && /opt/mrfrec/bin/pip install --no-cache-dir $nodeps ".[serve,sql]" \
    && /opt/mrfrec/bin/pip check
# Machine code is for the processor of the machine that builds. For another one, set NUMBA_CPU_NAME=generic here and below.
RUN /opt/mrfrec/bin/mrfrec doctor --compile float32


FROM python:3.13-slim

# The job writes the models, the service only reads them.
RUN groupadd --gid 10001 mrfrec \
    && useradd --uid 10001 --gid mrfrec --no-create-home --home-dir /models --shell /usr/sbin/nologin mrfrec \
    && useradd --uid 10002 --gid mrfrec --no-create-home --home-dir /models --shell /usr/sbin/nologin mrfrec-serve \
    && install --directory --owner=mrfrec --group=mrfrec --mode=0750 /models \
    && install --directory --owner=mrfrec-serve --group=mrfrec --mode=0700 /var/cache/mrfrec
COPY --from=build /opt/mrfrec /opt/mrfrec
ENV PATH=/opt/mrfrec/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /models
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=9)"]
ENTRYPOINT ["mrfrec"]
CMD ["serve", "/models/shop.mrf", "--host", "0.0.0.0", "--keys", "/run/secrets/service_keys"]
