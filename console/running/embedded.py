"""A real ZooKeeper, one server or an ensemble, as child processes of this one."""

import os
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from folkmoot.console.running.children import ChildProcess, StartFailed, free_port, port_is_free
from folkmoot.console.running.java import find_java, zookeeper_classpath
from folkmoot.protocol.errors import AddressTaken, ConfigError

START_TIMEOUT = 30.0
STOP_TIMEOUT = 5.0
ANSWER_TIMEOUT = 0.5
PORT_ATTEMPTS = 5
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

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port is {self.port}: give a port, or 0 for a free one")
        if self.tick_time < 0.001:
            raise ConfigError(f"tick_time is {self.tick_time}: give at least 0.001 s")
        if self.max_session_timeout < 2 * self.tick_time:
            raise ConfigError("max_session_timeout is less than two ticks: give a longer one")


class EmbeddedZooKeeper:
    """A ZooKeeper server in a process of its own, from the jars that `zookeeper_classpath` finds.

    `data` holds its snapshots and transaction logs, `zoo.cfg` (written at each start) and
    `zookeeper.log`. A kill loses nothing that was answered. `restart` keeps data and port, so
    clients with living sessions come back to it. The child ends when this process ends, however
    that happens. One thread at a time uses it.
    """

    def __init__(self, data: Path, config: ZooKeeperConfig | None = None) -> None:
        self.data = data.absolute()
        self.config = config or ZooKeeperConfig()
        self.port = self.config.port
        self._id = 0
        self._peers: tuple[str, ...] = ()
        self._child: ChildProcess | None = None

    @property
    def address(self) -> str:
        """The connect string, once it was started."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.data / "zookeeper.log"

    @property
    def child(self) -> ChildProcess:
        """Its process, once it was started."""
        if self._child is None:
            raise StartFailed(f"ZooKeeper in {self.data} was not started")
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running

    def start(self) -> None:
        """Returns when it serves. A free port that another process takes meanwhile is replaced."""
        chooses_port = self.port == 0
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self.launch()
            try:
                self.wait_until_serving()
                return
            except StartFailed as error:
                self.kill()
                if "Address already in use" not in self.child.output():
                    raise
                if not chooses_port or attempt == PORT_ATTEMPTS:
                    raise self._port_in_use() from error
                self.port = 0

    def launch(self) -> None:
        """Starts the process and does not wait: what starts several at once needs the two apart."""
        java = find_java()
        classpath = zookeeper_classpath(self.config.jars)
        if self.port and not port_is_free(self.port):
            raise self._port_in_use()
        self.port = self.port or free_port()
        self.data.mkdir(parents=True, exist_ok=True)
        configuration = self.data / "zoo.cfg"
        configuration.write_text(self._configuration())
        if self._peers:
            (self.data / "myid").write_text(f"{self._id}\n")
        command = [str(java.executable), *self._java_options(), "-cp", classpath]
        main = "quorum.QuorumPeerMain" if self._peers else "ZooKeeperServerMain"
        command += [f"org.apache.zookeeper.server.{main}", str(configuration)]
        self._child = ChildProcess(f"ZooKeeper on port {self.port}", command, self.log)
        self._child.start()

    def wait_until_serving(self, timeout: float = START_TIMEOUT) -> None:
        self.child.wait_until(lambda: self.mode() or None, timeout)

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

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        if self._child is not None:
            self._child.stop(timeout)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def pause(self) -> None:
        """Stop the process (SIGSTOP): connections stay open without answers."""
        self.child.pause()

    def resume(self) -> None:
        self.child.resume()

    def restart(self) -> None:
        """Starts it again on the same data and port, after a kill or not."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def join_ensemble(self, peers: Sequence[str], number: int) -> None:
        """Makes it a member of an ensemble; before it is started. Caller: ZooKeeperEnsemble."""
        self._peers = tuple(peers)
        self._id = number

    def _port_in_use(self) -> AddressTaken:
        return AddressTaken(
            f"port {self.port} for ZooKeeper is in use: choose another, or 0 for a free one"
        )

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
        if self._peers:
            lines += ["initLimit=20", "syncLimit=10", *self._peers]
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


class ZooKeeperEnsemble:
    """Several servers that agree by majority, each as an `EmbeddedZooKeeper` in `servers`; or one alone.

    With a port given, the first has that one, the second the next one, and so on.
    Faults are done to the members: `ensemble.servers[0].kill()`, `ensemble.leader().pause()`.
    """

    def __init__(self, data: Path, servers: int = 3, config: ZooKeeperConfig | None = None) -> None:
        config = config or ZooKeeperConfig()
        self.servers = [
            EmbeddedZooKeeper(
                data / f"zookeeper-{number}",
                replace(config, port=config.port + number - 1 if config.port else 0),
            )
            for number in range(1, servers + 1)
        ]

    @property
    def address(self) -> str:
        """The connect string that names them all."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Returns when all serve."""
        if len(self.servers) == 1:
            self.servers[0].start()
            return
        peers = [
            f"server.{number}=127.0.0.1:{free_port()}:{free_port()}"
            for number in range(1, len(self.servers) + 1)
        ]
        for number, server in enumerate(self.servers, start=1):
            server.join_ensemble(peers, number)
        with ExitStack() as undo:
            for server in self.servers:
                undo.callback(server.kill)
                server.launch()
            for server in self.servers:
                server.wait_until_serving()
            undo.pop_all()

    def leader(self, timeout: float = START_TIMEOUT) -> EmbeddedZooKeeper:
        """The server that leads, waiting for an election if there is none."""
        deadline = time.monotonic() + timeout
        while True:
            expired = time.monotonic() >= deadline
            for server in self.servers:
                if server.is_running and server.mode() == "leader":
                    return server
            if expired:
                raise StartFailed(f"the ensemble {self.address} has no leader")
            time.sleep(0.05)

    def stop(self) -> None:
        """Kills all but one alone, which nothing waits for: what was answered is on disk."""
        if len(self.servers) == 1:
            self.servers[0].stop()
        for server in reversed(self.servers):
            server.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
