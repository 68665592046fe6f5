"""Three brokers of one system on this machine, for topics of three replicas, two of which must be in sync.

Kafka: three KRaft nodes, each broker and controller, with 512 MB of heap each; sessions of brokers, retries
and everything else are its defaults. Its controller learns that a process was killed when the broker's
session ends (9 s). Folkmoot: three brokers and one ZooKeeper, at their defaults; each broker has its
guardian, which can be killed with it: then the session (6 s) decides, too.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers.base import STOP_TIMEOUT, Unavailable
from benchmarks.peers.folkmoot import FolkmootServer
from benchmarks.peers.kafka import PROPERTIES, KafkaServer
from folkmoot.console.running.children import ChildProcess
from folkmoot.coordination import brokers, partition_states, topics
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.connector import connect
from folkmoot.coordination.partition_states import TopicIdPartition
from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.session import Session

BROKERS: Final = 3
POLL_INTERVAL: Final = 0.02
SYNC_TIMEOUT: Final = 400.0
"""10,000 partitions of three replicas on two cores take minutes."""


class FolkmootCluster(FolkmootServer):
    """Brokers 1 to 3."""

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
        """A replica on all brokers, or on those of `on`; returns when all replicas are in sync."""
        live = list(on) or list(execute(self.session, brokers.live()))
        config = {"durability": "fsync" if fsync else "page-cache", "delete_delay": "0"}
        execute(self.session, topics.create(topic, partitions, live, config, replicas=len(live)))
        self.leaders(topic)

    def leaders(self, topic: str) -> Sequence[int]:
        """The leader of each partition, once all replicas of all of them are in sync."""
        found = execute(self.session, topics.read(topic))
        assert found is not None
        partitions = [
            TopicIdPartition(found.topic_id, number) for number in range(len(found.partitions))
        ]
        deadline = time.monotonic() + SYNC_TIMEOUT
        while time.monotonic() < deadline:
            started_at = time.monotonic()
            states = execute_all(self.session, map(partition_states.read, partitions))
            active_states = [
                each.state for each in states if each is not None and each.state.active
            ]
            if sum(len(each.isr) for each in active_states) == sum(map(len, found.partitions)):
                return [each.leader for each in active_states]
            # A look at many partitions is work for ZooKeeper, and takes the processors from the brokers.
            time.sleep(max(POLL_INTERVAL, 2 * (time.monotonic() - started_at)))
        raise Unavailable(f"the replicas of topic {topic} are not all in sync")

    def controller(self) -> int:
        found = execute(self.session, controllers.current())
        if found is None:
            raise Unavailable("no broker is the controller")
        return found.broker

    def kill_broker(self, number: int, *, guardian: bool = False) -> None:
        """SIGKILL; `guardian`: to its guardian, too, which gets it first."""
        broker = self.cluster.brokers[number - 1]
        if guardian:
            _kill_guardians(broker.pid)
        broker.kill()

    def leave(self, number: int) -> None:
        """SIGTERM."""
        self.cluster.brokers[number - 1].terminate()

    def restart(self, number: int) -> None:
        """Returns when a broker that was killed or asked to stop serves again, or soon will."""
        broker = self.cluster.brokers[number - 1]
        ChildProcess.stop(broker, STOP_TIMEOUT)  # whatever its exit code
        broker.start()


def _kill_guardians(pid: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            if b"guardian_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(child, signal.SIGKILL)


class KafkaCluster(KafkaServer):
    """Brokers 1 to 3, with the same methods."""

    count = BROKERS
    heap = "512m"
    properties = PROPERTIES

    def processes(self) -> Mapping[str, int]:
        running = enumerate(self.nodes, start=1)
        return {f"broker {number}": each.pid for number, each in running if each.is_running}

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    def create(self, topic: str, partitions: int, *, fsync: bool = False) -> None:
        config = {"min.insync.replicas": "2", **({"flush.messages": "1"} if fsync else {})}
        parameters = {
            "topic": topic,
            "partitions": partitions,
            "replicas": BROKERS,
            "config": config,
        }
        self.request("create", timeout=SYNC_TIMEOUT, **parameters)
        self.leaders(topic)

    def leaders(self, topic: str) -> Sequence[int]:
        found = self.request("leaders", timeout=SYNC_TIMEOUT, topic=topic, replicas=BROKERS)
        numbers: list[int] = found["leaders"]
        return numbers

    def kill_broker(self, number: int, *, guardian: bool = False) -> None:
        self.nodes[number - 1].kill()

    def leave(self, number: int) -> None:
        self.nodes[number - 1].terminate()

    def restart(self, number: int) -> None:
        node = self.nodes[number - 1]
        if node.is_running:
            node.stop(STOP_TIMEOUT)
        node.start()
        self.wait_for(number - 1)


Cluster = FolkmootCluster | KafkaCluster
