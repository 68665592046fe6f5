"""ZooKeeper and broker containers that keep their address through everything that is done to them."""

from __future__ import annotations  # docker's classes are generic for type checkers only

import gc
import random
import re
import socket
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from os import environ
from typing import Any, Final, Self
from urllib.parse import urlsplit

from folkmoot.console.running.children import StartFailed
from folkmoot.protocol.errors import FolkmootError, MissingExtra, pip_command

try:
    from docker.errors import APIError, DockerException, ImageNotFound, NotFound
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.docker_client import DockerClient
    from testcontainers.core.network import Network
    from testcontainers.core.waiting_utils import WaitStrategy, WaitStrategyTarget
except ModuleNotFoundError as missing:
    raise MissingExtra(f"containers need: {pip_command('testing')}") from missing

INTERNAL_PORT: Final = 9190
CLIENT_PORT: Final = 9191
ZOOKEEPER_PORT: Final = 2181
START_TIMEOUT: Final = 60
POLL: Final = 0.05

# The ports are below those that Linux gives to outgoing connections. So no connection can have a port when
# its container wants it back.
_FIXED_PORTS: Final = range(20_000, 32_000)
_PORT_IN_USE: Final = re.compile(r"port is already allocated|address already in use")
_START_ATTEMPTS: Final = 5
_LAST_LINES: Final = 15


class DockerUnavailable(FolkmootError):
    """No Docker engine answers, or an image that is needed is neither here nor to be had."""


def broker_image() -> str:
    """FOLKMOOT_BROKER_IMAGE, or what integration/images/build makes."""
    return environ.get("FOLKMOOT_BROKER_IMAGE") or "folkmoot-broker"


def zookeeper_image() -> str:
    """FOLKMOOT_ZOOKEEPER_IMAGE, or what integration/images/build makes."""
    return environ.get("FOLKMOOT_ZOOKEEPER_IMAGE") or "folkmoot-zookeeper"


def docker_client() -> DockerClient:
    """A client whose engine has answered. Raises DockerUnavailable."""
    try:
        client = DockerClient()
        client.client.ping()
        return client
    except DockerException as error:
        reason = str(error)
    with warnings.catch_warnings():
        # docker leaves the socket open that could not be connected; let it go here, in silence.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    raise DockerUnavailable(f"no Docker engine answers: start one, or set DOCKER_HOST ({reason})")


def require_images(*names: str) -> None:
    """Raises DockerUnavailable if no engine answers or it lacks one of the images."""
    client = docker_client().client
    try:
        for name in names:
            try:
                client.images.get(name)
            except ImageNotFound:
                raise DockerUnavailable(
                    f"there is no Docker image {name}: run integration/images/build"
                ) from None
    finally:
        client.close()


