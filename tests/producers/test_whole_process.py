"""What a producer changes for the whole process: the allocator, and nothing else unless it is asked."""

import sys
from collections.abc import Iterator

import pytest

from folkmoot.network.memory import keep_freed_memory
from folkmoot.producers.producer import Producer
from tests.producers.fakes import FakeCluster

USUAL = 0.005


@pytest.fixture
def usual() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize(("given", "then"), [(0.0005, 0.0005), (0.1, USUAL)])
def test_the_interval_is_made_shorter_and_never_longer(given: float, then: float) -> None:
    with (
        FakeCluster() as cluster,
        Producer(zookeeper=cluster.connect, switch_interval=given),
    ):
        assert sys.getswitchinterval() == pytest.approx(then)


@pytest.mark.usefixtures("usual")
def test_a_producer_leaves_the_interval_alone_unless_it_is_asked() -> None:
    with FakeCluster() as cluster, Producer(zookeeper=cluster.connect):
        assert sys.getswitchinterval() == pytest.approx(USUAL)


def test_a_producer_has_the_allocator_keep_freed_memory() -> None:
    keep_freed_memory.cache_clear()
    with FakeCluster() as cluster, Producer(zookeeper=cluster.connect):
        assert keep_freed_memory.cache_info().currsize
