"""Broker registrations: mine, my own dead incarnation's, somebody else's."""

import pytest

from folkmoot.coordination import brokers, paths
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.protocol.errors import BrokerIdTaken
from tests.coordination.losses import every_loss, write
from tests.memory_zookeeper import MemoryZooKeeper

MINE = Registration({"client": "10.0.0.1:9000"}, "nonce-1", "directory-1")
LATER = Registration({"client": "10.0.0.1:9001"}, "nonce-2", "directory-1")
OTHERS = Registration({"client": "10.0.0.2:9000"}, "nonce-3", "directory-2")


def test_a_registration_lasts_as_long_as_its_session() -> None:
    ensemble = MemoryZooKeeper()
    session, observer = ensemble.connect(), ensemble.connect()
    assert execute(session, brokers.register(1, MINE))
    assert execute(observer, brokers.live()) == {1: MINE}
    assert execute(observer, brokers.read(1)) == MINE
    ensemble.expire(session)
    assert execute(observer, brokers.live()) == {}
    assert execute(observer, brokers.read(1)) is None


def test_registering_twice_is_registering_once() -> None:
    session = MemoryZooKeeper().connect()
    assert execute(session, brokers.register(1, MINE))
    assert execute(session, brokers.register(1, MINE))


def test_an_id_that_another_broker_has_is_refused_by_its_address() -> None:
    ensemble = MemoryZooKeeper()
    execute(ensemble.connect(), brokers.register(1, OTHERS))
    with pytest.raises(BrokerIdTaken, match=r"broker id 1 is taken by the broker at 10\.0\.0\.2"):
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
    assert execute(session, brokers.live()) == {1: LATER}


def test_registering_ends_well_whichever_reply_is_lost() -> None:
    for ensemble, session in every_loss(most=5):
        assert execute(session, brokers.register(1, MINE))
        assert execute(ensemble.connect(), brokers.live()) == {1: MINE}


def test_a_watch_fires_when_a_broker_comes_or_goes_even_the_first() -> None:
    ensemble = MemoryZooKeeper()
    observer, one, two = ensemble.connect(), ensemble.connect(), ensemble.connect()
    rings: list[str] = []
    for act in (
        lambda: execute(one, brokers.register(1, MINE)),
        lambda: execute(two, brokers.register(2, OTHERS)),
        lambda: ensemble.expire(one),
    ):
        rings.clear()
        execute(observer, brokers.live(lambda: rings.append("!")))
        act()
        assert rings
    assert list(execute(observer, brokers.live())) == [2]


def test_nodes_that_no_broker_wrote_are_passed_over() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, brokers.register(10, OTHERS))
    execute(session, brokers.register(9, MINE))
    for name in ("controller", "3", "-1", "²"):
        write(session, f"{paths.BROKERS}/{name}", b"not a registration")
    assert list(execute(session, brokers.live()).items()) == [(9, MINE), (10, OTHERS)]
