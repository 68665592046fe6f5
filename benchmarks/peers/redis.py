"""Redis Streams: Debian's redis-server.

Settings, and why: an append-only file that is never fsynced (`appendfsync no`), which is the class of
the page cache that all others here are in: what was acknowledged survives the death of the process;
no snapshots, which would fork a copy of it in the middle of a measurement; the file is not rewritten
meanwhile. One stream holds all, since Redis has no partitions and works on one thread.
"""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from benchmarks import environment
from benchmarks.peers.base import OneProcess, Peer, disk_usage
from folkmoot.console.running.children import ChildProcess, free_port

START_TIMEOUT: Final = 30.0


class RedisServer(OneProcess):
    module = "benchmarks.clients.redis"

    def __init__(self, directory: Path, python: str, program: str) -> None:
        super().__init__(directory, python)
        self._program = program
        self._port = free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        command = [self._program, "--port", str(self._port), "--bind", "127.0.0.1"]
        command += ["--dir", str(data), "--save", "", "--appendonly", "yes"]
        command += ["--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"]
        self._child = ChildProcess("Redis", command, self.directory / "server.log")
        self._child.start()
        self._child.wait_until(
            lambda: self._ask("PING").startswith(b"+PONG") or None, START_TIMEOUT
        )

    def create_topic(self, topic: str, partitions: int) -> None:
        """A stream comes with its first entry, and has no partitions."""

    def delete_topic(self, topic: str) -> None:
        """All topics: what was deleted still lies in the append-only file, so that begins anew."""
        self.stop()
        for path in (self.directory / "data").rglob("*"):
            if path.is_file():
                path.unlink()
        self.start()

    def stored_bytes(self, topic: str) -> int:
        """The append-only file, which has all topics since the last one was deleted."""
        return disk_usage(self.directory / "data")

    def _ask(self, command: str) -> bytes:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 0.5) as connection:
                connection.sendall(f"{command}\r\n".encode())
                return connection.recv(4096)
        except OSError:
            return b""


class RedisPeer(Peer):
    name: ClassVar[str] = "redis"
    title: ClassVar[str] = "Redis Streams"

    def __init__(self) -> None:
        self._python = ""
        self._program = ""

    def prepare(self) -> None:
        self._program = environment.debian_program("redis-server", "redis-server")
        self._python = environment.peer_python()

    def versions(self) -> Mapping[str, str]:
        return {
            "Redis": environment.version_of(self._program, "--version"),
            **environment.installed(self._python, ("redis", "hiredis")),
        }

    def server(self, directory: Path) -> RedisServer:
        return RedisServer(directory, self._python, self._program)
