# A worker, or any other command of chancy: docker run IMAGE job --help

FROM python:3.12-slim AS build
WORKDIR /source
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir build
COPY . .
RUN /opt/build/bin/python -m build --wheel --outdir /wheels
RUN python -m venv /opt/chancy \
    && /opt/chancy/bin/pip install --no-cache-dir -c constraints.txt "$(echo /wheels/*.whl)[dashboard,prometheus,redis]"

FROM python:3.12-slim
RUN useradd --system --uid 10001 --create-home chancy
COPY --from=build /opt/chancy /opt/chancy
ENV PATH="/opt/chancy/bin:${PATH}" \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# By number, so that Kubernetes can see that it is not root.
USER 10001
WORKDIR /srv
STOPSIGNAL SIGTERM
# The exec form: chancy itself gets the signals, no shell in between.
ENTRYPOINT ["chancy"]
CMD ["worker"]
