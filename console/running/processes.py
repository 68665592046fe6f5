"""Brokers as child processes, and a whole cluster of them on this machine."""

import fcntl
import json
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Self

import msgspec

from folkmoot.console.running.children import (
    STOP_TIMEOUT,
    ChildProcess,
    Server,
    StartFailed,
    free_port,
    port_is_free,
)
from folkmoot.console.running.embedded import (
    EmbeddedZooKeeper,
    ZooKeeperConfig,
    make_ensemble,
    start_ensemble,
)
from folkmoot.protocol.errors import ConfigError, DirectoryLocked

LOCK_NAME = "cluster.lock"
PORTS_NAME = "ports.json"
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
FOLKMOOT = (sys.executable, "-m", "folkmoot.console.main")


class ServerProcess(Server):
    """A server of ours in a process of its own; it is ready when it has said so."""

    def __init__(self, name: str, words: Sequence[str], log: Path, ready: str) -> None:
        """`words` of our command line; its output goes to `log`; `ready`: the pattern of the line that
        says that it is ready."""
        # Its ready line must be in the file at once, not when a buffer is full.
        super().__init__(name, [*FOLKMOOT, *words], log, {"PYTHONUNBUFFERED": "1"})
        self._pattern = re.compile(ready, re.MULTILINE)

    def is_ready(self) -> bool:
        return self._ready_line() is not None

    def stop(self, timeout: float = STOP_TIMEOUT) -> int | None:
        """Orderly; anything but exit code 0 is an error. It may have ended already."""
        if not self.is_running:
            return self.exit_code
        code = super().stop(timeout)
        if code != 0:
            raise self.failure(f"did not stop in order, exit code {code}")
        return code

    def _ready_line(self) -> re.Match[str] | None:
        return self._pattern.search(self.output())


