"""Brokers as child processes, and a whole cluster of them on this machine."""

import fcntl
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from folkmoot.console.children import ChildProcess, StartFailed
from folkmoot.console.embedded import EmbeddedZooKeeper, ZooKeeperConfig
from folkmoot.protocol.errors import ConfigError, DirectoryLocked

# Longer than a session of a broker that was killed may outlive it.
START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0
LOCK_NAME = "cluster.lock"
FOLKMOOT = (sys.executable, "-m", "folkmoot.console.main")


class BrokerProcess:
    """`folkmoot broker` in a process of its own, its output in `<data>.log` beside its data.

    Its address is known once it says that it is registered. The verbs `kill`, `pause`, `resume` and
    `restart` are there for faults. One thread at a time uses it.
    """

    def __init__(
        self,
        broker_id: int,
        data: Path,
        zookeeper: str,
        listeners: Sequence[str] = (),
        session_timeout: float | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.data = data.absolute()
        command = [*FOLKMOOT, "broker", "--id", str(broker_id)]
        command += ["--data", str(self.data), "--zookeeper", zookeeper]
        for listener in listeners:
            command += ["--listener", listener]
        if session_timeout is not None:
            command += ["--session-timeout", f"{session_timeout:g}"]
        log = self.data.with_name(f"{self.data.name}.log")
        # Its ready line is to be in the file when it is written, not when a buffer is full.
        environment = {"PYTHONUNBUFFERED": "1"}
        self.child = ChildProcess(f"broker {broker_id}", command, log, environment)
        self._listeners: dict[str, str] = {}

    @property
    def listeners(self) -> dict[str, str]:
        """The advertised address of each listener by its name."""
        return dict(self._listeners)

    @property
    def address(self) -> str:
        """host:port of the listener `client`."""
        return self._listeners["client"]

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def is_running(self) -> bool:
        return self.child.is_running

    def start(self) -> None:
        """Returns when it is registered."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Starts the process and does not wait."""
        self._listeners = {}
        self.data.parent.mkdir(parents=True, exist_ok=True)
        self.child.start()

    def wait_until_ready(self, timeout: float = START_TIMEOUT) -> None:
        self._listeners = self.child.wait_until(self._ready_line, timeout)

    def stop(self) -> None:
        """Orderly; anything but exit code 0 is an error. Nothing happens if it does not run."""
        if not self.is_running:
            return
        code = self.child.stop(STOP_TIMEOUT)
        if code != 0:
            raise self.child.failure(f"did not stop in order, exit code {code}")

    def kill(self) -> None:
        self.child.kill()

    def pause(self) -> None:
        self.child.pause()

    def resume(self) -> None:
        self.child.resume()

    def restart(self) -> None:
        """Starts it again on the same data, after a kill or not."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    def _ready_line(self) -> dict[str, str] | None:
        pattern = rf"^broker {self.broker_id} ready (.+)$\n"
        found = re.search(pattern, self.child.output(), re.MULTILINE)
        if found is None:
            return None
        return dict(re.findall(r"(\S+?)=(\S+)", found[1]))


class EmbeddedCluster:
    """ZooKeeper and brokers on this machine, all their data in one locked directory.

    Layout: `cluster.lock`, `zookeeper/`, `broker-1/`, `broker-1.log` and so on. With `zookeeper`
    given, that one is used and none is started. Started in the order lock, ZooKeeper, brokers (all
    at once); stopped in the reverse. What was started is stopped when a later part fails. All of
    it ends with this process. One thread at a time uses it.
    """

    def __init__(
        self,
        directory: Path,
        brokers: int = 3,
        zookeeper: str | ZooKeeperConfig | None = None,
        first_broker_port: int = 0,
        session_timeout: float | None = None,
    ) -> None:
        self.directory = directory.absolute()
        self.server: EmbeddedZooKeeper | None = None
        self.brokers: list[BrokerProcess] = []
        self._count = brokers
        self._wanted = zookeeper
        self._first_port = first_broker_port
        self._session_timeout = session_timeout
        self._stack = ExitStack()

    @property
    def zookeeper(self) -> str:
        """The cluster's address: the connect string."""
        if isinstance(self._wanted, str):
            return self._wanted
        if self.server is None:
            raise StartFailed(f"the cluster in {self.directory} was not started")
        return self.server.address

    def start(self) -> None:
        """Returns when every broker is registered. Raises ConfigError, DirectoryLocked, StartFailed."""
        with ExitStack() as stack:
            self._lock_directory(stack)
            if not isinstance(self._wanted, str):
                self.server = EmbeddedZooKeeper(self.directory / "zookeeper", self._wanted)
                stack.callback(self.server.stop)
                self.server.start()
            self.brokers = [self._broker(number) for number in range(1, self._count + 1)]
            stack.callback(self._stop_brokers)
            for broker in self.brokers:
                broker.launch()
            for broker in self.brokers:
                broker.wait_until_ready()
            self._stack = stack.pop_all()

    def stop(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _broker(self, number: int) -> BrokerProcess:
        port = self._first_port + number - 1 if self._first_port else 0
        return BrokerProcess(
            number,
            self.directory / f"broker-{number}",
            self.zookeeper,
            listeners=[f"client=127.0.0.1:{port}"],
            session_timeout=self._session_timeout,
        )

    def _stop_brokers(self) -> None:
        """All at once, then one after the other for whoever has not heard."""
        for broker in self.brokers:
            if broker.is_running:
                broker.child.terminate()
        for broker in reversed(self.brokers):
            broker.child.stop(STOP_TIMEOUT)

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
