"""A broker dies at any step of what replicas do: right before a call that changes the disk or a state, or
right behind it, alone or with its machine's power. Nothing acknowledged is lost, and all go on."""

import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from folkmoot.brokers.replication.partition import MAX_LAG
from folkmoot.brokers.replication.shared import Written
from folkmoot.coordination.partition_states import StateWrite, TopicIdPartition
from tests.brokers.batches import read_now, values_of
from tests.brokers.power import NAMES, Power
from tests.brokers.replication.brokers import REPLICAS, Cluster, Node
from tests.seeds import new_seed

CALLS: Final = (
    *("fsync", "fdatasync", "ftruncate", "pwrite", "pwritev", "truncate", "unlink"),
    *("mkdir", "rename", "replace"),
)
NEVER: Final = 10**6
SOME: Final = 6
"""Deaths in the test that is quick; the slow one tries all."""


class Died(BaseException):
    """The process is gone: nothing that it has on the stack is carried out."""


class Fated(Cluster):
    """The victim dies at its step number `at`; `steps` are those that it has taken."""

    def __init__(self, directory: Path) -> None:
        self.victim = 0
        self.at: int | None = None
        self.behind = self.with_power = self.is_dying = False
        self.steps = 0
        self.power: Power | None = None
        super().__init__(directory)

    def doom(self, fate: "Fate") -> None:
        self.victim, self.at, self.behind, self.with_power = fate
        self.steps = 0
        if self.with_power:
            self.power = Power(self.directory / str(self.victim))

    def step(self, call: Callable[[], Any]) -> Any:
        """The victim does something that outlives it."""
        if self.at is None:
            return call()
        self.steps += 1
        is_last = self.at == self.steps - 1
        if is_last and not self.behind:
            self.die()
        outcome = call()
        if is_last:
            self.die()
        return outcome

    def die(self) -> None:
        self.at, self.is_dying = None, True
        raise Died

    def dead(self) -> None:
        """What it had on the stack is gone."""
        if self.is_dying:
            self.is_dying = False
            self.kill(self.victim)

    def flushed(self, fd: int) -> None:
        if self.power is not None:
            self.power.flushed(fd)

    def concerns(self, path: str | Path) -> bool:
        """Whether that is on the victim's disk."""
        return f"{path}/".startswith(f"{self.directory / str(self.victim)}/")

    # -- what the victim is asked to do ---------------------------------------------------------------

    def deliver(self, sender: int, receiver: int, number: int, body: Any) -> None:
        try:
            super().deliver(sender, receiver, number, body)
        except Died:
            if sender == self.victim:
                raise
            self.dead()

    def write(
        self, node: Node, writes: Mapping[TopicIdPartition, StateWrite], done: Written
    ) -> None:
        if node.number != self.victim or self.at is None:
            super().write(node, writes, done)
            return
        [wanted] = writes.values()
        self.writes.append(wanted)
        answer = self.step(lambda: self._written(wanted))
        done({next(iter(writes)): answer})


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def fated(monkeypatch: pytest.MonkeyPatch) -> list[Fated]:
    """Stands between brokers and the system's calls; the cluster that it works for is the last one."""
    clusters: list[Fated] = []

    def between(name: str) -> None:
        real = getattr(os, name)

        def call(what: Any, *args: Any, **kwargs: Any) -> Any:
            cluster = clusters[-1] if clusters else None
            is_flush = name in ("fsync", "fdatasync")
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what
            if cluster is None or not cluster.concerns(path):
                return None if is_flush else real(what, *args, **kwargs)
            if cluster.is_dying:
                raise Died
            if is_flush:
                return cluster.step(lambda: cluster.flushed(what))
            return cluster.step(lambda: real(what, *args, **kwargs))

        monkeypatch.setattr(os, name, call)

    for name in CALLS:
        between(name)
    return clusters


