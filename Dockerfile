# One image for every role: `docker run warmroute:local router`, `replica`, `load`, `plan`...
# Needs nothing of BuildKit, so any builder can make it.

FROM python:3.12.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/warmroute
WORKDIR /src
# The dependencies are a layer of their own, which a change of the code does not build again.
COPY pyproject.toml deploy/constraints.txt ./
RUN python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' > requirements.txt \
    && /opt/warmroute/bin/pip install --quiet --requirement requirements.txt --constraint constraints.txt
COPY . .
RUN /opt/warmroute/bin/pip install --quiet --no-deps .

FROM python:3.12.11-slim-bookworm
COPY --from=build /opt/warmroute /opt/warmroute
# Output must not wait in a buffer that nobody reads; nothing is ever written to the file system.
ENV PATH=/opt/warmroute/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can see that it is not root; it owns no file and needs no home.
USER 10001:10001
# Gateway: clients, admin. Replica: clients and metrics.
EXPOSE 8080 8081 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["warmroute"]
CMD ["--help"]
