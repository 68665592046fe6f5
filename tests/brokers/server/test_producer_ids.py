"""Ids for producers: from memory, in blocks from ZooKeeper, never one twice."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from folkmoot.brokers.jobs.jobs import Lane, Now, at_once
from folkmoot.brokers.server.producer_ids import BLOCK, ProducerIds
from folkmoot.brokers.server.purgatory import Request, Response
from folkmoot.brokers.server.request_table import handle
from folkmoot.coordination import producer_ids
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.protocol.errors import NoProducerId, ZooKeeperUnreachable
from folkmoot.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from tests.brokers.parts import make_handlers, make_logs
from tests.memory_zookeeper import MemoryZooKeeper
from tests.seeds import new_seed


class Counter:
    """What stands in ZooKeeper; `trouble` is raised in place of an answer, the ids taken or not."""

    def __init__(self) -> None:
        self.next = 0
        self.calls = 0
        self.trouble: Exception | None = None
        self.answer_is_lost = False

    def take(self, count: int) -> range:
        self.calls += 1
        if self.trouble is not None and not self.answer_is_lost:
            raise self.trouble
        self.next += count
        if self.trouble is not None:
            raise self.trouble
        return range(self.next - count, self.next)


class Jobs:
    """Jobs that are done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, lane: Lane, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append(lambda: at_once(lane, work, done))

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for job in waiting:
            job()


def test_each_id_is_given_once_and_a_block_costs_one_question() -> None:
    counter = Counter()
    ids = ProducerIds(at_once, counter.take)
    ids.refill()
    assert [ids.next() for _ in range(3 * BLOCK)] == list(range(3 * BLOCK))
    assert counter.calls <= 4


def test_the_next_block_is_taken_before_the_last_id_is_given() -> None:
    counter, jobs = Counter(), Jobs()
    ids = ProducerIds(jobs.submit, counter.take)
    ids.refill()
    jobs.run()
    given = [ids.next() for _ in range(BLOCK - 1)]
    assert len(jobs.waiting) == 1
    jobs.run()
    given += [ids.next() for _ in range(BLOCK)]
    assert given == list(range(2 * BLOCK - 1))


def test_without_ids_it_is_an_error_to_be_repeated_and_zookeeper_is_asked_meanwhile() -> None:
    counter, jobs = Counter(), Jobs()
    ids = ProducerIds(jobs.submit, counter.take)
    for _ in range(3):
        with pytest.raises(NoProducerId, match="is asking ZooKeeper"):
            ids.next()
    assert len(jobs.waiting) == 1, "one question at a time"
    jobs.run()
    assert ids.next() == 0


def test_ids_in_memory_outlast_a_zookeeper_that_is_away() -> None:
    counter = Counter()
    ids = ProducerIds(at_once, counter.take)
    ids.refill()
    counter.trouble = ZooKeeperUnreachable("ZooKeeper does not answer at the moment")
    assert [ids.next() for _ in range(BLOCK)] == list(range(BLOCK))
    with pytest.raises(NoProducerId, match="ZooKeeper does not answer at the moment"):
        ids.next()
    counter.trouble = None
    assert ids.next() == BLOCK


@pytest.mark.parametrize("lost", [False, True], ids=["not taken", "taken, answer lost"])
def test_a_block_whose_taking_failed_is_never_given(lost: bool) -> None:
    counter = Counter()
    ids = ProducerIds(at_once, counter.take)
    counter.trouble, counter.answer_is_lost = ZooKeeperUnreachable("lost"), lost
    with pytest.raises(NoProducerId):
        ids.next()
    counter.trouble = None
    ids.refill()
    assert ids.next() == (BLOCK if lost else 0)


def test_brokers_that_die_at_any_moment_give_no_id_twice() -> None:
    chance = random.Random(new_seed())
    zookeeper = MemoryZooKeeper()
    given: list[int] = []
    for _ in range(20):
        session = zookeeper.connect()

        def take(count: int, session: Any = session) -> range:
            return execute(session, producer_ids.allocate(count), 5.0)

        jobs = Jobs()
        ids = ProducerIds(jobs.submit, take)
        ids.refill()
        for _ in range(chance.randrange(4)):
            if chance.random() < 0.8:
                jobs.run()
            for _ in range(chance.randrange(BLOCK)):
                try:
                    given.append(ids.next())
                except NoProducerId:
                    break
        session.close()
    assert len(set(given)) == len(given)


def test_a_request_is_answered_with_an_id(tmp_path: Path) -> None:
    counter = Counter()
    handlers = make_handlers(make_logs(tmp_path), take_ids=counter.take)
    handlers.producer_ids.refill()
    answers = [
        handle(handlers, Request(b"peer", number, InitProducerIdRequest()), [], Now(0.0, 0))
        for number in range(3)
    ]
    assert answers == [Response(InitProducerIdResponse(number)) for number in range(3)]
