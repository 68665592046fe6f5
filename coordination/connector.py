"""From what a user gives as `zookeeper=` to something that opens sessions."""

from functools import partial

from folkmoot.coordination import layout
from folkmoot.coordination.guardian import GUARDIAN
from folkmoot.coordination.zookeeper import connect_string, kazoo_adapter
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.kazoo_adapter import CONNECT_TIMEOUT, KazooSession
from folkmoot.coordination.zookeeper.session import Connect


def connector(zookeeper: str | Connect, *, guarded: bool = False) -> Connect:
    """Opens sessions with the servers of a connect string; whatever opens sessions stays as it is.

    A `guarded` session is closed at once when its process dies, where the system allows it.
    """
    return partial(connect, zookeeper, guarded=guarded) if isinstance(zookeeper, str) else zookeeper


def connect(
    zookeeper: str,
    session_timeout: float,
    *,
    connect_timeout: float = CONNECT_TIMEOUT,
    guarded: bool = False,
) -> KazooSession:
    """Open a session on a chroot, which is created where it is missing, and compare its layout version.

    Raises ConfigError for a connect string that is none and for another layout version,
    ZooKeeperUnreachable when no server has answered within `connect_timeout`.
    """
    session = kazoo_adapter.connect(zookeeper, session_timeout, connect_timeout=connect_timeout)
    try:
        chroot = connect_string.parse(zookeeper).chroot
        execute(session, layout.check(chroot), connect_timeout)
    except BaseException:
        session.close()
        raise
    if guarded:
        GUARDIAN.guard(session, zookeeper)
    return session