class FixedContainer(DockerContainer):
    """A container whose published ports are chosen before it starts and stay the same for good.

    A port that Docker chooses is known too late for what is advertised in ZooKeeper, and changes
    when the container is started again. So each start of a new container takes free ports first
    (`_configure`), and takes others if another process was faster. Ports are published on the loopback
    address, or on all of the engine's host if that is another machine. Data in the image's volume outlives
    `kill` and `terminate`, and goes with `stop`.

    Constructing it needs an engine (DockerUnavailable). One thread at a time uses it.
    """

    def __init__(
        self, image: str, *ports: int, network: Network | None = None, alias: str | None = None
    ) -> None:
        docker_client().client.close()
        super().__init__(image)
        self.alias = alias
        self._published: dict[int, int] = dict.fromkeys(ports, 0)
        if network is not None:
            self.with_network(network)
        if alias is not None:
            self.with_network_aliases(alias)

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> Self:
        """A new container, ready. Raises DockerUnavailable, StartFailed."""
        require_images(self.image)
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                return super().start()
            except APIError as error:
                self._discard()
                if attempt == _START_ATTEMPTS or not _PORT_IN_USE.search(str(error)):
                    raise StartFailed(f"{self.image} was not started: {error}") from error
        raise AssertionError("the last attempt returns or raises")

    def kill(self) -> None:
        """SIGKILL to all of it, as if its machine had died; returns when it is gone."""
        self._wrapped().kill()
        self._wrapped().wait()

    def terminate(self, timeout: int = 20) -> int:
        """The orderly end, by the image's stop signal; returns the exit code (137: it was killed)."""
        self._wrapped().stop(timeout=timeout)
        return int(self._wrapped().wait()["StatusCode"])

    def start_again(self) -> None:
        """After `kill` or `terminate`: the same container on its data, ready at the same address."""
        self._wrapped().start()
        self._wait_until_ready()

    def pause(self) -> None:
        """Stops every process of it where it is; connections stay, nothing is answered."""
        self._wrapped().pause()

    def unpause(self) -> None:
        self._wrapped().unpause()

    def disconnect(self, network: Network) -> None:
        """Takes it out of a network. Its published ports go with the last network it was in."""
        self._engine_network(network).disconnect(self.get_container_id(), force=True)

    def connect(self, network: Network) -> None:
        """Puts it into a network, under its alias."""
        aliases = [self.alias] if self.alias else []
        self._engine_network(network).connect(self.get_container_id(), aliases=aliases)

    # -- where it is ------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The address at which published ports are reached from here."""
        if testcontainers_config.tc_host_override:
            return testcontainers_config.tc_host_override
        engine = urlsplit(str(self.get_docker_client().client.api.base_url)).hostname
        local = engine is None or engine.startswith("local")
        return "127.0.0.1" if local or engine is None else engine

    def get_container_host_ip(self) -> str:
        return self.host

    def get_exposed_port(self, port: int) -> int:
        return self._published[port]

    def logs(self) -> str:
        """All that it has written so far, over all its starts."""
        text: bytes = self._wrapped().logs()
        return text.decode(errors="replace")

    # -- inside -----------------------------------------------------------------------------------

    def _configure(self) -> None:
        self._published = dict(zip(self._published, free_ports(len(self._published)), strict=True))
        bind = "127.0.0.1" if self.host == "127.0.0.1" else "0.0.0.0"
        # testcontainers' annotation leaves out the address, which docker takes.
        ports: dict[str, Any] = self.ports
        ports.update({f"{inner}/tcp": (bind, outer) for inner, outer in self._published.items()})

    def _wait_until_ready(self) -> None:
        if self._wait_strategy is not None:
            self._wait_strategy.wait_until_ready(self)

    def _wrapped(self) -> Any:
        return self.get_wrapped_container()

    def _engine_network(self, network: Network) -> Any:
        return self.get_docker_client().client.networks.get(network.name)

    def _discard(self) -> None:
        if self._container is not None:
            with suppress(NotFound):
                self._container.remove(force=True, v=True)
            self._container = None


class ZooKeeperContainer(FixedContainer):
    """One ZooKeeper server: at `connect_string` from here, at `internal_connect_string` for siblings.

    The default image ticks every half second, which allows sessions from one second up. An image of
    the ZooKeeper project works as well.
    """

    def __init__(
        self,
        image: str | None = None,
        *,
        network: Network | None = None,
        alias: str = "zookeeper",
    ) -> None:
        super().__init__(image or zookeeper_image(), ZOOKEEPER_PORT, network=network, alias=alias)
        self.waiting_for(_ready(AnswersMode()))

    @property
    def connect_string(self) -> str:
        return f"{self.host}:{self.get_exposed_port(ZOOKEEPER_PORT)}"

    @property
    def internal_connect_string(self) -> str:
        return f"{self.alias}:{ZOOKEEPER_PORT}"


