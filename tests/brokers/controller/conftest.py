"""The controller runs on a real ZooKeeper and on the one in memory."""

from tests.contracts.conftest import backend

__all__ = ["backend"]