class BrokerProcess(ServerProcess):
    """`folkmoot broker`, its output in `<data>.log` beside its data; ready when it is registered."""

    def __init__(
        self,
        broker_id: int,
        data: Path,
        zookeeper: str,
        listeners: Sequence[str] = (),
        session_timeout: float | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """`options` are further words of the command."""
        self.broker_id = broker_id
        self.data = data.absolute()
        words = ["broker", "--broker-id", str(broker_id)]
        words += ["--data", str(self.data), "--zookeeper", zookeeper]
        if listeners:
            words += ["--listeners", ",".join(listeners)]
        if session_timeout is not None:
            words += ["--session-timeout", f"{session_timeout:g}"]
        words += options
        log = self.data.with_name(f"{self.data.name}.log")
        super().__init__(f"broker {broker_id}", words, log, rf"^broker {broker_id} ready (.+)$\n")

    @property
    def listeners(self) -> dict[str, str]:
        """The advertised address of each listener by its name, once it is ready."""
        found = self._ready_line()
        return {} if found is None else dict(re.findall(r"(\S+?)=(\S+)", found[1]))

    @property
    def address(self) -> str:
        """host:port of the listener `client`."""
        return self.listeners["client"]

    @property
    def metrics(self) -> str | None:
        """The address of its metrics, if it serves them."""
        found = re.search(r"^metrics at (\S+)$", self.output(), re.MULTILINE)
        return None if found is None else found[1]


class RegistryProcess(ServerProcess):
    """`folkmoot registry`, its output in `log`; ready when it listens."""

    def __init__(
        self, log: Path, zookeeper: str, port: int = 0, options: Sequence[str] = ()
    ) -> None:
        """`options` are further words of the command. Port 0 is a free one."""
        words = ["registry", "--zookeeper", zookeeper, "--port", str(port), *options]
        super().__init__("registry", words, log, r"^registry at (https?://\S+)$\n")

    @property
    def url(self) -> str:
        """http://host:port, once it is ready."""
        found = self._ready_line()
        assert found is not None
        return found[1]

    @property
    def address(self) -> str:
        """host:port, once it is ready."""
        return self.url.partition("://")[2]


class EmbeddedCluster:
    """ZooKeeper and brokers on this machine, all their data in one locked directory.

    Layout: `cluster.lock`, `ports.json` (name of a process → its port), `zookeeper-1/`, `broker-1/`,
    `broker-1.log` and so on, `registry.log`. Ports that were chosen freely are taken again by the next run,
    where they are free. With `zookeeper` given as a connect string, that one is used and none is started;
    `zookeepers` is how many are, None: as many as the directory was begun with, else one. Started in the
    order lock, ZooKeeper, brokers and registry (all at once); stopped in the reverse. If a later part
    fails, earlier ones are stopped. All of it ends with this process. One thread at a time uses it.
    """

    def __init__(
        self,
        directory: Path,
        brokers: int = 3,
        zookeeper: str | ZooKeeperConfig | None = None,
        first_broker_port: int = 0,
        session_timeout: float | None = None,
        *,
        zookeepers: int | None = None,
        default_replicas: int = 1,
        first_metrics_port: int | None = None,
        registry_port: int | None = None,
        log_options: Sequence[str] = (),
    ) -> None:
        """`registry_port`: of the schema registry's server, 0 any; None: there is none.

        `log_options`: words for the command lines of brokers and registry.
        """
        self.directory = directory.absolute()
        self.servers: list[EmbeddedZooKeeper] = []
        self.brokers: list[BrokerProcess] = []
        self.registry: RegistryProcess | None = None
        self._count = brokers
        self._zookeeper_option = zookeeper
        self._zookeepers = zookeepers
        self._first_port = first_broker_port
        self._session_timeout = session_timeout
        self._default_replicas = default_replicas
        self._first_metrics_port = first_metrics_port
        self._registry_port = registry_port
        self._log_options = list(log_options)
        self._ports: dict[str, int] = {}
        self._stack = ExitStack()

    @property
    def server(self) -> EmbeddedZooKeeper | None:
        """The first ZooKeeper, None if none was started here."""
        return self.servers[0] if self.servers else None

    @property
    def zookeeper(self) -> str:
        """The cluster's address: the connect string."""
        if isinstance(self._zookeeper_option, str):
            return self._zookeeper_option
        if not self.servers:
            raise StartFailed(f"the cluster in {self.directory} was not started")
        return ",".join(server.address for server in self.servers)

    def unused_brokers(self) -> list[int]:
        """Brokers of earlier runs whose data is here, and who are not among those of this one."""
        found = (path.name.removeprefix("broker-") for path in self.directory.glob("broker-*/"))
        return sorted(int(n) for n in found if n.isdecimal() and int(n) > self._count)

    def start(self) -> None:
        """Returns when every broker is registered, and the schema registry listens.

        Raises ConfigError, DirectoryLocked, StartFailed.
        """
        with ExitStack() as stack:
            self._lock_directory(stack)
            try:
                self._start(stack)
            except OSError as error:
                raise StartFailed(
                    f"the cluster in {self.directory} was not started: {error}"
                ) from error
            self._stack = stack.pop_all()

    def _start(self, stack: ExitStack) -> None:
        self._ports = _read_ports(self.directory / PORTS_NAME)
        if not isinstance(self._zookeeper_option, str):
            self._start_zookeeper(self._zookeeper_option or ZooKeeperConfig(), stack)
        self.brokers = [self._broker(number) for number in range(1, self._count + 1)]
        if self._registry_port is not None:
            self.registry = self._make_registry(self._registry_port)
        # Before anything is stored: how many ZooKeepers there are is known from this file.
        self._write_ports()
        stack.callback(self._stop_brokers)
        for broker in self.brokers:
            broker.launch()
        if self.registry is not None:
            stack.callback(ChildProcess.stop, self.registry)
            self.registry.launch()
            self.registry.wait_until_ready()
        for broker in self.brokers:
            broker.wait_until_ready()

    def stop(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_zookeeper(self, config: ZooKeeperConfig, stack: ExitStack) -> None:
        stored_count = sum(name.startswith("zookeeper-") for name in self._ports)
        if not stored_count and any(self.directory.glob("broker-*/")):  # else nothing can be lost
            stored_count = len(list(self.directory.glob("zookeeper-*/version-2")))
        if stored_count and self._zookeepers not in (None, stored_count):
            raise ConfigError(
                f"{self.directory} has the data of {stored_count} ZooKeeper servers, of which each must be "
                f"there: start {stored_count}, or use another directory"
            )
        self.servers = make_ensemble(self.directory, stored_count or self._zookeepers or 1, config)
        for server in self.servers:
            server.port = server.port or self._previous_port(server.data.name)
        start_ensemble(self.servers, stack)
        self._ports |= {server.data.name: server.port for server in self.servers}

    def _make_registry(self, port: int) -> RegistryProcess:
        name = "registry"
        self._ports[name] = port = port or self._previous_port(name) or free_port()
        log = self.directory / f"{name}.log"
        return RegistryProcess(log, self.zookeeper, port, self._log_options)

    def _broker(self, number: int) -> BrokerProcess:
        name = f"broker-{number}"
        port = self._first_port + number - 1 if self._first_port else 0
        port = port or self._previous_port(name) or free_port()
        self._ports[name] = port
        options = [*self._log_options, "--default-replicas", str(self._default_replicas)]
        if self._first_metrics_port is not None:
            first = self._first_metrics_port
            options += ["--metrics-port", str(first + number - 1 if first else 0)]
        return BrokerProcess(
            number,
            self.directory / name,
            self.zookeeper,
            listeners=[f"client=127.0.0.1:{port}"],
            session_timeout=self._session_timeout,
            options=options,
        )

    def _write_ports(self) -> None:
        new = self.directory / f"{PORTS_NAME}.new"
        new.write_text(json.dumps(self._ports))
        new.replace(self.directory / PORTS_NAME)

    def _previous_port(self, name: str) -> int:
        """The port of an earlier run if it is free, else 0."""
        port = self._ports.get(name, 0)
        return port if port and port_is_free(port) else 0

    def _stop_brokers(self) -> None:
        """Signal all at once, then one after the other those that still run."""
        for broker in self.brokers:
            broker.terminate()
        for broker in reversed(self.brokers):
            ChildProcess.stop(broker)

    def _lock_directory(self, stack: ExitStack) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # Kept open as long as the cluster runs; the kernel drops the lock if this process dies.
            lock = stack.enter_context((self.directory / LOCK_NAME).open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DirectoryLocked(
                f"{self.directory} is used by another cluster: stop that one, or give another --data"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"{self.directory}: {error.strerror}: use another directory"
            ) from error


def _read_ports(file: Path) -> dict[str, int]:
    """The ports of an earlier run; none if there was none, or the file is illegible."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Port])
    except (OSError, msgspec.MsgspecError):
        return {}