class BrokerContainer(FixedContainer):
    """One broker with two listeners: `client` for here, `internal` for containers in its network.

    A client here uses the cluster's ZooKeeper and nothing else; a client in a sibling container says
    `listener="internal"`. `zookeeper` is the connect string as the broker sees it, so usually
    `ZooKeeperContainer.internal_connect_string`, with a chroot if you like.
    """

    def __init__(
        self,
        broker_id: int,
        zookeeper: str,
        *,
        network: Network,
        image: str | None = None,
        alias: str | None = None,
        session_timeout: float | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        alias = alias or f"broker-{broker_id}"
        super().__init__(image or broker_image(), CLIENT_PORT, network=network, alias=alias)
        self.broker_id = broker_id
        self._zookeeper = zookeeper
        self._session_timeout = session_timeout
        self._arguments = list(arguments)
        self.waiting_for(_ready(LogsLine(rf"^broker {broker_id} ready ")))

    @property
    def address(self) -> str:
        """host:port of the listener `client`."""
        return f"{self.host}:{self.get_exposed_port(CLIENT_PORT)}"

    @property
    def internal_address(self) -> str:
        """host:port of the listener `internal`."""
        return f"{self.alias}:{INTERNAL_PORT}"

    def _configure(self) -> None:
        super()._configure()
        command = ["broker", "--broker-id", str(self.broker_id), "--data", "/data"]
        command += ["--zookeeper", self._zookeeper]
        internal = f"internal=0.0.0.0:{INTERNAL_PORT}@{self.internal_address}"
        command += ["--listeners", f"{internal},client=0.0.0.0:{CLIENT_PORT}@{self.address}"]
        if self._session_timeout is not None:
            command += ["--session-timeout", f"{self._session_timeout:g}"]
        self.with_command([*command, *self._arguments])


# -- waiting --------------------------------------------------------------------------------------


class Ready(WaitStrategy):
    """Asks again and again whether a container is ready; one that has ended will never be."""

    def is_ready(self, container: WaitStrategyTarget) -> bool:
        raise NotImplementedError

    def wait_until_ready(self, container: WaitStrategyTarget) -> None:
        deadline = time.monotonic() + self._startup_timeout
        while not self.is_ready(container):
            container.reload()
            if container.status in ("exited", "dead"):
                raise StartFailed(
                    f"the container ended before it was ready{_last_output(container)}"
                )
            if time.monotonic() > deadline:
                within = f"{self._startup_timeout:g} s"
                raise StartFailed(f"not ready within {within}{_last_output(container)}")
            time.sleep(self._poll_interval)


class LogsLine(Ready):
    """Ready when it has written the line once more than at the last time that it was ready."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self._line = re.compile(line.encode(), re.MULTILINE)
        self._last_count = 0

    def is_ready(self, container: WaitStrategyTarget) -> bool:
        stdout, _stderr = container.get_logs()
        count = len(self._line.findall(stdout))
        if count <= self._last_count:
            return False
        self._last_count = count
        return True


class AnswersMode(Ready):
    """Ready when it answers `srvr` with its mode: that command is allowed by default, others not."""

    def is_ready(self, container: WaitStrategyTarget) -> bool:
        host = container.get_container_host_ip()
        address = (host, container.get_exposed_port(ZOOKEEPER_PORT))
        try:
            with socket.create_connection(address, timeout=2) as connection:
                connection.sendall(b"srvr")
                return b"Mode:" in connection.recv(4096)
        except OSError:
            return False


def _ready(strategy: Ready) -> Ready:
    return strategy.with_startup_timeout(START_TIMEOUT).with_poll_interval(POLL)


def _last_output(container: WaitStrategyTarget) -> str:
    text = b"".join(container.get_logs()).decode(errors="replace").strip()
    lines = text.splitlines()[-_LAST_LINES:]
    return ": it has written nothing" if not lines else ":\n" + "\n".join(lines)


def free_ports(count: int) -> list[int]:
    """Return free ports of the loopback address."""
    ports: list[int] = []
    for port in random.sample(_FIXED_PORTS, len(_FIXED_PORTS)):
        if len(ports) == count:
            break
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
    return ports
