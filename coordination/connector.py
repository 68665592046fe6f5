"""From what a user gives as `zookeeper=` to something that opens sessions."""

from functools import partial

from folkmoot.coordination.store import Connect
from folkmoot.coordination.zookeeper import connect


def connector(zookeeper: str | Connect) -> Connect:
    """Opens sessions with the servers of a connect string; whatever opens sessions stays as it is."""
    return partial(connect, zookeeper) if isinstance(zookeeper, str) else zookeeper
