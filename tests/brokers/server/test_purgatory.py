"""Requests that wait: who is completed, when, and what they cost."""

import random
from typing import cast

import pytest

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.replication.partition import Partition, Session
from folkmoot.brokers.server.fetch_sessions import ConsumerSession, FetchSessions
from folkmoot.brokers.server.purgatory import DelayedFetch, Purgatory, Quota, Request, Response
from folkmoot.protocol.errors import Overloaded
from folkmoot.protocol.messages import FetchEntry
from tests.seeds import new_seed

ALL = 10**9


class Watched:
    """What of a partition its sessions see."""

    def __init__(self) -> None:
        self.sessions: dict[Session, None] = {}

    def commit(self, size: int) -> None:
        for session in self.sessions:
            session.committed(cast(Partition, self), size)


class Bench:
    """A purgatory, with the rooms of all who wait there, and three partitions."""

    def __init__(self, watches: Quota | None = None, delayed: Quota | None = None) -> None:
        self.purgatory = Purgatory(delayed)
        self.sessions = FetchSessions(watches)
        self.a, self.b, self.c = Watched(), Watched(), Watched()

    def session(self, peer: bytes, *partitions: Watched) -> ConsumerSession:
        session = ConsumerSession(self.purgatory, peer, 0.0)
        for each in partitions:
            session.watch(cast(Partition, each), FetchEntry("t", "id", 0, 0, 0, 1))
        return session

    def delay(
        self,
        deadline: float,
        missing: int,
        partitions: tuple[Watched, ...],
        name: object,
        peer: bytes = b"peer",
    ) -> None:
        session = self.session(peer, *partitions)
        session.missing = missing

        def answer(delayed: DelayedFetch, now: Now) -> Response:
            self.sessions.release(session)
            return Response(delayed.request.body)

        try:
            self.purgatory.require_room(peer)
            self.sessions.require_room(session)
        except Overloaded:
            self.sessions.release(session)
            raise
        session.delay(Request(peer, 1, name), deadline, answer)

    def taken(self, now: float, most: int = ALL) -> list[object]:
        """Those completed, which are not kept."""
        answers = [each.complete(Now(now, 0)) for each in self.purgatory.take_completed(now, most)]
        return [None if each is None else each.body for each in answers]


def test_a_fetch_is_completed_when_enough_bytes_came_to_its_partitions() -> None:
    bench = Bench()
    bench.delay(10.0, 100, (bench.a, bench.b), "r")
    bench.a.commit(60)
    bench.c.commit(1_000)
    assert not bench.taken(0.0)
    bench.b.commit(40)
    assert bench.purgatory.next_deadline() == float("-inf")
    assert bench.taken(0.0) == ["r"]
    assert len(bench.purgatory) == 0
    assert not bench.taken(99.0)


def test_a_fetch_is_completed_at_its_deadline_and_not_before() -> None:
    bench = Bench()
    bench.delay(10.0, 1, (bench.a,), "late")
    bench.delay(5.0, 1, (bench.a,), "early")
    assert bench.purgatory.next_deadline() == 5.0
    assert not bench.taken(4.9)
    assert bench.taken(5.0) == ["early"]
    assert bench.purgatory.next_deadline() == 10.0


def test_one_append_completes_every_fetch_of_the_partition_once() -> None:
    bench = Bench()
    for number in range(3):
        bench.delay(10.0, 1, (bench.a, bench.b), number)
    bench.a.commit(1)
    bench.b.commit(1)
    assert bench.taken(0.0) == [0, 1, 2]


def test_no_more_are_taken_at_a_time_than_one_turn_is_to_answer() -> None:
    bench = Bench()
    for number in range(5):
        bench.delay(10.0, 1, (bench.a,), number)
    assert bench.taken(10.0, most=3) == [0, 1, 2]
    assert bench.purgatory.next_deadline() == float("-inf")
    assert bench.taken(10.0, most=3) == [3, 4]


def test_more_watches_than_the_limit_are_refused_and_room_returns_when_fetches_leave() -> None:
    bench = Bench(watches=Quota(10, 4))
    bench.delay(1.0, 1, (bench.a, bench.b), "r")
    bench.delay(9.0, 1, (bench.a, bench.b), "s")
    with pytest.raises(Overloaded):
        bench.delay(1.0, 1, (bench.a,), "t")
    assert bench.taken(1.0) == ["r"]
    bench.delay(1.0, 1, (bench.a,), "t")


def test_one_peer_takes_neither_the_watches_nor_the_waits_of_all() -> None:
    bench = Bench(watches=Quota(3, 100), delayed=Quota(2, 100))
    bench.delay(9.0, 1, (bench.a, bench.b), "r", b"glutton")
    with pytest.raises(Overloaded, match="partitions"):
        bench.delay(9.0, 1, (bench.a, bench.b), "s", b"glutton")
    bench.delay(9.0, 1, (bench.a,), "s", b"glutton")
    with pytest.raises(Overloaded, match="requests"):
        bench.delay(9.0, 1, (), "t", b"glutton")
    bench.delay(9.0, 1, (bench.a, bench.b), "u", b"another")


def test_what_is_kept_of_one_peer_s_fetch_does_not_go_for_what_another_may_not_have() -> None:
    bench = Bench(watches=Quota(2, 100))
    kept = bench.session(b"modest", bench.a)
    assert bench.sessions.keep(kept, 7, 99.0)
    with pytest.raises(Overloaded):
        bench.delay(9.0, 1, (bench.a, bench.b, bench.c), "r", b"glutton")
    assert bench.sessions.resume(b"modest", 7) is kept


def test_completed_fetches_leave_nothing_behind_even_with_far_deadlines() -> None:
    bench = Bench()
    for number in range(10_000):
        bench.delay(3_600.0 + number, 1, (bench.a,), number)
        bench.a.commit(1)
        bench.taken(0.0)
    assert len(bench.purgatory._timers) < 100
    assert not bench.a.sessions


def test_random_histories_agree_with_a_list_that_is_searched() -> None:
    seed = new_seed()
    rng = random.Random(seed)
    bench, now = Bench(delayed=Quota(ALL, ALL)), 0.0
    deadlines, missing, watched = dict[int, float](), dict[int, int](), dict[int, set[Watched]]()
    for number in range(3_000):
        step = rng.random()
        if step < 0.5:
            partitions = tuple(rng.sample((bench.a, bench.b, bench.c), rng.randint(1, 3)))
            deadlines[number], missing[number] = now + rng.random() * 20, rng.randint(1, 30)
            watched[number] = set(partitions)
            bench.delay(deadlines[number], missing[number], partitions, number)
        elif step < 0.8:
            partition, length = rng.choice((bench.a, bench.b, bench.c)), rng.randint(1, 20)
            partition.commit(length)
            for each in deadlines:
                missing[each] -= length if partition in watched[each] else 0
        else:
            now += rng.random() * 5
            due = {each for each in deadlines if missing[each] <= 0 or deadlines[each] <= now}
            assert set(bench.taken(now)) == due
            for each in due:
                del deadlines[each]
    assert {each.request.body for each in bench.purgatory.take_all()} == deadlines.keys()
