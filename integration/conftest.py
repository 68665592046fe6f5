"""Fixtures of the Docker tests: images, and containers that end with the tests."""

import os
from collections.abc import Iterator
from functools import cache

import pytest

# Its own container would have to be pulled; what is started here is removed by its fixture.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

from testcontainers.core.network import Network

from folkmoot.integration.cluster import ContainerCluster
from folkmoot.integration.containers import (
    DockerUnavailable,
    ZooKeeperContainer,
    broker_image,
    require_images,
    zookeeper_image,
)


@cache
def skip_reason() -> str | None:
    """Why no container can be started here; the whole run asks once."""
    try:
        require_images(zookeeper_image(), broker_image())
    except DockerUnavailable as error:
        return str(error)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("docker") and (reason := skip_reason()):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network() as network:
        yield network
    network._docker.client.close()


@pytest.fixture(scope="module")
def zookeeper(network: Network) -> Iterator[ZooKeeperContainer]:
    with ZooKeeperContainer(network=network) as container:
        yield container


@pytest.fixture(scope="module")
def cluster() -> Iterator[ContainerCluster]:
    """Two brokers. A test leaves it as it was found: everything running."""
    with ContainerCluster(brokers=2, session_timeout=2.0) as cluster:
        yield cluster
