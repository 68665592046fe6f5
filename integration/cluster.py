"""A whole cluster in containers."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self

from testcontainers.core.network import Network

from folkmoot.integration.containers import BrokerContainer, ZooKeeperContainer

CHROOT = "/folkmoot"


class ContainerCluster:
    """ZooKeeper and brokers, each in a container, in a network of their own.

    From here, clients find all of it by `connect_string`. A client in a container that joins
    `network` uses `internal_connect_string` and the listener `internal`. Brokers have the ids 1, 2,
    and so on; `broker` gives the container of one, for faults. Everything, data included, is removed
    at the end, and when a part of it does not start. One thread at a time uses it.
    """

    def __init__(self, brokers: int = 2, session_timeout: float | None = None) -> None:
        self._stack = ExitStack()
        self._count = brokers
        self._session_timeout = session_timeout
        self.brokers: list[BrokerContainer] = []

    def start(self) -> None:
        """Returns when all brokers are registered. Raises DockerUnavailable, StartFailed."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self.network = Network()
        self._stack.callback(self.network._docker.client.close)
        self._stack.enter_context(self.network)
        self.zookeeper = self._stack.enter_context(ZooKeeperContainer(network=self.network))
        self.brokers = [
            BrokerContainer(
                broker_id,
                self.internal_connect_string,
                network=self.network,
                session_timeout=self._session_timeout,
            )
            for broker_id in range(1, self._count + 1)
        ]
        for broker in self.brokers:
            self._stack.callback(broker.stop)
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            for started in [pool.submit(broker.start) for broker in self.brokers]:
                started.result()

    def stop(self) -> None:
        """Removes all of it."""
        self._stack.close()

    def broker(self, broker_id: int) -> BrokerContainer:
        return self.brokers[broker_id - 1]

    @property
    def connect_string(self) -> str:
        return self.zookeeper.connect_string + CHROOT

    @property
    def internal_connect_string(self) -> str:
        return self.zookeeper.internal_connect_string + CHROOT

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
