"""Each record once, in order: the sender against brokers' real rules, with all between them failing."""

import random
from collections import Counter
from typing import Any

from folkmoot.producers.appender import Delivery
from folkmoot.protocol.errors import (
    BatchTooLarge,
    DeliveryTimeout,
    FolkmootError,
    OutOfOrderSequence,
    UnknownProducer,
)
from tests.producers.parts import Bench
from tests.producers.unreliable import BROKERS, TOO_LARGE, Cluster

PARTITIONS = 2
AFTER = 10_000
"""So many steps without faults are enough for everything to end."""


class History:
    """Records sent at random through an unreliable cluster, and what must be true at the end."""

    def __init__(self, seed: int, **options: Any) -> None:
        self.chance = random.Random(seed)
        settings: dict[str, Any] = {
            "linger": 0.05,
            "batch_bytes": 200,
            "delivery_timeout": 1e9,
            **options,
        }
        self.bench = Bench(partitions=PARTITIONS, **settings)
        self.bench.sender.grant(range(100, 200))
        self.cluster = Cluster(self.bench, self.chance)
        self.sent: dict[int, list[tuple[bytes, Delivery]]] = {n: [] for n in range(PARTITIONS)}

    def send(self, *, too_large: float = 0.0) -> None:
        burst = self.chance.random() < 0.05
        for _ in range(self.chance.randrange(20 if burst else 3)):
            partition = self.chance.randrange(PARTITIONS)
            value = b"%05d" % len(self.sent[partition]) + bytes(self.chance.randrange(200))
            if self.chance.random() < too_large:
                value = TOO_LARGE
            self.sent[partition].append((value, self.bench.stage(value, partition=partition)))

    def run(self, steps: int = 400, *, too_large: float = 0.0) -> None:
        for _ in range(steps):
            self.bench.now += self.chance.choice([0.0, 0.0, 0.01, 0.3])
            self.send(too_large=too_large)
            if self.chance.random() < 0.02:
                partition = self.chance.randrange(PARTITIONS)
                self.bench.view.leaders[partition] = self.chance.choice(BROKERS)
            if self.chance.random() < 0.03:
                self.cluster.logs[self.chance.randrange(PARTITIONS)].restart(self.chance)
            self.turn()

    def turn(self, *, hurry: bool = False) -> None:
        if hurry or self.chance.random() < 0.5:
            self.bench.take()
        self.bench.sender.expire(self.bench.now)
        self.cluster.ship(hurry=hurry)
        for _ in range(self.chance.randrange(4)):
            self.cluster.step()
        self.bench.settle()

    def end(self) -> None:
        """Let all that is under way come to its end, without further faults."""
        self.cluster.calm = True
        for _ in range(AFTER):
            self.bench.now += 0.3
            self.turn(hurry=True)
            if not self.bench.accumulator.unacknowledged() and not self.cluster.busy:
                return
        raise AssertionError(f"{self.bench.accumulator.unacknowledged()} records never end")

    def check(self, *, lossy: bool = False) -> list[FolkmootError]:
        """Nothing is twice in a log or changes places; what was acknowledged is where it is said to be.

        `lossy`: acknowledged records may be gone. → the errors of those that failed.
        """
        errors = []
        for partition, sent in self.sent.items():
            log = self.cluster.logs[partition].values
            counts = Counter(log)
            assert max(counts.values(), default=1) == 1, f"written twice: {counts.most_common(3)}"
            present = set(log)
            assert log == [value for value, _ in sent if value in present], "out of order"
            for value, delivery in sent:
                error = delivery.exception(0)
                if error is not None:
                    errors.append(error)
                    assert value not in present or not isinstance(error, BatchTooLarge)
                elif not lossy:
                    assert log[delivery.result(0).offset] == value
        return errors


def seeds(count: int) -> list[int]:
    first = random.randrange(2**32)
    return [(first + number) % 2**32 for number in range(count)]


def test_every_record_is_written_once_and_in_order_whatever_is_lost() -> None:
    """Lost answers, requests carried out long after they were given up, brokers restarted at any
    moment, leaders that move, disks that fail: all is delivered, exactly once."""
    for seed in seeds(30):
        print(f"seed {seed}")
        history = History(seed)
        history.run()
        history.end()
        assert history.check() == []
        assert history.bench.sender.counters.epochs_begun == 0


def test_what_expires_or_is_refused_leaves_the_rest_once_and_in_order() -> None:
    """Batches fail while they are in doubt, and for good, so that sequences break: only what failed
    may be missing, and nothing is written twice."""
    epochs = failed = 0
    for seed in seeds(40):
        print(f"seed {seed}")
        history = History(seed, delivery_timeout=2.0)
        history.run(too_large=0.01)
        history.end()
        errors = history.check()
        kinds = (DeliveryTimeout, BatchTooLarge, OutOfOrderSequence, UnknownProducer)
        assert {type(error) for error in errors} <= set(kinds)
        epochs += history.bench.sender.counters.epochs_begun
        failed += len(errors)
    assert epochs > 5
    assert failed > 5


def test_brokers_that_forget_idle_producers_cost_nothing() -> None:
    epochs = 0
    for seed in seeds(15):
        print(f"seed {seed}")
        history = History(seed)
        for _ in range(4):
            history.cluster.calm = False
            history.run(100)
            history.end()
            for log in history.cluster.logs.values():
                log.forget()
            history.run(20)
            history.end()  # an answer lost while a partition begins anew leaves its batches in doubt
        assert history.check() == []
        epochs += history.bench.sender.counters.epochs_begun
    assert epochs > 5


def test_logs_that_lose_their_end_are_continued_once_and_in_order() -> None:
    """A power cut takes acknowledged records; what is written afterwards is not affected, and what
    is in doubt is told, not written twice."""
    for seed in seeds(30):
        print(f"seed {seed}")
        history = History(seed)
        for _ in range(4):
            history.run(80)
            for log in history.cluster.logs.values():
                log.lose_end(history.chance)
        history.end()
        errors = history.check(lossy=True)
        assert {type(error) for error in errors} <= {OutOfOrderSequence, UnknownProducer}
