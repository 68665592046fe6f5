# A broker, and the rest of the command line: docker build --tag folkmoot-broker .
#
# BASE is any image with Python 3.11 or newer and its venv module. FOLKMOOT is what pip installs, this
# checkout or a wheel in it. Where nothing can be downloaded, PACKAGES= leaves out the compiler and
# PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR takes dependencies from a folder of the context: so does
# integration/images/build, for the tests.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
ARG PACKAGES="gcc libc6-dev"
RUN [ -z "$PACKAGES" ] || { apt-get update && apt-get install --yes --no-install-recommends $PACKAGES; }
WORKDIR /source
COPY . .
ARG FOLKMOOT=.
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
# The versions of dependencies that the tests ran with.
RUN sed -n 's/^\([A-Za-z0-9._-]*==[^\\]*\).*/\1/p' requirements-dev.txt > /pins.txt \
    && python3 -m venv /opt/folkmoot \
    && /opt/folkmoot/bin/pip install --quiet --no-cache-dir --constraint /pins.txt "${FOLKMOOT}[codecs,server]" \
    && /opt/folkmoot/bin/pip check \
    && /opt/folkmoot/bin/folkmoot --version

FROM ${BASE}
RUN useradd --system --uid 9190 --create-home --home-dir /var/lib/folkmoot folkmoot \
    && install --directory --owner folkmoot --group folkmoot /data
COPY --from=build /opt/folkmoot /opt/folkmoot
# The ready line is read by whoever waits for it, so it must not stay in a buffer.
ENV PATH=/opt/folkmoot/bin:$PATH PYTHONUNBUFFERED=1
USER folkmoot
WORKDIR /var/lib/folkmoot
VOLUME /data
EXPOSE 8081 9190 9191 9290
STOPSIGNAL SIGTERM
ENTRYPOINT ["folkmoot"]
CMD ["broker", "--help"]
