# What changes seldom comes first: Docker keeps these two layers while the sources change.
FROM python:3.11-slim-bookworm AS packages
WORKDIR /src
COPY requirements/ requirements/
RUN python -m venv /opt/tidegate \
 && /opt/tidegate/bin/pip install --no-cache-dir --disable-pip-version-check \
      --require-hashes -r requirements/server.txt

# The same with what the load test needs.
FROM packages AS packages-load
RUN /opt/tidegate/bin/pip install --no-cache-dir --disable-pip-version-check \
      --require-hashes -r requirements/load.txt

FROM packages AS build
COPY . .
RUN /opt/tidegate/bin/pip wheel --disable-pip-version-check --no-deps --no-build-isolation -w /dist . \
 && /opt/tidegate/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps /dist/*.whl

FROM packages-load AS build-load
COPY --from=build /dist /dist
RUN /opt/tidegate/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps /dist/*.whl

FROM python:3.11-slim-bookworm AS base
RUN useradd --system --uid 10001 --create-home tidegate \
 && mkdir -p /release /state && chown tidegate /state
ENV PATH=/opt/tidegate/bin:$PATH PYTHONUNBUFFERED=1
USER tidegate
VOLUME ["/state"]
EXPOSE 8080

FROM base AS load
COPY --from=build-load /opt/tidegate /opt/tidegate
WORKDIR /load
COPY --from=build /src/loadtest loadtest/
EXPOSE 8089
ENTRYPOINT ["locust"]

FROM base AS server
COPY --from=build /opt/tidegate /opt/tidegate
HEALTHCHECK --interval=5s --timeout=3s --start-period=5s CMD ["python", "-c", \
  "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/-/live', timeout=2)"]
ENTRYPOINT ["tidegate"]
CMD ["serve", "/release", "--listen", "0.0.0.0:8080", "--state", "/state"]
