"""The recipes of groups run on a real ZooKeeper and on the one in memory."""

from tests.contracts.conftest import backend
from tests.coordination.sessions import open_session

__all__ = ["backend", "open_session"]
