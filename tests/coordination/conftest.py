"""The recipes of groups run on a real ZooKeeper and on the one in memory."""

import pytest

from folkmoot.coordination.zookeeper.session import Session
from tests.contracts.backends import Backend
from tests.contracts.conftest import backend
from tests.coordination.groups import Someone, make_plan
from tests.coordination.sessions import open_session

__all__ = ["backend", "open_session"]


@pytest.fixture
def a(backend: Backend) -> Someone:
    """A member to whom the plan gives t-0 and t-1."""
    someone = Someone(backend.open(), "a")
    make_plan(someone.session, someone.name, someone.name)
    return someone


@pytest.fixture
def admin(backend: Backend) -> Session:
    return backend.open()
