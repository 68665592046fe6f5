"""NATS JetStream: Debian's nats-server, streams in files.

Settings, and why: its default of flushing (every two minutes, so the page cache), file storage and one
replica, like the others; one stream holds all, its subjects carry the keys.
"""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from benchmarks import environment
from benchmarks.peers.base import OneProcess, Peer, disk_usage
from folkmoot.console.running.children import ChildProcess, free_port

START_TIMEOUT: Final = 30.0
TOPIC_TIMEOUT: Final = 30.0


class NatsServer(OneProcess):
    module = "benchmarks.clients.nats"

    def __init__(self, directory: Path, python: str, program: str) -> None:
        super().__init__(directory, python)
        self._program = program
        self._port = free_port()

    @property
    def address(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [self._program, "--addr", "127.0.0.1", "--port", str(self._port)]
        command += ["--jetstream", "--store_dir", str(self.directory / "data")]
        self._child = ChildProcess("NATS", command, self.directory / "server.log")
        self._child.start()
        self._child.wait_until(self._greets, START_TIMEOUT)

    def create_topic(self, topic: str, partitions: int) -> None:
        """A stream, which has no partitions."""
        self._let_client("create", topic)

    def delete_topic(self, topic: str) -> None:
        self._let_client("delete", topic)

    def stored_bytes(self, topic: str) -> int:
        return sum(disk_usage(each) for each in self.directory.rglob(f"streams/{topic}"))

    def _let_client(self, verb: str, topic: str) -> None:
        with self.client(verb, topic=topic) as program:
            program.wait_done(TOPIC_TIMEOUT)

    def _greets(self) -> bool | None:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 0.5) as connection:
                return connection.recv(4096).startswith(b"INFO") or None
        except OSError:
            return None


class NatsPeer(Peer):
    name: ClassVar[str] = "nats"
    title: ClassVar[str] = "NATS JetStream"

    def __init__(self) -> None:
        self._python = ""
        self._program = ""

    def prepare(self) -> None:
        self._program = environment.debian_program("nats-server", "nats-server")
        self._python = environment.peer_python()

    def versions(self) -> Mapping[str, str]:
        return {
            "NATS": environment.version_of(self._program, "--version"),
            **environment.installed(self._python, ("nats-py",)),
        }

    def server(self, directory: Path) -> NatsServer:
        return NatsServer(directory, self._python, self._program)
