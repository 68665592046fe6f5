"""Groups as an onlooker sees them."""

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import inspection
from folkmoot.coordination.groups import offset_admin as resets
from folkmoot.coordination.groups.inspection import GroupState
from folkmoot.coordination.groups.ownership import OffsetState, encode
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create, Delete, Set
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.errors import ZooKeeperUnreachable
from folkmoot.protocol.records import TopicPartition
from tests.contracts.backends import Backend
from tests.coordination.groups import GROUP, P0, P1, TOPIC_ID, Someone, make_plan
from tests.coordination.losses import LossyZooKeeper
from tests.memory_zookeeper import MemoryZooKeeper

PARTITIONS = 100


def described(session: Session) -> GroupState:
    (found,) = inspection.describe(session, [GROUP])
    assert found is not None
    return found


def test_a_partition_costs_one_read() -> None:
    ensemble = LossyZooKeeper(-1, executed=True)
    a = Someone(ensemble.connect(), "a")
    make_plan(a.session, *[a.name] * PARTITIONS)
    for number in range(PARTITIONS):
        a.claim(TopicPartition("t", number))
    before = ensemble.requests
    state = described(a.session)
    assert ensemble.requests - before <= PARTITIONS + 10
    assert (state.state, len(state.partitions)) == ("stable", PARTITIONS)
    assert {each.owner for each in state.partitions} == {a.name}


def test_who_owns_what_is_told_whatever_has_become_of_the_nodes(backend: Backend) -> None:
    a = Someone(backend.open(), "a")
    make_plan(a.session, a.name, a.name)
    a.claim(P0)
    a.claim(P1)
    execute(a.session, Delete(paths.owner(GROUP, *P0)))
    state = described(a.session)
    assert [each.owner for each in state.partitions] == [None, a.name]
    assert [state.state_of(each) for each in state.partitions] == ["claiming", "stable"]
    execute(a.session, resets.reset(GROUP, P1, TOPIC_ID, 3, "mark"))
    assert [each.owner for each in described(a.session).partitions] == [None, None]
    a.claim(P1)
    execute(
        a.session, Set(paths.offset(GROUP, *P1), encode(OffsetState(3)))
    )  # by hand: names nobody
    execute(a.session, Create(f"{paths.owners(GROUP, 't')}/nonsense"))
    execute(a.session, Create(f"{paths.offsets(GROUP, 't')}/nonsense"))
    assert [each.owner for each in described(a.session).partitions] == [None, a.name]


def test_an_offset_that_is_illegible_is_told_and_keeps_nothing_else_from_being_told(
    backend: Backend,
) -> None:
    a = Someone(backend.open(), "a")
    make_plan(a.session, a.name, a.name)
    a.claim(P0)
    a.release(a.claim(P1), 7, P1)
    execute(a.session, Set(paths.offset(GROUP, *P1), b'{"offset": 1.5}'))
    state = described(a.session)
    assert [state.state_of(each) for each in state.partitions] == ["stable", "malformed"]
    assert state.state == "rebalancing"


def test_a_group_that_is_not_there_is_none(backend: Backend) -> None:
    assert inspection.describe(backend.open(), [GROUP]) == []


def test_a_look_at_a_group_ends_in_time_though_zookeeper_is_silent() -> None:
    ensemble = MemoryZooKeeper()
    session = ensemble.connect()
    Someone(session, "a")
    ensemble.suspend(session)
    with pytest.raises(ZooKeeperUnreachable, match=r"within 0\.05 s"):
        inspection.describe(session, [GROUP], timeout=0.05)
