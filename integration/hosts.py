"""Brokers as hosts: each in a network of brokers, one of ZooKeeper and one of clients, to be cut from any.

The networks lead nowhere else, addresses stay what they are through every fault, and each broker has a
disk of its own that can be filled. Only for an engine on this machine.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, suppress
from typing import Any, Final, Self
from uuid import uuid4

from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.models.networks import Network
from docker.types import IPAMConfig, IPAMPool

from folkmoot.console.running.children import StartFailed
from folkmoot.integration.containers import (
    CLIENT_PORT,
    INTERNAL_PORT,
    ZOOKEEPER_PORT,
    broker_image,
    docker_client,
    require_images,
    zookeeper_image,
)

NUMBERS: Final = (1, 2, 3)
PEERS: Final = "peers"
ZOOKEEPER: Final = "zookeeper"
CLIENTS: Final = "clients"
NETWORKS: Final = (PEERS, ZOOKEEPER, CLIENTS)
DISK: Final = "64m"
START_TIMEOUT: Final = 60.0
_ATTEMPTS: Final = 10
_LOOK: Final = 0.05


class Hosts:
    """Three ZooKeepers and three brokers; `heal` takes back every fault. One thread at a time uses it."""

    def __init__(self, session_timeout: float) -> None:
        require_images(broker_image(), zookeeper_image())
        self._client = docker_client().client
        self._session_timeout = session_timeout
        self._stack = ExitStack()
        self._name = f"folkmoot-{uuid4().hex[:8]}"
        self._prefix: dict[str, str] = {}
        self._networks: dict[str, Network] = {}
        self._disconnected: set[tuple[int, str]] = set()
        self._stopped: set[int] = set()
        self._full: set[int] = set()
        self.zookeepers: dict[int, Container] = {}
        self.brokers: dict[int, Container] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def connect_string(self) -> str:
        servers = (f"{self._address(ZOOKEEPER, 10 + n)}:{ZOOKEEPER_PORT}" for n in NUMBERS)
        return ",".join(servers) + "/folkmoot"

    # -- faults -----------------------------------------------------------------------------------

    def kill(self, *containers: Container) -> None:
        """SIGKILL to all that runs there; returns when it is gone."""
        for each in containers:
            each.kill()
        for each in containers:
            each.wait()

    def terminate(self, number: int) -> int:
        """The orderly stop of a broker; returns its exit code (137: it was killed after a while)."""
        self.brokers[number].stop(timeout=20)
        return int(self.brokers[number].wait()["StatusCode"])

    def pause(self, number: int) -> None:
        """SIGSTOP, until `heal`."""
        self._stopped.add(number)
        self.brokers[number].kill(signal="SIGSTOP")

    def cut(self, number: int, network: str) -> None:
        """Cut a broker off from a network, until `heal`, without a message to either side."""
        self._disconnected.add((number, network))
        self._networks[network].disconnect(self.brokers[number].id, force=True)

    def fill_disk(self, number: int) -> None:
        """Leaves no byte on a broker's disk, until `heal`."""
        self._full.add(number)
        command = ["dd", "if=/dev/zero", f"of=/disks/{number}/fill", "bs=4k"]
        output = self._holder.exec_run(command).output
        assert b"No space left" in output, output

    def heal(self) -> dict[int, int]:
        """Everything is as it was, and everybody runs; returns the exit code of each broker that did not."""
        for number in self._full:
            self._holder.exec_run(["rm", f"/disks/{number}/fill"])
        for number, network in self._disconnected:
            address = self._address(network, 20 + number)
            self._networks[network].connect(self.brokers[number].id, ipv4_address=address)
        ended = {}
        for number, broker in self.brokers.items():
            broker.reload()
            if broker.status != "running":
                ended[number] = int(broker.wait()["StatusCode"])
            elif number in self._stopped:
                broker.kill(signal="SIGCONT")
        self._full, self._disconnected, self._stopped = set(), set(), set()
        self._start_zookeeper()
        for number in ended:
            self.start(number)
        return ended

    def start(self, *numbers: int) -> None:
        """Starts brokers that have ended; does not wait for them."""
        for number in numbers:
            self.brokers[number].start()

    def leading_zookeeper(self) -> Container | None:
        for server in self.zookeepers.values():
            output = b"Mode: leader" in server.exec_run(["bash", "-c", _MODE]).output
            if output:
                return server
        return None

    # -- start ------------------------------------------------------------------------------------

    def _start(self) -> None:
        for name in NETWORKS:
            self._networks[name] = self._network(name)
        for number in NUMBERS:
            self.zookeepers[number] = self._zookeeper(number)
        self._volumes = [self._volume(number) for number in NUMBERS]
        # Data in memory lasts while it is mounted.
        mounts = {name: {"bind": f"/disks/{n}"} for n, name in enumerate(self._volumes, start=1)}
        self._holder = self._container(
            broker_image(), "holder", entrypoint=["sleep", "infinity"], user="root", volumes=mounts
        )
        self._holder.start()
        for number in NUMBERS:
            self.brokers[number] = self._broker(number)
        self._start_zookeeper()
        self.start(*NUMBERS)
        deadline = time.monotonic() + START_TIMEOUT
        for number, broker in self.brokers.items():
            while f"broker {number} ready ".encode() not in broker.logs():
                broker.reload()
                if time.monotonic() > deadline or broker.status != "running":
                    raise StartFailed(f"broker {number} did not start: {broker.logs()[-2000:]!r}")
                time.sleep(_LOOK)

    def _start_zookeeper(self) -> None:
        """A broker that finds none at its start ends."""
        for server in self.zookeepers.values():
            server.start()  # does nothing to one that runs
        deadline = time.monotonic() + START_TIMEOUT
        while self.leading_zookeeper() is None:
            if time.monotonic() > deadline:
                raise StartFailed("the ensemble has no leader")
            time.sleep(_LOOK)

    def _network(self, name: str) -> Network:
        for _ in range(_ATTEMPTS):
            prefix = f"10.{random.randrange(128, 256)}.{random.randrange(256)}"
            pool = IPAMConfig(pool_configs=[IPAMPool(subnet=f"{prefix}.0/24")])
            try:
                network: Network = self._client.networks.create(
                    f"{self._name}-{name}", driver="bridge", internal=True, ipam=pool
                )
            except APIError as error:
                if "overlap" not in str(error):
                    raise
                continue
            self._prefix[name] = prefix
            self._stack.callback(network.remove)
            return network
        raise StartFailed("found no free range of addresses for a network")

    def _address(self, network: str, last: int) -> str:
        return f"{self._prefix[network]}.{last}"

    def _volume(self, number: int) -> str:
        options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={DISK},uid=9190,gid=9190"}
        volume = self._client.volumes.create(f"{self._name}-{number}", driver_opts=options)
        self._stack.callback(volume.remove)
        return str(volume.name)

    def _container(self, image: str, name: str, **options: Any) -> Container:
        container: Container = self._client.containers.create(
            image, name=f"{self._name}-{name}", network_mode="none", **options
        )
        self._stack.callback(_remove, container)
        return container

    def _zookeeper(self, number: int) -> Container:
        servers = [
            f"server.{n}={self._address(ZOOKEEPER, 10 + n)}:2888:3888;{ZOOKEEPER_PORT}"
            for n in NUMBERS
        ]
        environment = {
            "ZOO_MY_ID": str(number),
            "ZOO_SERVERS": " ".join(servers),
            "ZOO_MAX_CLIENT_CNXNS": "0",
        }
        container = self._container(
            zookeeper_image(), f"zookeeper-{number}", environment=environment
        )
        self._join(container, ZOOKEEPER, 10 + number)
        return container

    def _broker(self, number: int) -> Container:
        internal = f"{self._address(PEERS, 20 + number)}:{INTERNAL_PORT}"
        client = f"{self._address(CLIENTS, 20 + number)}:{CLIENT_PORT}"
        command = ["broker", "--broker-id", str(number), "--data", "/data"]
        command += ["--zookeeper", self.connect_string]
        command += ["--session-timeout", f"{self._session_timeout:g}"]
        listeners = (
            f"internal=0.0.0.0:{INTERNAL_PORT}@{internal},client=0.0.0.0:{CLIENT_PORT}@{client}"
        )
        command += ["--listeners", listeners]
        volumes = {self._volumes[number - 1]: {"bind": "/data"}}
        container = self._container(
            broker_image(), f"broker-{number}", command=command, volumes=volumes
        )
        for name in NETWORKS:
            self._join(container, name, 20 + number)
        return container

    def _join(self, container: Container, network: str, last: int) -> None:
        none = self._client.networks.get("none")
        container.reload()
        if "none" in container.attrs["NetworkSettings"]["Networks"]:
            none.disconnect(container.id)
        self._networks[network].connect(container.id, ipv4_address=self._address(network, last))


_MODE: Final = f"exec 3<>/dev/tcp/127.0.0.1/{ZOOKEEPER_PORT} && echo srvr >&3 && grep Mode <&3"


def _remove(container: Container) -> None:
    with suppress(NotFound):
        container.remove(force=True, v=True)
