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
from pathlib import Path
from typing import Any, ClassVar, Final

from benchmarks import environment
from benchmarks.peers.base import OneProcess, Peer, Unavailable, disk_usage
from folkmoot.console.running.children import ChildProcess, free_port
from folkmoot.console.running.java import find_java
from folkmoot.protocol.errors import FolkmootError

HEAP: Final = "1g"
START_TIMEOUT: Final = 60.0
TOPIC_TIMEOUT: Final = 60.0
CLUSTER_ID: Final = "Zm9sa21vb3QtYmVuY2htYQ"

_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=1000
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


class KafkaServer(OneProcess):
    module = "benchmarks.clients.kafka"
    compiles_as_it_runs = True

    def __init__(self, directory: Path, python: str, jars: Path) -> None:
        super().__init__(directory, python)
        self.jars = jars
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        if not properties.exists():
            self.port = free_port()
            text = _PROPERTIES.format(port=self.port, controller=free_port(), data=self.data)
            properties.write_text(text)
            main = "kafka.tools.StorageTool"
            self._tool(main, "format", "-t", CLUSTER_ID, "-c", str(properties))
        command = java_command(self.jars, HEAP, "kafka.Kafka", str(properties))
        self._child = ChildProcess("Kafka", command, self.directory / "server.log")
        self._child.start()
        self._child.wait_until(lambda: answers(self.port), START_TIMEOUT)

    def create_topic(self, topic: str, partitions: int) -> None:
        self._ask("create", topic=topic, partitions=partitions)

    def delete_topic(self, topic: str) -> None:
        self._ask("delete", topic=topic)

    def stored_bytes(self, topic: str) -> int:
        return sum(disk_usage(each, ".log") for each in self.data.glob(f"{topic}-*"))

    def _ask(self, verb: str, **parameters: Any) -> None:
        """Let the Python client do it: Kafka's own tool would be another JVM, for two seconds."""
        parameters["data"] = str(self.data)
        with self.client(verb, **parameters) as program:
            program.wait_done(TOPIC_TIMEOUT)

    def _tool(self, main: str, *arguments: str) -> None:
        command = java_command(self.jars, "256m", main, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"{main} failed: {(done.stderr or done.stdout).strip()[-500:]}")


def answers(port: int) -> bool | None:
    """Whether somebody listens there; None: not yet."""
    try:
        with socket.create_connection(("127.0.0.1", port), 0.2):
            return True
    except OSError:
        return None


class KafkaPeer(Peer):
    name: ClassVar[str] = "kafka"
    title: ClassVar[str] = f"Apache Kafka {environment.KAFKA_VERSION}"

    def __init__(self) -> None:
        self.python = ""
        self.jars = Path()

    def prepare(self) -> None:
        try:
            find_java()
        except FolkmootError as error:
            raise Unavailable(str(error)) from error
        self.python = environment.peer_python()
        self.jars = environment.kafka_jars()

    def versions(self) -> Mapping[str, str]:
        return {
            "Apache Kafka": environment.KAFKA_VERSION,
            "Java": str(find_java().version),
            **environment.installed(self.python, ("confluent-kafka",)),
        }

    def server(self, directory: Path) -> KafkaServer:
        return KafkaServer(directory, self.python, self.jars)
