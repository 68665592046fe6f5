"""What the harness asks of a system: a server on this machine, topics, and client programs."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from benchmarks.programs import Program
from folkmoot.console.running.children import ChildProcess

STOP_TIMEOUT: Final = 20.0


class Unavailable(Exception):
    """A peer cannot be run here; the message says why, and what to do."""


class Server(ABC):
    """A running server with its data in one directory, on free ports of 127.0.0.1."""

    python: str
    """The Python in which its clients run."""
    module: str
    """The program of its clients, which knows the verbs."""
    compiles_as_it_runs: ClassVar[bool] = False
    """Whether it is slow at first and should do some work before anything is measured."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    @abstractmethod
    def address(self) -> str:
        """What clients are given."""

    @abstractmethod
    def processes(self) -> Mapping[str, int]:
        """Its processes by name, the broker first: `broker` keeps the log."""

    @abstractmethod
    def start(self) -> None:
        """Returns when it serves; again after `stop` or `kill`, on the same data."""

    @abstractmethod
    def stop(self) -> None:
        """In order."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL to the broker."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Returns when its bytes are gone, so that removing them disturbs no later measurement."""

    @abstractmethod
    def stored_bytes(self, topic: str) -> int:
        """What its records take on disk."""

    def client(self, verb: str, *, module: str | None = None, **parameters: Any) -> Program:
        """A client program, not started yet; it is given the server's address, too.

        It is the server's, or another `module` that runs in the same Python.
        """
        told = json.dumps({"address": self.address, **parameters})
        command = [self.python, "-m", module or self.module, verb, told]
        return Program(command, self.directory / "clients.log")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()  # an interrupted start leaves a process
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class OneProcess(Server):
    """A server that is one process, which `start` leaves in `_child`."""

    def __init__(self, directory: Path, python: str) -> None:
        super().__init__(directory)
        self.python = python
        self._child: ChildProcess | None = None

    def processes(self) -> Mapping[str, int]:
        return {"broker": self._running().pid}

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(STOP_TIMEOUT)

    def kill(self) -> None:
        self._running().kill()

    def _running(self) -> ChildProcess:
        if self._child is None:
            raise Unavailable("the server was not started")
        return self._child


class Peer(ABC):
    """A system that may be here or not. `prepare` installs what it needs, once."""

    name: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def prepare(self) -> None:
        """Raises Unavailable."""

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Of the server, its clients and what they run on; after `prepare`."""

    @abstractmethod
    def server(self, directory: Path) -> Server:
        """A server with a new, empty data directory; not started yet."""


def disk_usage(path: Path, suffix: str = "") -> int:
    """The bytes of all files below a folder whose names end so; what vanishes meanwhile counts nothing."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            if name.endswith(suffix):
                try:
                    total += os.stat(os.path.join(folder, name)).st_size
                except FileNotFoundError:
                    continue
    return total
