"""The layout version of a chroot: written first, looked at once a session, another one left untouched."""

import time
from collections.abc import Callable
from typing import Final

import pytest
from kazoo.client import KazooClient

from folkmoot.admin.admin import Admin
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import layout, paths, topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper import kazoo_adapter
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create, Get
from folkmoot.coordination.zookeeper.recipes import Malformed, ensure
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import ConfigError, NoCluster
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.coordination.losses import every_loss
from tests.coordination.steps import Steps, going_on
from tests.memory_zookeeper import MemoryZooKeeper

CLIENTS: Final[list[Callable[[str], object]]] = [
    lambda chroot: Producer(zookeeper=chroot).start(),
    lambda chroot: Consumer(zookeeper=chroot).start(),
    lambda chroot: Consumer(zookeeper=chroot, group="g", topics=["t"]).start(),
    lambda chroot: Admin(zookeeper=chroot).start(),
    lambda chroot: SchemaRegistry(chroot).version("s", "latest"),
]


def test_the_first_broker_on_a_chroot_writes_the_version_and_later_sessions_find_it(
    empty_chroot: str,
) -> None:
    for create in (True, False):
        session = connect(f"{empty_chroot}/new", 10.0, create=create)
        assert execute(session, Get(paths.LAYOUT)).data == b'{"version":1}'
        assert execute(session, Get(paths.LAYOUT)).stat.version == 0
        execute(session, ensure(paths.TOPICS))
        session.close()


def test_a_client_of_a_chroot_without_a_cluster_is_told_so_and_leaves_nothing_there(
    empty_chroot: str, zookeeper_root: KazooClient
) -> None:
    root = empty_chroot[empty_chroot.index("/") :]
    for chroot in (empty_chroot, f"{empty_chroot}/wrong/deep"):
        for use in CLIENTS:
            began = time.monotonic()
            with pytest.raises(NoCluster, match=f"no cluster was ever made at zookeeper={chroot}"):
                use(chroot)
            assert time.monotonic() - began < 9  # not as long as it waits for brokers
    assert zookeeper_root.get_children(root) == []


def test_a_chroot_of_another_version_is_refused_in_one_line_and_left_as_it_is(
    empty_chroot: str,
) -> None:
    chroot = empty_chroot
    bare = kazoo_adapter.connect(chroot, 10.0)
    execute(bare, Create(paths.LAYOUT, b'{"version":7}'))
    before = execute(bare, Get("/")).stat, execute(bare, Get(paths.LAYOUT))
    with pytest.raises(ConfigError) as raised:
        connect(chroot, 10.0)
    said = str(raised.value)
    assert "\n" not in said
    for part in (chroot[chroot.index("/") :], "layout version 7", f"needs {layout.VERSION}"):
        assert part in said
    assert (execute(bare, Get("/")).stat, execute(bare, Get(paths.LAYOUT))) == before
    bare.close()


def test_a_chroot_in_use_without_a_version_is_refused_and_left_as_it_is() -> None:
    ensemble = MemoryZooKeeper()
    session = ensemble.connect()
    execute(session, topics.create("t", 1, [1]))
    before = ensemble.snapshot()
    with pytest.raises(ConfigError, match="zk:2181/cluster has layout version 0"):
        execute(session, layout.check("zk:2181/cluster"))
    assert ensemble.snapshot() == before


def test_what_others_keep_in_a_chroot_does_not_make_it_ours() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, Create("/zookeeper"))
    execute(session, layout.check("zk", create=True))
    assert execute(session, Get(paths.LAYOUT)).data == b'{"version":1}'


def test_a_version_that_cannot_be_read_is_refused() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, Create(paths.LAYOUT, b"one"))
    with pytest.raises(Malformed, match=paths.LAYOUT):
        execute(session, layout.check("zk", create=True))


def test_the_first_use_ends_well_whichever_reply_is_lost() -> None:
    for ensemble, session in every_loss(most=6):
        execute(session, layout.check("zk", create=True))
        execute(ensemble.connect(), ensure(paths.TOPICS))
        execute(ensemble.connect(), layout.check("zk", create=True))


def test_one_that_begins_to_use_the_chroot_between_two_looks_is_no_older_version() -> None:
    """The look for the version came too early, the look for what else is there came after its use."""
    ensemble = MemoryZooKeeper()
    recipe = layout.check("zk", create=True)
    session, faster = ensemble.connect(), ensemble.connect()
    execute(faster, ensure("/elsewhere"))
    operation = next(recipe)
    with pytest.raises(Exception, match="no such node") as missing:
        execute(session, operation)
    execute(faster, layout.check("zk", create=True))
    execute(faster, ensure(paths.TOPICS))
    Steps(session).run(going_on(recipe, recipe.throw(missing.value)))
