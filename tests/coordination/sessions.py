"""Sessions with one ensemble, real or in memory, for tests that need more than one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from folkmoot.coordination.zookeeper.kazoo_adapter import connect
from folkmoot.coordination.zookeeper.session import Session
from tests.memory_zookeeper import MemoryZooKeeper

Opener = Callable[[], Session]


@pytest.fixture(params=["memory", "zookeeper"])
def open_session(request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Opens sessions with one ensemble, which are closed after the test."""
    with ExitStack() as stack:
        if request.param == "memory":
            ensemble = MemoryZooKeeper()
            make: Opener = ensemble.connect
        else:
            address = request.getfixturevalue("empty_chroot")

            def make() -> Session:
                return connect(address, 30.0)

        def opened() -> Session:
            session = make()
            stack.callback(session.close)
            return session

        yield opened
