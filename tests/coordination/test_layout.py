"""The layout version of a chroot: written first, looked at once a session, another one left untouched."""

import pytest

from folkmoot.coordination import layout, paths, topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper import kazoo_adapter
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create, Get
from folkmoot.coordination.zookeeper.recipes import Malformed, ensure
from folkmoot.protocol.errors import ConfigError
from tests.coordination.losses import every_loss
from tests.coordination.steps import Steps, going_on
from tests.memory_zookeeper import MemoryZooKeeper


def test_the_first_session_on_a_chroot_writes_the_version_and_later_ones_find_it(
    chroot: str,
) -> None:
    for _ in range(2):
        session = connect(f"{chroot}/new", 10.0)
        assert execute(session, Get(paths.LAYOUT)).data == b'{"version":1}'
        assert execute(session, Get(paths.LAYOUT)).stat.version == 0
        execute(session, ensure(paths.TOPICS))
        session.close()


def test_a_chroot_of_another_version_is_refused_in_one_line_and_left_as_it_is(chroot: str) -> None:
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
    with pytest.raises(ConfigError, match="/cluster has layout version 0"):
        execute(session, layout.check("/cluster"))
    assert ensemble.snapshot() == before


def test_what_others_keep_in_a_chroot_does_not_make_it_ours() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, Create("/zookeeper"))
    execute(session, layout.check(""))
    assert execute(session, Get(paths.LAYOUT)).data == b'{"version":1}'


def test_a_version_that_cannot_be_read_is_refused() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, Create(paths.LAYOUT, b"one"))
    with pytest.raises(Malformed, match=paths.LAYOUT):
        execute(session, layout.check(""))


def test_the_first_use_ends_well_whichever_reply_is_lost() -> None:
    for ensemble, session in every_loss(most=6):
        execute(session, layout.check(""))
        execute(ensemble.connect(), ensure(paths.TOPICS))
        execute(ensemble.connect(), layout.check(""))


def test_one_that_begins_to_use_the_chroot_between_two_looks_is_no_older_version() -> None:
    """The look for the version came too early, the look for what else is there came after its use."""
    ensemble = MemoryZooKeeper()
    recipe = layout.check("")
    session, faster = ensemble.connect(), ensemble.connect()
    execute(faster, ensure("/elsewhere"))
    operation = next(recipe)
    with pytest.raises(Exception, match="no such node") as missing:
        execute(session, operation)
    execute(faster, layout.check(""))
    execute(faster, ensure(paths.TOPICS))
    Steps(session).run(going_on(recipe, recipe.throw(missing.value)))
