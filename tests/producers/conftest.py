"""Brokers in memory for each test of producers."""

from collections.abc import Iterator

import pytest

from tests.producers.fakes import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        yield cluster
