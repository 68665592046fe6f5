"""The backends that the contract tests run on."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from folkmoot.coordination.zookeeper.session import Session
from tests.contracts.backends import Backend, MemoryBackend, RealBackend


@pytest.fixture(params=["memory", "zookeeper"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with ExitStack() as cleanup:
        if request.param == "memory":
            yield MemoryBackend(cleanup)
        else:
            yield RealBackend(cleanup, request.getfixturevalue("empty_chroot"))


@pytest.fixture
def session(backend: Backend) -> Session:
    return backend.open()
