"""Apache Kafka: one KRaft node with 1 GB of heap, its own JVM tools, and confluent-kafka from Python.

Settings, and why they are its best here: the collector and its limits are those of Kafka's own start
script; one node is broker and controller, so that nothing but it runs; topics have one replica and
its default of flushing (never, so the page cache, as with Folkmoot's default); groups form at once;
deleted topics give their space back after a second and not after a minute. All else is Kafka's
default; its 3 network and 8 I/O threads are more than two cores have use for.
"""

import socket
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from benchmarks import environment
from benchmarks.peers.base import (
    START_TIMEOUT,
    STOP_TIMEOUT,
    Server,
    Unavailable,
    disk_usage,
)
from folkmoot.console.running.children import ChildProcess, free_port
from folkmoot.console.running.java import find_java
from folkmoot.protocol.errors import FolkmootError

HEAP: Final = "1g"
CLUSTER_ID: Final = "Zm9sa21vb3QtYmVuY2htYQ"
PROPERTIES: Final = """\
process.roles=broker,controller
node.id={number}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters={voters}
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
log.segment.delete.delay.ms=1000
"""
_ALONE: Final = """\
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def java_command(jars: Path, heap: str, main: str, *arguments: str) -> list[str]:
    """A JVM as Kafka's own scripts start it."""
    return [
        str(find_java().executable),
        *(f"-Xmx{heap}", f"-Xms{heap}", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
        *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
        *("-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
        *("-cp", f"{jars}/*", main, *arguments),
    ]


class KafkaServer(Server):
    """One node; `clusters.py` has more of them."""

    system = "kafka"
    title = f"Apache Kafka {environment.KAFKA_VERSION}"
    compiles_as_it_runs = True
    count: ClassVar[int] = 1
    heap: ClassVar[str] = HEAP
    properties: ClassVar[str] = PROPERTIES + _ALONE

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.jars = environment.kafka_jars()
        self.nodes: list[ChildProcess] = []
        self._ports: list[int] = []

    @classmethod
    def prepare(cls) -> Mapping[str, str]:
        try:
            java = find_java()
        except FolkmootError as error:
            raise Unavailable(str(error)) from error
        packages = environment.installed_versions(environment.peer_python(), ["confluent-kafka"])
        environment.kafka_jars()
        return {"Apache Kafka": environment.KAFKA_VERSION, "Java": str(java.version), **packages}

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def data_of(self, number: int) -> Path:
        return self.directory / f"data-{number}"

    def processes(self) -> Mapping[str, int]:
        return {"broker": self.nodes[0].pid}

    def start(self) -> None:
        if not self.nodes:
            self._format()
        for node in self.nodes:
            node.start()
        for number in range(len(self.nodes)):
            self.wait_for(number)

    def wait_for(self, number: int) -> None:
        """`number` counts from 0."""
        self.nodes[number].wait_until(partial(_listens, self._ports[number]), START_TIMEOUT)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop(STOP_TIMEOUT)

    def create_topic(self, topic: str, partitions: int) -> None:
        self.request("create", topic=topic, partitions=partitions)

    def delete_topic(self, topic: str) -> None:
        self.request("delete", topic=topic, data=str(self.data_of(1)))

    def stored_bytes(self, topic: str) -> int:
        return sum(disk_usage(each, ".log") for each in self.data_of(1).glob(f"{topic}-*"))

    def _format(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._ports = [free_port() for _ in range(self.count)]
        controllers = [free_port() for _ in range(self.count)]
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, start=1))
        for number, (port, controller) in enumerate(zip(self._ports, controllers, strict=True), 1):
            file = self.directory / f"server-{number}.properties"
            text = self.properties.format(
                number=number,
                port=port,
                controller=controller,
                voters=voters,
                data=self.data_of(number),
            )
            file.write_text(text)
            storage = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file)]
            command = java_command(self.jars, "256m", *storage)
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise Unavailable(
                    f"{storage[0]}: {(result.stderr or result.stdout).strip()[-500:]}"
                )
            command = java_command(self.jars, self.heap, "kafka.Kafka", str(file))
            log = self.directory / f"server-{number}.log"
            self.nodes.append(ChildProcess(f"Kafka {number}", command, log))


def _listens(port: int) -> bool | None:
    """None: not yet."""
    try:
        with socket.create_connection(("127.0.0.1", port), 0.2):
            return True
    except OSError:
        return None
