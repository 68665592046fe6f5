"""Folkmoot itself: one broker as `folkmoot broker` runs it, and the ZooKeeper of `folkmoot dev`.

Everything is at its defaults (zstd, page cache) and with acks=1, but what a scenario says.
"""

import sys
import time
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Final

import folkmoot
from benchmarks.peers.base import Server, disk_usage
from folkmoot.brokers.storage.files.cluster_facts import topic_in
from folkmoot.console.running.java import find_java
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.session import Session

DELETE_TIMEOUT: Final = 30.0


class FolkmootServer(Server):
    system = "folkmoot"
    title = "Folkmoot"

    def __init__(self, directory: Path, brokers: int = 1) -> None:
        super().__init__(directory)
        self.cluster = EmbeddedCluster(directory, brokers=brokers)

    @classmethod
    def prepare(cls) -> Mapping[str, str]:
        """It is what runs this."""
        return {
            "Folkmoot": folkmoot.__version__,
            "pyzmq": version("pyzmq"),
            "ZooKeeper's Java": str(find_java().version),
        }

    @property
    def python(self) -> str:
        return sys.executable

    @property
    def address(self) -> str:
        return self.cluster.zookeeper

    @property
    def data(self) -> Path:
        return self.directory / "broker-1"

    def processes(self) -> Mapping[str, int]:
        assert self.cluster.server is not None
        return {"broker": self.cluster.brokers[0].pid, "ZooKeeper": self.cluster.server.pid}

    def start(self) -> None:
        if self.cluster.brokers and not self.cluster.brokers[0].is_running:
            self.cluster.brokers[0].start()
        else:
            self.cluster.start()

    def stop(self) -> None:
        self.cluster.stop()

    def connected(self) -> closing[Session]:
        """A session of its own with ZooKeeper, for a `with`."""
        return closing(connect(self.address, session_timeout=10.0))

    def create_topic(self, topic: str, partitions: int) -> None:
        with self.connected() as session:
            live = list(execute(session, brokers.live()))
            # What is measured next does not wait for the disk that this one used.
            execute(session, topics.create(topic, partitions, live, {"delete_delay": "0"}))

    def delete_topic(self, topic: str) -> None:
        with self.connected() as session:
            execute(session, topics.delete(topic))
        deadline = time.monotonic() + DELETE_TIMEOUT
        while self.stored_bytes(topic) and time.monotonic() < deadline:
            time.sleep(0.05)

    def stored_bytes(self, topic: str) -> int:
        found = (each for each in self.data.iterdir() if each.is_dir() and topic_in(each) == topic)
        return sum(disk_usage(each, ".log") for each in found)
