"""A real ZooKeeper, one server or an ensemble, as child processes of this one."""

import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from folkmoot.console.running.children import Server, free_port, port_is_free
from folkmoot.console.running.java import find_java, zookeeper_classpath
from folkmoot.protocol.errors import AddressTaken

ANSWER_TIMEOUT = 0.5
HEAP = "256m"

Mode = Literal["standalone", "leader", "follower"]


@dataclass(frozen=True, kw_only=True)
class ZooKeeperConfig:
    """How an embedded ZooKeeper runs. Everything is on 127.0.0.1."""

    port: int = 0  # for clients; 0 takes a free one and keeps it over restarts
    tick_time: float = 0.5  # seconds; the shortest session timeout is two ticks
    max_session_timeout: float = 60.0
    fsync: bool = True  # off loses data in a power cut, and only then: tests run faster without
    java_options: tuple[str, ...] = ()  # besides our own, which come first
    jars: Path | None = None  # where ZooKeeper's lie; None: those of a package, or Debian's


class EmbeddedZooKeeper(Server):
    """A ZooKeeper server in a process of its own, from the jars that `zookeeper_classpath` finds.

    `data` holds its snapshots and transaction logs, `zoo.cfg` (written at each start) and
    `zookeeper.log`. A kill loses nothing that was answered. `restart` keeps data and port, so
    clients with living sessions come back to it. The child ends when this process ends, however
    that happens. One thread at a time uses it.
    """

    def __init__(self, data: Path, config: ZooKeeperConfig | None = None) -> None:
        self.data = data.absolute()
        super().__init__(f"ZooKeeper in {self.data}", (), self.data / "zookeeper.log")
        self.config = config or ZooKeeperConfig()
        self.port = self.config.port
        self.number = 0
        self.peers: Sequence[str] = ()
        """Of an ensemble: a line of the configuration for each member, this one as `number`."""

    @property
    def address(self) -> str:
        """The connect string, once it was started."""
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start the process and do not wait. Raises AddressTaken, JavaNotFound, MissingExtra."""
        java = find_java()
        classpath = zookeeper_classpath(self.config.jars)
        if self.port and not port_is_free(self.port):
            raise AddressTaken(
                f"port {self.port} for ZooKeeper is in use: choose another, or 0 for a free one"
            )
        self.port = self.port or free_port()
        self.data.mkdir(parents=True, exist_ok=True)
        configuration = self.data / "zoo.cfg"
        configuration.write_text(self._configuration())
        if self.peers:
            (self.data / "myid").write_text(f"{self.number}\n")
        main = "quorum.QuorumPeerMain" if self.peers else "ZooKeeperServerMain"
        self.command = (
            *(str(java.executable), *self._java_options(), "-cp", classpath),
            *(f"org.apache.zookeeper.server.{main}", str(configuration)),
        )
        self.name = f"ZooKeeper on port {self.port}"
        super().launch()

    def is_ready(self) -> bool:
        return self.mode() is not None

    def mode(self) -> Mode | None:
        """Its part, or None while it does not serve (which a follower without leader does not)."""
        # Another ZooKeeper may have the port. The directory in "conf" says whose it is.
        if f"={self.data}{os.sep}" not in self.ask("conf"):
            return None
        answer = self.ask("srvr")
        modes: tuple[Mode, ...] = ("standalone", "leader", "follower")
        return next((mode for mode in modes if f"Mode: {mode}" in answer), None)

    def ask(self, word: str) -> str:
        """The answer to one of ZooKeeper's four-letter words (srvr, mntr, ruok, conf), "" if none."""
        answer = b""
        try:
            with socket.create_connection(("127.0.0.1", self.port), ANSWER_TIMEOUT) as connection:
                connection.settimeout(ANSWER_TIMEOUT)
                connection.sendall(word.encode())
                # Asked too early, ZooKeeper 3.9 fails to close the connection after this answer.
                while b"not currently serving" not in answer:
                    received = connection.recv(65536)
                    if not received:
                        break
                    answer += received
        except OSError:
            return ""
        return answer.decode("utf-8", "replace")

    def _configuration(self) -> str:
        lines = [
            f"dataDir={self.data}",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",
            f"tickTime={round(self.config.tick_time * 1000)}",
            f"maxSessionTimeout={round(self.config.max_session_timeout * 1000)}",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr,mntr,ruok,conf",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
        ]
        if self.peers:
            lines += ["initLimit=20", "syncLimit=10", *self.peers]
        return "\n".join(lines) + "\n"

    def _java_options(self) -> list[str]:
        """A small heap and what makes a short-lived server start fast: one compiler, few threads."""
        simple_logger = "org.apache.logging.log4j.simple.SimpleLoggerContextFactory"
        return [
            f"-Xmx{HEAP}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-Dzookeeper.preAllocSize=4096",
            f"-Dzookeeper.forceSync={'yes' if self.config.fsync else 'no'}",
            f"-Dlog4j2.loggerContextFactory={simple_logger}",
            "-Dlog4j2.simplelogLevel=WARN",
            "-Dlog4j2.simplelogShowdatetime=true",
            *self.config.java_options,
        ]


def make_ensemble(data: Path, count: int, config: ZooKeeperConfig) -> list[EmbeddedZooKeeper]:
    """Make servers that agree by majority, or one alone. With a port given, the second has the next one."""
    return [
        EmbeddedZooKeeper(
            data / f"zookeeper-{number}",
            replace(config, port=config.port + number - 1 if config.port else 0),
        )
        for number in range(1, count + 1)
    ]


def start_ensemble(servers: Sequence[EmbeddedZooKeeper], undo: ExitStack) -> None:
    """Return when all serve; `undo` is given what stops them."""
    if len(servers) > 1:
        peers = [
            f"server.{number}=127.0.0.1:{free_port()}:{free_port()}"
            for number in range(1, len(servers) + 1)
        ]
        for number, server in enumerate(servers, start=1):
            server.peers, server.number = peers, number
    for server in servers:
        # Nothing waits for one of several: what was answered is on disk.
        undo.callback(server.kill if len(servers) > 1 else server.stop)
        server.launch()
    for server in servers:
        server.wait_until_ready()
