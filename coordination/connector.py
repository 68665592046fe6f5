"""Opens sessions with the cluster that `zookeeper=` names."""

from functools import partial

from folkmoot.coordination import layout
from folkmoot.coordination.guardian import GUARDIAN
from folkmoot.coordination.zookeeper import kazoo_adapter
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.kazoo_adapter import CONNECT_TIMEOUT, KazooSession
from folkmoot.coordination.zookeeper.session import Connect


def connector(
    zookeeper: str | Connect,
    *,
    connect_timeout: float = CONNECT_TIMEOUT,
    guarded: bool = False,
    create: bool = False,
) -> Connect:
    """Make a function that opens sessions from a connect string; such a function is returned as it is.

    A `guarded` session is closed at once when its process dies, where the system allows it. `create` is
    for brokers and controllers.
    """
    if not isinstance(zookeeper, str):
        return zookeeper
    return partial(
        connect, zookeeper, connect_timeout=connect_timeout, guarded=guarded, create=create
    )


def connect(
    zookeeper: str,
    session_timeout: float,
    *,
    connect_timeout: float = CONNECT_TIMEOUT,
    guarded: bool = False,
    create: bool = False,
) -> KazooSession:
    """Open a session on a chroot and compare its layout version; with `create`, make a missing cluster.

    Raises NoCluster if no cluster was ever made there, ConfigError for a wrong connect string or another
    layout version, ZooKeeperUnreachable when no server has answered within `connect_timeout`.
    """
    session = kazoo_adapter.connect(
        zookeeper, session_timeout, connect_timeout=connect_timeout, create=create
    )
    try:
        execute(session, layout.check(zookeeper, create=create), connect_timeout)
        if guarded:
            GUARDIAN.guard(session, zookeeper)
    except BaseException:
        session.close()
        raise
    return session
