"""Requests that wait: who is woken, when, and what they cost."""

import random

import pytest

from folkmoot.brokers.server.purgatory import Parked, ParkedRequests
from folkmoot.protocol.errors import Overloaded
from folkmoot.protocol.messages import FetchEntry
from folkmoot.protocol.records import TopicPartition
from tests.seeds import new_seed

A, B, C = (TopicPartition("t", number) for number in range(3))


def park(
    waiting: ParkedRequests,
    deadline: float,
    missing: int,
    partitions: tuple[TopicPartition, ...],
    name: object,
) -> None:
    parked = Parked(0.0)
    parked.name(FetchEntry(each.topic, "id", each.partition, 0, 0, 1) for each in partitions)
    waiting.park(parked, deadline, missing, name)


def taken(waiting: ParkedRequests, now: float) -> list[object]:
    """Those woken, which are not kept."""
    woken = waiting.take_woken(now)
    for parked in woken:
        waiting.release(parked)
    return [each.request for each in woken]


def test_a_request_is_woken_when_enough_bytes_came_to_its_partitions() -> None:
    waiting = ParkedRequests()
    park(waiting, 10.0, 100, (A, B), "r")
    waiting.appended(A, 60)
    waiting.appended(C, 1_000)
    assert not taken(waiting, 0.0)
    waiting.appended(B, 40)
    assert waiting.next_deadline() == float("-inf")
    assert taken(waiting, 0.0) == ["r"]
    assert len(waiting) == 0
    assert not taken(waiting, 99.0)


def test_a_request_is_woken_at_its_deadline_and_not_before() -> None:
    waiting = ParkedRequests()
    park(waiting, 10.0, 1, (A,), "late")
    park(waiting, 5.0, 1, (A,), "early")
    assert waiting.next_deadline() == 5.0
    assert not taken(waiting, 4.9)
    assert taken(waiting, 5.0) == ["early"]
    assert waiting.next_deadline() == 10.0


def test_one_append_wakes_every_request_for_the_partition_once() -> None:
    waiting = ParkedRequests()
    for number in range(3):
        park(waiting, 10.0, 1, (A, B), number)
    waiting.appended(A, 1)
    waiting.appended(B, 1)
    assert taken(waiting, 0.0) == [0, 1, 2]


def test_a_disturbed_partition_wakes_all_who_wait_on_it() -> None:
    waiting = ParkedRequests()
    park(waiting, 10.0, 1_000, (A,), "a")
    park(waiting, 10.0, 1_000, (C,), "c")
    waiting.disturb([A, B])
    assert taken(waiting, 0.0) == ["a"]


def test_more_than_the_limit_is_refused_and_room_returns_when_requests_leave() -> None:
    waiting = ParkedRequests(max_watches=4)
    park(waiting, 1.0, 1, (A, B), "r")
    park(waiting, 9.0, 1, (A, B), "s")
    with pytest.raises(Overloaded):
        park(waiting, 1.0, 1, (A,), "t")
    assert taken(waiting, 1.0) == ["r"]
    park(waiting, 1.0, 1, (A,), "t")


def test_woken_requests_leave_nothing_behind_even_with_far_deadlines() -> None:
    waiting = ParkedRequests()
    for number in range(10_000):
        park(waiting, 3_600.0 + number, 1, (A,), number)
        waiting.appended(A, 1)
        taken(waiting, 0.0)
    assert len(waiting._timers) < 100
    assert not waiting._by_partition


def test_random_histories_agree_with_a_list_that_is_searched() -> None:
    seed = new_seed()
    rng = random.Random(seed)
    waiting, now = ParkedRequests(), 0.0
    deadlines, missing, watched = dict[int, float](), dict[int, int](), dict[int, set[object]]()
    for number in range(3_000):
        step = rng.random()
        if step < 0.5:
            partitions = tuple(rng.sample((A, B, C), rng.randint(1, 3)))
            deadlines[number], missing[number] = now + rng.random() * 20, rng.randint(1, 30)
            watched[number] = set(partitions)
            park(waiting, deadlines[number], missing[number], partitions, number)
        elif step < 0.8:
            partition, length = rng.choice((A, B, C)), rng.randint(1, 20)
            waiting.appended(partition, length)
            for each in deadlines:
                missing[each] -= length if partition in watched[each] else 0
        else:
            now += rng.random() * 5
            due = {each for each in deadlines if missing[each] <= 0 or deadlines[each] <= now}
            assert set(taken(waiting, now)) == due
            for each in due:
                del deadlines[each]
    assert {each.request for each in waiting.take_all()} == deadlines.keys()
