"""Broker registrations: mine, my own dead incarnation's, somebody else's."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from folkmoot.coordination import brokers, paths
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Multi, MultiFailed
from folkmoot.protocol.errors import BrokerIdTaken, ConfigError
from tests.coordination.losses import every_loss, write
from tests.coordination.steps import ENOUGH, Steps, going_on
from tests.coordination.steps import step as take_step
from tests.memory_zookeeper import MemoryZooKeeper

MINE = Registration({"client": "10.0.0.1:9000"}, "nonce-1", "directory-1")
LATER = Registration({"client": "10.0.0.1:9001"}, "nonce-2", "directory-1")
OTHERS = Registration({"client": "10.0.0.2:9000"}, "nonce-3", "directory-2")


def test_a_registration_lasts_as_long_as_its_session() -> None:
    ensemble = MemoryZooKeeper()
    session, observer = ensemble.connect(), ensemble.connect()
    assert execute(session, brokers.register(1, MINE))
    assert execute(observer, brokers.live()) == {1: replace(MINE, epoch=1)}
    assert execute(observer, brokers.read(1)) == replace(MINE, epoch=1)
    ensemble.expire(session)
    assert execute(observer, brokers.live()) == {}
    assert execute(observer, brokers.read(1)) is None


def test_a_listener_that_no_broker_has_is_told_of() -> None:
    session = MemoryZooKeeper().connect()
    assert execute(session, brokers.addresses("inside")) == []  # nobody is there yet
    execute(session, brokers.register(1, MINE))
    execute(session, brokers.register(2, replace(OTHERS, listeners={"spark": "10.0.0.2:1"})))
    assert execute(session, brokers.addresses("spark")) == ["10.0.0.2:1"]
    with pytest.raises(ConfigError, match="no broker has a listener 'inside': they have client, s"):
        execute(session, brokers.addresses("inside"))


def test_registering_twice_is_registering_once() -> None:
    session = MemoryZooKeeper().connect()
    assert execute(session, brokers.register(1, MINE))
    assert execute(session, brokers.register(1, MINE))


def test_an_id_that_another_broker_has_is_refused_by_its_address() -> None:
    ensemble = MemoryZooKeeper()
    execute(ensemble.connect(), brokers.register(1, OTHERS))
    with pytest.raises(
        BrokerIdTaken, match=r"taken by the broker at 10\.0\.0\.2.*another --broker-id"
    ):
        execute(ensemble.connect(), brokers.register(1, MINE))


def test_the_same_directorys_earlier_registration_is_waited_for() -> None:
    ensemble = MemoryZooKeeper()
    dead, session = ensemble.connect(), ensemble.connect()
    rings: list[str] = []
    execute(dead, brokers.register(1, MINE))
    assert not execute(session, brokers.register(1, LATER, lambda: rings.append("gone")))
    assert not rings
    ensemble.expire(dead)
    assert rings == ["gone"]
    assert execute(session, brokers.register(1, LATER))
    assert execute(session, brokers.live()) == {1: replace(LATER, epoch=2)}


def test_registering_ends_well_whichever_reply_is_lost() -> None:
    for ensemble, session in every_loss(most=12):
        registered = execute(session, brokers.register(1, MINE))
        assert registered == replace(MINE, epoch=1)
        assert execute(ensemble.connect(), brokers.live()) == {1: registered}


def test_a_broker_that_dies_at_any_step_is_registered_or_not_and_the_next_is_in_a_later_epoch() -> (
    None
):
    for step in range(ENOUGH):
        ensemble = MemoryZooKeeper()
        dead, session = ensemble.connect(), ensemble.connect()
        alive = Steps(dead).run_until(brokers.register(1, MINE), step)
        was = execute(session, brokers.live())
        ensemble.expire(dead)
        registered = execute(session, brokers.register(1, LATER))
        assert registered is not None
        assert registered.epoch == 1 + max((each.epoch for each in was.values()), default=0)
        if not alive:
            assert was
            return
    pytest.fail("register does not end")


def test_what_was_decided_about_an_earlier_incarnation_is_refused() -> None:
    ensemble = MemoryZooKeeper()
    dead, session = ensemble.connect(), ensemble.connect()
    first = execute(dead, brokers.register(1, MINE))
    assert first is not None
    assert execute(session, Multi((brokers.is_in_epoch(1, first.epoch),))) == [None]
    ensemble.expire(dead)
    assert execute(session, Multi((brokers.is_in_epoch(1, first.epoch),))) == [None]
    execute(session, brokers.register(1, LATER))
    with pytest.raises(MultiFailed):
        execute(session, Multi((brokers.is_in_epoch(1, first.epoch),)))


def test_a_watch_fires_when_a_broker_comes_or_goes_even_the_first() -> None:
    ensemble = MemoryZooKeeper()
    observer, one, two = ensemble.connect(), ensemble.connect(), ensemble.connect()
    rings: list[str] = []
    acts: tuple[Callable[[], object], ...] = (
        lambda: execute(one, brokers.register(1, MINE)),
        lambda: execute(two, brokers.register(2, OTHERS)),
        lambda: ensemble.expire(one),
    )
    for act in acts:
        rings.clear()
        execute(observer, brokers.live(lambda: rings.append("!")))
        act()
        assert rings
    assert list(execute(observer, brokers.live())) == [2]


def test_a_broker_that_leaves_is_told_to_the_others_whichever_reply_is_lost() -> None:
    for executed in (False, True):
        for lost in range(ENOUGH):
            ensemble = MemoryZooKeeper()
            session, observer = ensemble.connect(), ensemble.connect()
            mine = execute(session, brokers.register(1, MINE))
            assert mine is not None
            rings: list[str] = []
            execute(observer, brokers.live(lambda rings=rings: rings.append("!")))  # type: ignore[misc]
            steps = Steps(session)
            assert steps.run(brokers.leave(1, mine), lost, executed=executed)
            assert rings
            assert execute(observer, brokers.live()) == {1: replace(mine, leaving=True)}
            if steps.taken <= lost:
                break
        else:
            pytest.fail("leave does not end")


def test_a_broker_that_is_not_registered_any_more_does_not_leave() -> None:
    ensemble = MemoryZooKeeper()
    dead, session = ensemble.connect(), ensemble.connect()
    mine = execute(dead, brokers.register(1, MINE))
    assert mine is not None
    ensemble.expire(dead)
    assert not execute(session, brokers.leave(1, mine))
    later = execute(session, brokers.register(1, LATER))
    assert not execute(session, brokers.leave(1, mine))
    assert execute(session, brokers.live()) == {1: later}


def test_nodes_that_no_broker_wrote_are_passed_over() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, brokers.register(10, OTHERS))
    execute(session, brokers.register(9, MINE))
    for name in ("controller", "3", "-1", "²"):
        write(session, f"{paths.BROKERS}/{name}", b"not a registration")
    assert list(execute(session, brokers.live()).items()) == [
        (9, replace(MINE, epoch=1)),
        (10, replace(OTHERS, epoch=1)),
    ]


def test_followers_fetch_at_the_internal_listener_if_there_is_one() -> None:
    assert MINE.address_for_replicas() == "10.0.0.1:9000"
    both = {"client": "localhost:9000", "internal": "broker-1:9000"}
    assert Registration(both, "n").address_for_replicas() == "broker-1:9000"
    assert Registration({}, "n").address_for_replicas() is None


def test_a_new_topic_gets_the_most_replicas_that_a_live_broker_asks_for() -> None:
    live = {1: MINE, 2: Registration({}, "n", default_replicas=3)}
    assert brokers.default_replicas(live) == 3
    assert brokers.default_replicas({1: MINE}) == brokers.default_replicas({}) == 1


def test_the_next_incarnation_of_a_broker_does_not_leave_in_place_of_the_one_that_was_seen() -> (
    None
):
    ensemble = MemoryZooKeeper()
    dead, session = ensemble.connect(), ensemble.connect()
    mine = execute(dead, brokers.register(1, MINE))
    assert mine is not None
    recipe = brokers.leave(1, mine)
    operation = next(recipe)
    while not isinstance(operation, Multi):
        operation = take_step(session, recipe, operation)
    ensemble.expire(dead)
    later = execute(session, brokers.register(1, LATER))
    assert not execute(session, going_on(recipe, operation))
    assert execute(session, brokers.live()) == {1: later}
