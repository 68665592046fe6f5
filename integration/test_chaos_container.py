"""A group of processes under all faults at once, its ZooKeeper a container that is killed and restarted."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import pytest
from testcontainers.core.network import Network

from folkmoot.integration.containers import ZooKeeperContainer
from tests.chaos.ensembles import Ensemble
from tests.chaos.run import run_cluster
from tests.chaos.settings import Settings, once_each

pytestmark = pytest.mark.docker


class ContainerEnsemble:
    """One server: killed and started again it is away for seconds, and nobody leads meanwhile."""

    def __init__(self, container: ZooKeeperContainer, data: Path) -> None:
        self.address = container.connect_string
        self.logs = [data]
        self._container = container
        self._one_at_a_time = Lock()

    def refresh(self) -> None:
        pass

    def kill_leader(self) -> None:
        with self._one_at_a_time:
            self._container.kill()
            self._container.start_again()

    def restart_all(self) -> None:
        with self._one_at_a_time:
            self._container.terminate()
            self._container.start_again()


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_one_event_of_each_kind_loses_nothing_with_zookeeper_in_a_container(
    network: Network, tmp_path: Path
) -> None:
    @contextmanager
    def container(folder: Path, settings: Settings) -> Iterator[Ensemble]:
        # Beside the run's folder: what the container's user writes there is not ours to remove.
        data = tmp_path / "zookeeper"
        data.mkdir()
        data.chmod(0o777)
        server = ZooKeeperContainer(network=network, alias="chaos")
        server.with_volume_mapping(str(data), "/data", "rw")
        with server:
            yield ContainerEnsemble(server, data)

    small, seed = once_each(), random.randrange(1_000_000)
    result = run_cluster(tmp_path, small, seed, len(small.kinds), print, container)
    print(result.table())
    assert not result.breaches, "\n".join(result.breaches)
    assert result.kinds == small.kinds
    assert result.zombies["tried"] == result.zombies["refused"] == 2
