"""From what a user gives as `zookeeper=` to something that opens sessions."""

from functools import partial

from folkmoot.coordination import guardian
from folkmoot.coordination.zookeeper.kazoo_adapter import KazooSession, connect
from folkmoot.coordination.zookeeper.session import Connect


def connector(zookeeper: str | Connect, *, guarded: bool = False) -> Connect:
    """Opens sessions with the servers of a connect string; whatever opens sessions stays as it is.

    A `guarded` session is closed at once when its process dies, where the system allows it.
    """
    if not isinstance(zookeeper, str):
        return zookeeper
    return partial(_guarded if guarded and guardian.POSSIBLE else connect, zookeeper)


def _guarded(zookeeper: str, session_timeout: float) -> KazooSession:
    session = connect(zookeeper, session_timeout)
    guardian.GUARDIAN.guard(session, zookeeper)
    return session
