"""When the demo kills a member, when it starts another, and what it waits for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from folkmoot.console.demo.members import SPARK, MemberProcess, Members
from folkmoot.console.demo.store import Result, ResultStore
from folkmoot.console.demo.story import NEWCOMER, Stage, Story
from folkmoot.console.demo.watch import Watch
from folkmoot.protocol.records import TopicPartition

P0, P1, P2 = (TopicPartition("flights", number) for number in range(3))


class Troupe(Members):
    """Members without processes."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "nowhere", "delays", "flights")
        self.killed: list[str] = []
        self.paused: list[str] = []
        for name in ("plain-1", "plain-2", SPARK):
            self.start_plain(name)

    def start_plain(self, name: str) -> None:
        child: Any = None
        self.running[name] = MemberProcess(name, child)

    def pause(self, name: str) -> None:
        self.paused.append(name)

    def resume(self, name: str) -> None:
        self.paused.remove(name)

    def kill(self, name: str) -> None:
        self.killed.append(name)
        del self.running[name]


class Stood:
    """A story at its beginning, with everything that it looks at in the test's hands."""

    def __init__(self, store: ResultStore, directory: Path) -> None:
        self.store = store
        self.troupe = Troupe(directory)
        self.watch = Watch(3)
        self.committed: dict[TopicPartition, int] = {}
        self.story = Story(self.troupe, self.watch, store, lambda: self.committed)
        self.owned("plain-1", "plain-2", SPARK)

    def owned(self, *owners: str) -> None:
        self.watch.owners = dict(enumerate(owners))
        self.watch.settled = True

    def processed(self, member: str, partition: TopicPartition, count: int) -> None:
        self.store.member = member
        self.store.apply({partition: [Result(each, "UA", 0, False) for each in range(count)]})

    def tells(self, member: str, uncommitted: int, next_commit: float) -> None:
        progress = {"uncommitted": uncommitted, "next_commit": next_commit}
        self.troupe.running[member].progress = progress


@pytest.fixture
def stood(tmp_path: Path) -> Iterator[Stood]:
    with ResultStore(tmp_path / "results.db") as store:
        stood = Stood(store, tmp_path)
        stood.processed("plain-1", P0, 10)
        stood.processed("plain-2", P1, 20)
        stood.processed(SPARK, P2, 30)
        stood.tells("plain-1", 4, 2.5)
        stood.tells("plain-2", 7, 2.5)
        yield stood


def test_the_member_with_most_uncommitted_is_killed(stood: Stood) -> None:
    stood.committed = {P0: 6, P1: 13, P2: 1}
    (line,) = stood.story.step(0.3)
    assert stood.troupe.killed == ["plain-2"]
    assert stood.story.uncommitted == 7
    assert "killed plain-2 (SIGKILL), owner of partitions 1, with 7 records" in line
    assert stood.story.stage is Stage.BEREFT


def test_a_members_work_is_counted_while_it_stands_still(stood: Stood) -> None:
    seen = []

    def committed() -> dict[TopicPartition, int]:
        seen.append((list(stood.troupe.paused), list(stood.troupe.killed)))
        return {P1: 13}

    Story(stood.troupe, stood.watch, stood.store, committed).step(0.3)
    assert seen == [(["plain-2"], [])]
    assert stood.troupe.killed == ["plain-2"]


def test_a_member_that_has_committed_since_its_report_lives_on(stood: Stood) -> None:
    stood.committed = {P0: 10, P1: 20, P2: 30}
    assert stood.story.step(0.3) == []
    assert (stood.troupe.paused, stood.troupe.killed) == ([], [])
    assert stood.story.stage is Stage.WORKING
    stood.committed = {P1: 15}
    stood.story.step(0.3)
    assert (stood.story.victim, stood.story.uncommitted) == ("plain-2", 5)


def test_nobody_is_killed_too_early(stood: Stood) -> None:
    assert stood.story.step(0.1) == []
    assert stood.story.stage is Stage.WORKING


def test_nobody_is_killed_while_partitions_move(stood: Stood) -> None:
    stood.watch.settled = False
    stood.story.step(0.3)
    assert stood.troupe.killed == []


def test_nobody_is_killed_before_everybody_has_processed_something(stood: Stood) -> None:
    stood.troupe.start_plain("plain-3")
    stood.story.step(0.3)
    assert stood.troupe.killed == []


def test_nobody_is_killed_who_has_committed_everything_or_is_about_to(stood: Stood) -> None:
    stood.tells("plain-1", 0, 2.5)
    stood.tells("plain-2", 9, 0.1)
    stood.story.step(0.3)
    assert stood.troupe.killed == []


def test_a_new_member_starts_once_the_others_have_taken_over(stood: Stood) -> None:
    stood.story.step(0.3)
    assert stood.story.step(0.4) == []
    assert NEWCOMER not in stood.troupe.running
    stood.owned("plain-1", SPARK, SPARK)
    assert stood.story.step(0.5) == [f"started {NEWCOMER}"]
    assert NEWCOMER in stood.troupe.running
    stages = []
    for owner in ("plain-1", NEWCOMER, NEWCOMER):
        stood.owned(owner, SPARK, SPARK)
        assert stood.story.step(0.7) == []
        stages.append(stood.story.stage)
    assert stages == [Stage.JOINED, Stage.DONE, Stage.DONE]


def test_the_limit_rises_with_every_stage(stood: Stood) -> None:
    limits = [stood.story.limit]
    stood.story.step(0.3)
    limits.append(stood.story.limit)
    stood.owned("plain-1", SPARK, SPARK)
    stood.story.step(0.5)
    limits.append(stood.story.limit)
    stood.owned("plain-1", NEWCOMER, SPARK)
    stood.story.step(0.7)
    limits.append(stood.story.limit)
    assert limits == sorted(set(limits))
    assert limits[-1] == 1.0
