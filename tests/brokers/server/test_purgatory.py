"""Requests that wait: who is completed, when, and what they cost."""

import random

import pytest

from folkmoot.brokers.server.fetch_sessions import FetchSession, FetchSessions, Quota
from folkmoot.brokers.server.purgatory import Purgatory, Request
from folkmoot.protocol.errors import Overloaded
from folkmoot.protocol.messages import FetchEntry
from folkmoot.protocol.records import TopicPartition
from tests.seeds import new_seed

A, B, C = (TopicPartition("t", number) for number in range(3))
ALL = 10**9


def delay(
    purgatory: Purgatory,
    deadline: float,
    missing: int,
    partitions: tuple[TopicPartition, ...],
    name: object,
    peer: bytes = b"peer",
) -> None:
    session = FetchSession(peer, 0.0)
    session.name(FetchEntry(each.topic, "id", each.partition, 0, 0, 1) for each in partitions)
    purgatory.delay_fetch(Request(peer, 1, name), session, deadline, missing)


def taken(purgatory: Purgatory, now: float, most: int = ALL) -> list[object]:
    """Those completed, which are not kept."""
    completed = purgatory.take_completed(now, most)
    for each in completed:
        purgatory.sessions.release(each.session)
    return [each.request.body for each in completed]


def test_a_fetch_is_completed_when_enough_bytes_came_to_its_partitions() -> None:
    purgatory = Purgatory()
    delay(purgatory, 10.0, 100, (A, B), "r")
    purgatory.sessions.appended(A, 60)
    purgatory.sessions.appended(C, 1_000)
    assert not taken(purgatory, 0.0)
    purgatory.sessions.appended(B, 40)
    assert purgatory.next_deadline() == float("-inf")
    assert taken(purgatory, 0.0) == ["r"]
    assert len(purgatory) == 0
    assert not taken(purgatory, 99.0)


def test_a_fetch_is_completed_at_its_deadline_and_not_before() -> None:
    purgatory = Purgatory()
    delay(purgatory, 10.0, 1, (A,), "late")
    delay(purgatory, 5.0, 1, (A,), "early")
    assert purgatory.next_deadline() == 5.0
    assert not taken(purgatory, 4.9)
    assert taken(purgatory, 5.0) == ["early"]
    assert purgatory.next_deadline() == 10.0


def test_one_append_completes_every_fetch_of_the_partition_once() -> None:
    purgatory = Purgatory()
    for number in range(3):
        delay(purgatory, 10.0, 1, (A, B), number)
    purgatory.sessions.appended(A, 1)
    purgatory.sessions.appended(B, 1)
    assert taken(purgatory, 0.0) == [0, 1, 2]


def test_no_more_are_taken_at_a_time_than_one_turn_is_to_answer() -> None:
    purgatory = Purgatory()
    for number in range(5):
        delay(purgatory, 10.0, 1, (A,), number)
    assert taken(purgatory, 10.0, most=3) == [0, 1, 2]
    assert purgatory.next_deadline() == float("-inf")
    assert taken(purgatory, 10.0, most=3) == [3, 4]


def test_a_changed_topic_completes_all_who_wait_on_it() -> None:
    purgatory = Purgatory()
    delay(purgatory, 10.0, 1_000, (A, C), "a")
    delay(purgatory, 10.0, 1_000, (TopicPartition("u", 0),), "u")
    purgatory.sessions.topic_changed("t")
    assert taken(purgatory, 0.0) == ["a"]


def test_more_watches_than_the_limit_are_refused_and_room_returns_when_fetches_leave() -> None:
    purgatory = Purgatory()
    purgatory.sessions = FetchSessions(purgatory._complete, Quota(10, 4))
    delay(purgatory, 1.0, 1, (A, B), "r")
    delay(purgatory, 9.0, 1, (A, B), "s")
    with pytest.raises(Overloaded):
        delay(purgatory, 1.0, 1, (A,), "t")
    assert taken(purgatory, 1.0) == ["r"]
    delay(purgatory, 1.0, 1, (A,), "t")


def test_one_peer_takes_neither_the_watches_nor_the_waits_of_all() -> None:
    purgatory = Purgatory(delayed=Quota(2, 100))
    purgatory.sessions = FetchSessions(purgatory._complete, Quota(3, 100))
    delay(purgatory, 9.0, 1, (A, B), "r", b"glutton")
    with pytest.raises(Overloaded, match="partitions"):
        delay(purgatory, 9.0, 1, (A, B), "s", b"glutton")
    delay(purgatory, 9.0, 1, (A,), "s", b"glutton")
    with pytest.raises(Overloaded, match="requests"):
        delay(purgatory, 9.0, 1, (), "t", b"glutton")
    delay(purgatory, 9.0, 1, (A, B), "u", b"another")


def test_what_is_kept_of_one_peer_s_fetch_does_not_go_for_what_another_may_not_have() -> None:
    purgatory = Purgatory()
    purgatory.sessions = sessions = FetchSessions(purgatory._complete, Quota(2, 100))
    kept = FetchSession(b"modest", 0.0)
    kept.name([FetchEntry("t", "id", 0, 0, 0, 1)])
    assert sessions.keep(kept, 7, 99.0)
    with pytest.raises(Overloaded):
        delay(purgatory, 9.0, 1, (A, B, C), "r", b"glutton")
    assert sessions.resume(b"modest", 7) is kept


def test_completed_fetches_leave_nothing_behind_even_with_far_deadlines() -> None:
    purgatory = Purgatory()
    for number in range(10_000):
        delay(purgatory, 3_600.0 + number, 1, (A,), number)
        purgatory.sessions.appended(A, 1)
        taken(purgatory, 0.0)
    assert len(purgatory._timers) < 100
    assert not purgatory.sessions._watching


def test_random_histories_agree_with_a_list_that_is_searched() -> None:
    seed = new_seed()
    rng = random.Random(seed)
    purgatory, now = Purgatory(), 0.0
    purgatory._delayed = Quota(ALL, ALL)
    deadlines, missing, watched = dict[int, float](), dict[int, int](), dict[int, set[object]]()
    for number in range(3_000):
        step = rng.random()
        if step < 0.5:
            partitions = tuple(rng.sample((A, B, C), rng.randint(1, 3)))
            deadlines[number], missing[number] = now + rng.random() * 20, rng.randint(1, 30)
            watched[number] = set(partitions)
            delay(purgatory, deadlines[number], missing[number], partitions, number)
        elif step < 0.8:
            partition, length = rng.choice((A, B, C)), rng.randint(1, 20)
            purgatory.sessions.appended(partition, length)
            for each in deadlines:
                missing[each] -= length if partition in watched[each] else 0
        else:
            now += rng.random() * 5
            due = {each for each in deadlines if missing[each] <= 0 or deadlines[each] <= now}
            assert set(taken(purgatory, now)) == due
            for each in due:
                del deadlines[each]
    assert {each.request.body for each in purgatory.take_all()} == deadlines.keys()
