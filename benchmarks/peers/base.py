"""What the harness uses of a system: a server on this machine, topics, and client programs."""

import json
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from benchmarks import environment
from benchmarks.environment import Unavailable as Unavailable
from benchmarks.programs import Outcome, Program
from folkmoot.console.running.children import ChildProcess, free_port

START_TIMEOUT: Final = 60.0
STOP_TIMEOUT: Final = 20.0
TOPIC_TIMEOUT: Final = 60.0


class Server(ABC):
    """A server on this machine with its data in one new directory, on free ports of 127.0.0.1.

    Its class is the system, which may be here or not: `prepare` installs what it needs, once.
    """

    system: ClassVar[str]
    """The system's name, and that of the program of its clients, which knows the verbs."""
    title: ClassVar[str]
    compiles_as_it_runs: ClassVar[bool] = False
    """Whether it is slow at first and should do some work before anything is measured."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def python(self) -> str:
        """The Python in which its clients run."""
        return environment.peer_python()

    @classmethod
    @abstractmethod
    def prepare(cls) -> Mapping[str, str]:
        """Install it; → the versions of the server, its clients and what they run on. Raises Unavailable."""

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
    def create_topic(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Returns when its bytes are gone, so that removing them disturbs no later measurement."""

    @abstractmethod
    def stored_bytes(self, topic: str) -> int:
        """What its records take on disk."""

    def client(self, verb: str, *, program: str = "", **parameters: Any) -> Program:
        """A client program, not started yet: the server's, or another `program` that it has in common."""
        encoded_parameters = json.dumps(
            {"address": self.address, "system": self.system, **parameters}
        )
        module = f"benchmarks.clients.{program or self.system}"
        return Program(
            [self.python, "-m", module, verb, encoded_parameters], self.directory / "clients.log"
        )

    def produce(
        self, topic: str, records: Path, count: int, *, compression: str = "zstd", **more: Any
    ) -> Outcome:
        """Runs a producer of the first `count` records of a file; `more` is what its verb knows."""
        parameters = {"compression": compression, "warm": 0, **more}
        program = self.client(
            "produce", topic=topic, records=str(records), count=count, **parameters
        )
        return program.run(self.processes())

    def consume(self, topic: str, count: int, how: str, warm: int) -> Outcome:
        program = self.client("consume", topic=topic, count=count, how=how, warm=warm)
        return program.run(self.processes())

    def request(self, verb: str, *, timeout: float = TOPIC_TIMEOUT, **parameters: Any) -> Any:
        """What the client in Python reports: the server's own tools may be another JVM, for seconds."""
        with self.client(verb, **parameters) as program:
            return program.wait_done(timeout)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()  # an interrupted start leaves a process
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class DebianServer(Server):
    """One process on one port: the program of a Debian package of its name, with clients in Python."""

    program: ClassVar[str]
    packages: ClassVar[Sequence[str]]

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()
        self.data = directory / "data"
        program = environment.debian_program(self.program, self.program)
        self._child = ChildProcess(self.system, self.command(program), directory / "server.log")

    @classmethod
    def prepare(cls) -> Mapping[str, str]:
        path = environment.debian_program(cls.program, cls.program)
        packages = environment.installed_versions(environment.peer_python(), cls.packages)
        return {cls.title.split()[0]: environment.version_of(path, "--version"), **packages}

    @abstractmethod
    def command(self, program: str) -> Sequence[str]: ...

    @abstractmethod
    def is_answering(self) -> bool: ...

    def processes(self) -> Mapping[str, int]:
        return {"broker": self._child.pid}

    def start(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        self._child.start()
        self._child.wait_until(lambda: self.is_answering() or None, START_TIMEOUT)

    def stop(self) -> None:
        self._child.stop(STOP_TIMEOUT)


def greeting(port: int, request: bytes = b"") -> bytes | None:
    """The first bytes of an answer; None while no server listens."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5) as connection:
        connection.sendall(request)
        return connection.recv(4096)
    return None


def disk_usage(path: Path, suffix: str = "") -> int:
    """The bytes of all files below a folder whose names end so; what vanishes meanwhile counts nothing."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            if name.endswith(suffix):
                with suppress(FileNotFoundError):
                    total += os.stat(os.path.join(folder, name)).st_size
    return total
