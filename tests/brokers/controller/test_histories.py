"""Controllers through hostile histories, which follow from the code: by default 40.

FOLKMOOT_SEED=n replays one history and prints its end; FOLKMOOT_HISTORIES=n runs so many.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from types import SimpleNamespace
from weakref import ref

import pytest
from msgspec.structs import replace

from folkmoot.brokers.controller import controller
from folkmoot.brokers.controller.cluster_reader import ClusterReader
from folkmoot.brokers.controller.leadership import REBALANCE_PERIOD, Leadership
from folkmoot.coordination import brokers, partition_states, paths
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.partition_states import StateWrite, TopicIdPartition
from folkmoot.coordination.zookeeper import operations
from folkmoot.coordination.zookeeper.operations import Check, Recipe, Set
from tests.brokers.controller.simulated import ClusterHistory
from tests.simulation.frame import expect_violation, live_through, live_through_many, silence

__all__ = ["silence"]

HISTORIES = int(os.environ.get("FOLKMOOT_HISTORIES", "40"))
SEEDS_FOR_MUTATIONS = 150


@pytest.mark.timeout(0)
def test_no_two_lead_in_one_epoch_no_zombie_writes_and_all_are_led_in_the_end() -> None:
    live_through_many(ClusterHistory, HISTORIES)


def test_the_same_seed_is_the_same_history() -> None:
    for seed in range(3):
        first, second = (live_through(ClusterHistory(seed)) for _ in range(2))
        assert first.world.hash() == second.world.hash()


def test_a_history_that_is_over_is_let_go() -> None:
    history = ref(live_through(ClusterHistory(1)))
    gc.collect()
    assert history() is None, "the next hundred thousand would have no room"


@contextmanager
def mutated(mutation: Callable[[pytest.MonkeyPatch], None]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        yield


# -- that it would be seen ----------------------------------------------------------------------------


def _no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    def unguarded(_: controllers.Controller) -> Check:
        return Check(paths.CONTROLLER_EPOCH)

    monkeypatch.setattr(controllers, "is_in_epoch", unguarded)


def _no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def unconditional(path: str, data: bytes, _version: int) -> Set:
        return Set(path, data)

    names = {**vars(operations), "Set": unconditional}
    monkeypatch.setattr(partition_states, "zk", SimpleNamespace(**names))


def _anybody_can_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    def alive(self: Leadership, broker: int, *_: object) -> bool:
        return broker in self._registered_since

    monkeypatch.setattr(Leadership, "_can_lead", alive)


def _ends_when_one_is_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Leadership._ending

    def ending(self: Leadership, partition: TopicIdPartition) -> object:
        topic, known = self._topics.get(partition.topic_id), self._states.get(partition)
        move = None if topic is None else topic.reassignments.get(partition.partition)
        found = real(self, partition)
        if found is not None or move is None or known is None or not known.state.active:
            return found
        stay = [each for each in move.target if each in known.state.isr]
        if known.state.leader not in stay:
            return None
        ended = known.state.designate(known.state.leader, stay, self._controller_epoch)
        return move, StateWrite(ended, known.partition_epoch)

    monkeypatch.setattr(Leadership, "_ending", ending)


def _never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leadership, "_ending", lambda *_: None)


def _keeps_a_leader_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Leadership._ending

    def ending(self: Leadership, partition: TopicIdPartition) -> object:
        found, known = real(self, partition), self._states.get(partition)
        if found is None or known is None:
            return None
        move, write = found
        return move, replace(write, state=replace(write.state, leader=known.state.leader))

    monkeypatch.setattr(Leadership, "_ending", ending)


def _does_not_read_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_reader: ClusterReader) -> Recipe[None]:
        yield from ()

    monkeypatch.setattr(ClusterReader, "_read_deletions", nothing)


def _never_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def later(self: Leadership, now: float, *_: object) -> None:
        self._rebalance_at = now + REBALANCE_PERIOD

    monkeypatch.setattr(Leadership, "_rebalance", later)


def _does_not_look_at_brokers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(_watch: object = None) -> Recipe[dict[int, Registration]]:
        return live()

    live = brokers.live
    monkeypatch.setattr(brokers, "live", once)
    monkeypatch.setattr(controller, "READ_BROKERS_EVERY", inf)


@pytest.mark.parametrize(
    "mutation",
    [
        _no_guard,
        _no_version,
        _anybody_can_lead,
        _ends_when_one_is_in_sync,
        _never_ends,
        _keeps_a_leader_that_leaves,
        _does_not_read_deletions,
        _never_gives_back,
        _does_not_look_at_brokers_again,
    ],
)
def test_a_rule_that_is_removed_is_missed(mutation: Callable[[pytest.MonkeyPatch], None]) -> None:
    expect_violation(ClusterHistory, partial(mutated, mutation), SEEDS_FOR_MUTATIONS)
