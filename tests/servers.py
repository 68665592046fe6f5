"""Fixtures that give a test real servers. `tests/conftest.py` and `integration/` make them known."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from folkmoot.console.running.embedded import (
    EmbeddedZooKeeper,
    ZooKeeperConfig,
    make_ensemble,
    start_ensemble,
)
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.coordination.paths import LAYOUT
from tests.waiting import eventually

# A kill of the process loses nothing, so tests need not wait for the disk.
FOR_TESTS = ZooKeeperConfig(fsync=False)


class ZooKeeperEnsemble:
    """Running servers that agree by majority. Faults are done to them: `ensemble.leader().pause()`."""

    def __init__(self, data: Path, config: ZooKeeperConfig) -> None:
        self.servers = make_ensemble(data, 3, config)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            start_ensemble(self.servers, stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def address(self) -> str:
        """The connect string that names them all."""
        return ",".join(server.address for server in self.servers)

    def leader(self, timeout: float = 30.0) -> EmbeddedZooKeeper:
        """The server that leads, waiting for an election if there is none."""

        def find_leader() -> EmbeddedZooKeeper | None:
            running = (each for each in self.servers if each.is_running)
            return next((each for each in running if each.mode() == "leader"), None)

        found = eventually(find_leader, timeout)
        assert found is not None
        return found


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """One server for all tests of the run: use it through `chroot`, and do it no harm."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"), FOR_TESTS) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_root(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    """A client at the root of the shared server."""
    # A machine that stands still ends its session as late as can be: all tests of the run need it.
    client = KazooClient(hosts=zookeeper.address, timeout=zookeeper.config.max_session_timeout)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture(scope="session")
def shared_cluster(
    zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedCluster]:
    """Two broker processes for all tests of the run that do them no harm; each makes its own topics.

    Nobody kills them, so their sessions may be long: they outlive a ZooKeeper that stands still.
    """
    connect_string = f"{zookeeper.address}/shared-cluster"
    directory = tmp_path_factory.mktemp("cluster")
    with EmbeddedCluster(directory, 2, connect_string, session_timeout=30.0) as cluster:
        yield cluster


@pytest.fixture
def chroot(zookeeper: EmbeddedZooKeeper, zookeeper_root: KazooClient) -> str:
    """A connect string with a new chroot of this test's own, in which a cluster was made."""
    path = f"/test-{uuid4().hex[:12]}"
    zookeeper_root.create(f"{path}{LAYOUT}", b'{"version":1}', makepath=True)
    return f"{zookeeper.address}{path}"


@pytest.fixture
def empty_chroot(zookeeper: EmbeddedZooKeeper, zookeeper_root: KazooClient) -> str:
    """A connect string with a new chroot of this test's own, in which there is nothing."""
    path = f"/test-{uuid4().hex[:12]}"
    zookeeper_root.create(path)
    return f"{zookeeper.address}{path}"


@pytest.fixture
def private_zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    """A server for this test alone, to be killed, paused and restarted."""
    with EmbeddedZooKeeper(tmp_path / "private-zookeeper", FOR_TESTS) as server:
        yield server


@pytest.fixture
def start_cluster(chroot: str, tmp_path: Path) -> Iterator[Callable[..., EmbeddedCluster]]:
    """Starts broker processes: `start_cluster(brokers=3)`, all stopped after the test.

    They register in a chroot of the shared ZooKeeper; `zookeeper=None` gives them their own, and
    `zookeeper=` a connect string that one.
    """
    numbers = itertools.count(1)

    with ExitStack() as stack:

        def start(
            brokers: int = 1,
            zookeeper: str | ZooKeeperConfig | None = chroot,
            session_timeout: float | None = None,
        ) -> EmbeddedCluster:
            cluster = EmbeddedCluster(
                tmp_path / f"cluster-{next(numbers)}",
                brokers,
                FOR_TESTS if zookeeper is None else zookeeper,
                session_timeout=session_timeout,
            )
            return stack.enter_context(cluster)

        yield start