class Story:
    """What is done to three replicas, whoever dies meanwhile, and what was acknowledged."""

    def __init__(self, cluster: Fated, source: random.Random) -> None:
        self.cluster = cluster
        self.source = source
        self.acknowledged: dict[int, bytes] = {}
        self.given_up = 0
        self.numbers = iter(range(10**6))

    def steps(self) -> list[Callable[[], object]]:
        """Segments fill; a leader that is cut off has some that nobody else has; another one leads, and
        the first is cut; records are deleted; one is away until the log begins behind its end."""
        return [
            *[self.write] * 8,
            lambda: self.lead(1),
            lambda: self.cluster.cut.update({(2, 1), (3, 1)}),
            *[lambda: self.write(acks=1)] * 6,
            self.note_and_lose,
            *[self.write] * 4,
            self.cluster.mend,
            *[self.write] * 4,
            lambda: self.delete(0.5),
            self.write,
            lambda: self.lead(3),
            lambda: self.cluster.cut.update({(1, 3)}),
            *[self.write] * 6,
            *[lambda: self.cluster.later(MAX_LAG / 2)] * 3,
            lambda: self.delete(1.0),
            self.cluster.mend,
            self.note,
            *[self.write] * 2,
        ]

    def tell(self) -> None:
        for step in self.steps():
            self.guarded(step)
            self.guarded(lambda: self.cluster.run(4))
            if self.source.random() < 0.3:
                self.restart()
            self.guarded(lambda: self.cluster.later(0.5))
        self.restart()
        self.cluster.at = None
        self.settle()

    def guarded(self, step: Callable[[], object]) -> None:
        cluster = self.cluster
        try:
            step()
        except Died:
            cluster.dead()
            if cluster.power is not None:
                data = cluster.directory / str(cluster.victim)
                left = data.with_name(f"{cluster.victim}-left")
                cluster.power.cut(left, self.source.choice(NAMES), self.source)
                shutil.rmtree(data)
                left.rename(data)
                cluster.power.close()
                cluster.power = None

    def restart(self) -> None:
        cluster = self.cluster
        if cluster.victim not in cluster.nodes:
            cluster.start(cluster.victim)
            cluster.show()

    def leader(self) -> Node | None:
        return self.cluster.nodes.get(self.cluster.state.state.leader)

    def write(self, acks: int = -1) -> None:
        leader, value = self.leader(), b"%d " % next(self.numbers) + self.source.randbytes(400)
        if leader is None or leader.replica.leader is None:
            return
        results = leader.produce(value, acks=acks)
        try:
            self.cluster.run(6)
        finally:
            for result in results:
                if result.error == 0 and acks == -1:
                    self.acknowledged[result.base_offset] = value

    def lead(self, number: int) -> None:
        state = self.cluster.state.state
        if number in state.isr and number in self.cluster.nodes:
            self.cluster.designate(number, *state.isr)
        self.cluster.show()

    def note(self) -> None:
        """Recovery points come onto the disk."""
        for _ in range(3):
            for node in list(self.cluster.nodes.values()):
                node.handlers.flusher.task(node.now)
            self.cluster.now += 31.0

    def note_and_lose(self) -> None:
        """And the leader is replaced before it notices that the others have not fetched for so long."""
        self.note()
        self.lead(2)

    def delete(self, share: float) -> None:
        leader = self.leader()
        if leader is None or leader.replica.leader is None:
            return
        offset = int(leader.log.high_watermark * share)
        results = leader.delete_records(offset)
        try:
            self.cluster.later(0.5)
        finally:
            if results and results[0].error == 0:
                self.given_up = max(self.given_up, offset)

    def settle(self) -> None:
        """Time passes; a leader that has resigned or died is followed by another."""
        cluster = self.cluster
        for _ in range(40):
            state = cluster.state.state
            live = [each for each in state.isr if each in cluster.nodes]
            if live and (state.leader not in cluster.nodes or not state.active):
                cluster.designate(live[0], *live)
            self.guarded(cluster.show)
            self.guarded(lambda: cluster.later(1.0))
            leader = self.leader()
            if leader is None or leader.replica.leader is None:
                continue
            is_even = (
                len(set(cluster.ends())) == 1 == len({leader.log.high_watermark, *cluster.ends()})
            )
            if len(cluster.state.state.isr) == len(cluster.nodes) == 3 and is_even:
                return
        raise AssertionError(f"no peace: {cluster.state}, {cluster.ends()}")

    def check(self) -> None:
        starts = {node.log.log_start for node in self.cluster.nodes.values()}
        assert min(starts) >= self.given_up, "what was deleted is there again"
        for node in self.cluster.nodes.values():
            found: dict[int, bytes | None] = {}
            offset = node.log.log_start
            while offset < node.log.log_end:
                found.update(values_of(read_now(node.log, offset, 1 << 20, committed=False)))
                offset = max(found) + 1
            for offset, value in self.acknowledged.items():
                if offset >= max(starts):
                    assert found.get(offset) == value, f"broker {node.number}, offset {offset}"
            assert not node.log.is_damaged
            assert node.log.failed is None


class Fate(NamedTuple):
    victim: int
    at: int
    behind: bool
    with_power: bool


def die_once(directory: Path, clusters: list[Fated], fate: Fate, seed: int) -> int:
    """Tell the story to its end; → how many steps the victim has taken before it died, if it did."""
    print(f"FOLKMOOT_SEED={seed}: {fate}")
    directory = directory / "-".join(map(str, fate))
    cluster = Fated(directory)
    clusters.append(cluster)
    story = Story(cluster, random.Random(seed))
    cluster.doom(fate)
    story.tell()
    story.check()
    for node in cluster.nodes.values():
        node.logs.close()
    if cluster.power is not None:
        cluster.power.close()
    for link in Path("/proc/self/fd").iterdir():  # what it had open when it died
        with suppress(OSError):
            if link.readlink().is_relative_to(directory):
                os.close(int(link.name))
    shutil.rmtree(directory)
    return cluster.steps


def test_nothing_is_lost_when_a_broker_dies_at_some_step(
    tmp_path: Path, fated: list[Fated]
) -> None:
    seed = new_seed()
    source = random.Random(seed)
    most = die_once(tmp_path, fated, Fate(1, NEVER, False, False), seed)
    assert most > 100
    for _ in range(SOME):
        victim, at = source.choice(REPLICAS), source.randrange(most)
        fate = Fate(victim, at, source.random() < 0.5, source.random() < 0.5)
        die_once(tmp_path, fated, fate, seed)


@pytest.mark.slow
@pytest.mark.parametrize("victim", REPLICAS)
def test_nothing_is_lost_when_a_broker_dies_at_any_step(
    tmp_path: Path, fated: list[Fated], victim: int
) -> None:
    seed = new_seed()
    source = random.Random(seed)
    at, goes_on = 0, True
    while goes_on:
        fate = Fate(victim, at, source.random() < 0.5, source.random() < 0.5)
        at, goes_on = at + 1, die_once(tmp_path, fated, fate, seed) > at
    assert at > 100
