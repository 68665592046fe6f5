"""Three brokers of one system on this machine, for topics of three replicas, two of which must be in sync.

Kafka: three KRaft nodes, each broker and controller, with 512 MB of heap each; sessions of brokers, retries
and everything else are its defaults. Its controller learns that a process was killed when the broker's
session ends (9 s). Folkmoot: three brokers and one ZooKeeper, at their defaults; each broker has its
guardian, which can be killed with it: then the session (6 s) decides, too.
"""

import os
import signal
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.base import STOP_TIMEOUT, Server, Unavailable, disk_usage
from benchmarks.peers.folkmoot import FolkmootServer
from benchmarks.peers.kafka import (
    CLUSTER_ID,
    START_TIMEOUT,
    KafkaServer,
    answers,
    java_command,
)
from folkmoot.console.running.children import ChildProcess, free_port
from folkmoot.coordination import brokers, partition_states, topics
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.connector import connect
from folkmoot.coordination.partition_states import TopicIdPartition
from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.session import Session

BROKERS: Final = 3
HEAP: Final = "512m"
LOOK_EVERY: Final = 0.02
WHOLE_TIMEOUT: Final = 400.0
"""10,000 partitions of three replicas on two cores take minutes."""
NOBODY: Final = -1

_PROPERTIES: Final = """\
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


class Cluster(Server):
    """Brokers 1 to 3. `kill` and `leave` return at once, with the moment (CLOCK_MONOTONIC)."""

    @abstractmethod
    def create(self, topic: str, partitions: int, *, fsync: bool = False) -> None:
        """Three replicas, two in sync at least; returns when all are in sync."""

    @abstractmethod
    def leaders(self, topic: str) -> Sequence[int]:
        """Who leads each partition, once all replicas of all of them are in sync."""

    @abstractmethod
    def kill_broker(self, number: int, *, guardian: bool = False) -> float:
        """SIGKILL, before it to its guardian if that is asked for. → when."""

    @abstractmethod
    def leave(self, number: int) -> float:
        """Tell a broker to stop (SIGTERM). → when."""

    @abstractmethod
    def restart(self, number: int) -> None:
        """Returns when a broker that was killed or told to stop serves again, or soon will."""

    def create_topic(self, topic: str, partitions: int) -> None:
        self.create(topic, partitions)

    def kill(self) -> None:
        self.kill_broker(1)


class FolkmootCluster(FolkmootServer, Cluster):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, brokers=BROKERS)
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        if self._session is None:
            self._session = connect(self.address, session_timeout=30.0)
        return self._session

    def data_of(self, number: int) -> Path:
        return self.directory / f"broker-{number}"

    def processes(self) -> Mapping[str, int]:
        assert self.cluster.server is not None
        running = [each for each in self.cluster.brokers if each.is_running]
        found = {f"broker {each.broker_id}": each.pid for each in running}
        return {**found, "ZooKeeper": self.cluster.server.pid}

    def stop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        super().stop()

    def create(
        self, topic: str, partitions: int, *, fsync: bool = False, on: Sequence[int] = ()
    ) -> None:
        """`on` these brokers, if it is given, on each of them a replica."""
        live = list(on) or list(execute(self.session, brokers.live()))
        config = {"durability": "fsync" if fsync else "page-cache"}
        execute(self.session, topics.create(topic, partitions, live, config, replicas=len(live)))
        self.leaders(topic)

    def leaders(self, topic: str) -> Sequence[int]:
        found = execute(self.session, topics.read(topic))
        assert found is not None
        partitions = [
            TopicIdPartition(found.topic_id, number) for number in range(len(found.partitions))
        ]
        deadline = time.monotonic() + WHOLE_TIMEOUT
        while time.monotonic() < deadline:
            began = time.monotonic()
            states = execute_all(self.session, map(partition_states.read, partitions))
            known = [each.state for each in states if each is not None and each.state.active]
            if sum(len(each.isr) for each in known) == sum(map(len, found.partitions)):
                return [each.leader for each in known]
            # A look at many partitions is work for ZooKeeper, and takes the processors from the brokers.
            time.sleep(max(LOOK_EVERY, 2 * (time.monotonic() - began)))
        raise Unavailable(f"the replicas of topic {topic} are not all in sync")

    def controller(self) -> int:
        found = execute(self.session, controllers.current())
        return NOBODY if found is None else found.broker

    def kill_broker(self, number: int, *, guardian: bool = False) -> float:
        broker = self.cluster.brokers[number - 1]
        if guardian:
            _kill_guardians(broker.pid)
        at = time.monotonic()
        broker.kill()
        return at

    def leave(self, number: int) -> float:
        at = time.monotonic()
        self.cluster.brokers[number - 1].child.terminate()
        return at

    def restart(self, number: int) -> None:
        broker = self.cluster.brokers[number - 1]
        if broker.is_running:
            broker.child.stop(STOP_TIMEOUT)
        broker.start()


def _kill_guardians(pid: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            if b"guardian_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(child, signal.SIGKILL)


class KafkaCluster(KafkaServer, Cluster):
    """Its first node's `directory` holds all of them."""

    def __init__(self, directory: Path, python: str, jars: Path) -> None:
        super().__init__(directory, python, jars)
        self._ports: list[int] = []
        self._nodes: list[ChildProcess] = []

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def processes(self) -> Mapping[str, int]:
        running = enumerate(self._nodes, start=1)
        return {f"broker {number}": each.pid for number, each in running if each.is_running}

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._ports = [free_port() for _ in range(BROKERS)]
        controllers = [free_port() for _ in range(BROKERS)]
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, start=1))
        for number, (port, controller) in enumerate(zip(self._ports, controllers, strict=True), 1):
            properties = self.directory / f"server-{number}.properties"
            data = self.directory / f"data-{number}"
            told = {"number": number, "port": port, "controller": controller, "voters": voters}
            properties.write_text(_PROPERTIES.format(data=data, **told))
            self._tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties))
            command = java_command(self.jars, HEAP, "kafka.Kafka", str(properties))
            log = self.directory / f"server-{number}.log"
            self._nodes.append(ChildProcess(f"Kafka {number}", command, log))
        for node in self._nodes:
            node.start()
        for number, node in enumerate(self._nodes):
            node.wait_until(partial(answers, self._ports[number]), START_TIMEOUT)

    def stop(self) -> None:
        for node in self._nodes:
            node.kill()

    def create(self, topic: str, partitions: int, *, fsync: bool = False) -> None:
        config = {"min.insync.replicas": "2", **({"flush.messages": "1"} if fsync else {})}
        self._ask("create", topic=topic, partitions=partitions, replicas=BROKERS, config=config)
        self.leaders(topic)

    def delete_topic(self, topic: str) -> None:
        self._ask("delete", topic=topic, data=str(self.directory / "data-1"))

    def stored_bytes(self, topic: str) -> int:
        return sum(disk_usage(each, ".log") for each in self.directory.glob(f"data-1/{topic}-*"))

    def leaders(self, topic: str) -> Sequence[int]:
        module = "benchmarks.clients.kafka_writer"
        with self.client("leaders", module=module, topic=topic, replicas=BROKERS) as program:
            found: list[int] = program.wait_done(WHOLE_TIMEOUT)["leaders"]
        return found

    def kill_broker(self, number: int, *, guardian: bool = False) -> float:
        at = time.monotonic()
        self._nodes[number - 1].kill()
        return at

    def leave(self, number: int) -> float:
        at = time.monotonic()
        self._nodes[number - 1].terminate()
        return at

    def restart(self, number: int) -> None:
        node = self._nodes[number - 1]
        if node.is_running:
            node.stop(STOP_TIMEOUT)
        node.start()
        node.wait_until(partial(answers, self._ports[number - 1]), START_TIMEOUT)

    def _ask(self, verb: str, **parameters: Any) -> None:
        with self.client(verb, **parameters) as program:
            program.wait_done(WHOLE_TIMEOUT)
