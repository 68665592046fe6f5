"""Rounds of records under one name: whichever attempts die, hang or run side by side, each is written once.

What is real: the node in ZooKeeper, and what brokers say to batches. What is played: the attempts at a
round, step by step in any order, the network, in which batches lie as long as they like, and leaders
that die with what is not committed.
"""

import random
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest

from folkmoot.brokers.storage.producer_state import ProducerState
from folkmoot.coordination.producer_takeovers import PartitionStart, claim_name, note_starts
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.protocol.batch_header import BatchHeader, following_sequence
from folkmoot.protocol.errors import FolkmootError
from tests.memory_zookeeper import MemoryZooKeeper
from tests.seeds import new_seed

PARTITIONS = 3


def _header(producer: int, epoch: int, first: int, count: int) -> BatchHeader:
    return BatchHeader(
        *(0, 100, 0, 0, 0, 1 << 5, count - 1, count, 0, 0, producer, epoch, first, 0)
    )


class Partition:
    """A log of a leader and of one follower, which has what is committed."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.batches: list[tuple[BatchHeader, int]] = []
        self.committed = 0
        self.leader_epoch = 0
        self.state = ProducerState(10)

    def append(self, header: BatchHeader, records: list[int]) -> int:
        """→ the end that has to be committed before the batch is acknowledged."""
        original = self.state.check(header, {})
        if original is not None:
            return original + len(records)
        self.state.update(header, len(self.records))
        self.batches.append((header, len(self.records)))
        self.records += records
        return len(self.records)

    def fail_over(self) -> None:
        self.leader_epoch += 1
        del self.records[self.committed :]
        self.batches = [each for each in self.batches if each[1] < self.committed]
        self.state = ProducerState(10)
        for header, offset in self.batches:
            self.state.update(header, offset)


class World:
    """Partitions, a ZooKeeper, and batches on their way."""

    def __init__(self, seed: int, *, shuffles: bool) -> None:
        self.shuffles = shuffles
        self.chance = random.Random(seed)
        self.partitions = [Partition() for _ in range(PARTITIONS)]
        self.session = MemoryZooKeeper().connect()
        self.on_their_way: list[tuple[int, BatchHeader, list[int]]] = []

    def rows(self, number: int) -> list[list[int]]:
        """Those of a round, by partition; `shuffles`: in another order whenever it is asked."""
        chance = random.Random(f"rows {number}")
        found = [
            [number * 100 + at for at in range(chance.choice((0, 1, 5, 20)))]
            for _ in range(PARTITIONS)
        ]
        if self.shuffles:
            for each in found:
                self.chance.shuffle(each)
        return found

    def attempt(self, number: int, me: str) -> Generator[None, None, None]:
        """Write a round, one step at a time. Raises FolkmootError where it is refused."""
        taken = execute(self.session, claim_name("q", number, me))
        yield
        found: list[PartitionStart] = []
        for partition in self.partitions:
            while partition.committed < len(partition.records):
                yield
            next_sequence = partition.state.next_of(taken.producer_id)[1]
            found.append(PartitionStart(next_sequence, len(partition.records)))
            yield
        noted = execute(self.session, note_starts("q", me, "t", found))
        yield
        places = list(enumerate(zip(self.rows(number), noted.starts, found, strict=True)))
        self.chance.shuffle(places)
        for place, (rows, begins, (sequence, end)) in places:
            written = self.partitions[place].records[begins.offset : end]
            left = rows[len(written) :] if rows[: len(written)] == written else rows
            while left:
                count = self.chance.randrange(1, 8)
                batch = left[:count]
                header = _header(taken.producer_id, taken.epoch, sequence, len(batch))
                if self.chance.random() < 0.2:  # the first time it lies in a buffer on the way
                    self.on_their_way.append((place, header, batch))
                    yield
                partition, asked = self.partitions[place], -1
                while asked < partition.leader_epoch or partition.committed < end:
                    if asked < partition.leader_epoch:  # also of a leader that may have lost it
                        asked, end = partition.leader_epoch, partition.append(header, batch)
                    yield
                left, sequence = left[len(batch) :], following_sequence(sequence, len(batch))
                yield

    def something_else_happens(self) -> None:
        partition = self.chance.choice(self.partitions)
        if self.chance.random() < 0.5:
            partition.committed = len(partition.records)
        if self.chance.random() < 0.03:
            partition.fail_over()
        if self.on_their_way and self.chance.random() < 0.1:
            late = self.on_their_way.pop(self.chance.randrange(len(self.on_their_way)))
            with suppress(FolkmootError):
                self.partitions[late[0]].append(*late[1:])


def _live(seed: int, *, shuffles: bool, rounds: int = 6) -> World:
    world = World(seed, shuffles=shuffles)
    zombies: list[Generator[None, None, None]] = []
    serial = 0
    for number in range(rounds):
        running: dict[str, Generator[None, None, None]] = {}
        is_done = False
        while not is_done:
            world.something_else_happens()
            if not running or (len(running) < 3 and world.chance.random() < 0.02):
                serial += 1
                running[f"a{serial}"] = world.attempt(number, f"a{serial}")
            name = world.chance.choice(list(running))
            if world.chance.random() < 0.02:
                gone = running.pop(name)
                if world.chance.random() < 0.7:
                    zombies.append(gone)  # it is given up, and goes on some time
                continue
            if zombies and world.chance.random() < 0.3:
                _step(zombies, world.chance.choice(zombies))
            try:
                next(running[name])
            except StopIteration:
                is_done = True
            except FolkmootError:
                del running[name]
        zombies += running.values()
    for zombie in list(zombies):
        while zombie in zombies:
            world.something_else_happens()
            _step(zombies, zombie)
    return world


def _step(zombies: list[Generator[None, None, None]], zombie: Any) -> None:
    try:
        next(zombie)
    except (StopIteration, FolkmootError):
        zombies.remove(zombie)


@pytest.mark.parametrize("part", range(4))
def test_every_record_is_once_in_the_log_and_in_order(part: int) -> None:
    first = new_seed()
    for seed in range(first, first + 40):
        world = _live(seed, shuffles=False)
        expected = [
            [record for number in range(6) for record in world.rows(number)[place]]
            for place in range(PARTITIONS)
        ]
        assert [each.records for each in world.partitions] == expected, f"seed {seed}"


@pytest.mark.parametrize("part", range(4))
def test_rows_that_come_in_another_order_are_at_least_once_in_the_log(part: int) -> None:
    first = new_seed()
    for seed in range(first, first + 40):
        world = _live(seed, shuffles=True)
        for place, each in enumerate(world.partitions):
            for number in range(6):
                assert set(world.rows(number)[place]) <= set(each.records), f"seed {seed}"
