"""Members as processes, on real ZooKeeper and brokers: killed and stopped, nothing is lost."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from folkmoot.console.running.children import ChildProcess
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.connector import connector
from folkmoot.coordination.groups import history, ownership
from folkmoot.coordination.groups.ownership import OffsetState, Owner
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.producers.producer import Producer
from folkmoot.protocol.records import TopicPartition
from tests.consumers.member_process import open_database
from tests.tree import ROOT
from tests.waiting import eventually

PARTITIONS = 12
PATIENCE = 30.0


class Scene:
    """A topic of twelve partitions, a group, its members as processes and their database."""

    def __init__(self, cluster: EmbeddedCluster, producer: Producer, folder: Path) -> None:
        self.topic = f"topic-{uuid4().hex[:8]}"
        self.group = f"group-{uuid4().hex[:8]}"
        self.zookeeper = cluster.zookeeper
        self.producer = producer
        self.folder = folder
        self.members: dict[str, ChildProcess] = {}
        self.database = open_database(folder / "results")
        self.session: Session = connector(cluster.zookeeper)(10.0)
        self.sent = 0
        execute(
            self.session,
            topics.create(self.topic, PARTITIONS, list(execute(self.session, brokers.live()))),
        )

    def close(self) -> None:
        for member in self.members.values():
            member.kill()
        self.session.close()
        self.database.close()

    def start(self, name: str, *options: str) -> ChildProcess:
        command = [sys.executable, "-m", "tests.consumers.member_process", self.zookeeper]
        command += [self.group, self.topic, str(self.folder / "results"), name, *options]
        environment = {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        member = ChildProcess(name, command, self.folder / f"{name}.log", environment)
        member.start()
        self.members[name] = member
        return member

    def send(self, count: int) -> None:
        """So many to each partition, with 1, 2, 3… as their values."""
        for value in range(self.sent + 1, self.sent + count + 1):
            for number in range(PARTITIONS):
                self.producer.send(self.topic, b"%d" % value, partition=number)
        self.producer.flush(20.0)
        self.sent += count

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in range(PARTITIONS)]

    def owners(self) -> dict[int, Owner]:
        found = {
            p: execute(self.session, ownership.owner_of(self.group, p)) for p in self.partitions()
        }
        return {p.partition: owner for p, owner in found.items() if owner is not None}

    def owned_by(self, name: str) -> set[int]:
        return {p for p, owner in self.owners().items() if owner.member.startswith(f"{name}-")}

    def shared_by(self, *names: str) -> bool:
        """All partitions have an owner, each of these the same number of them."""
        return all(len(self.owned_by(name)) == PARTITIONS // len(names) for name in names)

    def state(self, number: int) -> OffsetState | None:
        return execute(
            self.session, ownership.committed(self.group, TopicPartition(self.topic, number))
        )

    def all_is_committed(self) -> bool:
        states = [self.state(number) for number in range(PARTITIONS)]
        return all(state is not None and state.offset == self.sent for state in states)

    def how_went(self, name: str) -> list[str]:
        """What the group has noted of that."""
        names = execute(self.session, history.entry_names(self.group))
        found = [execute(self.session, history.entry(self.group, name)) for name in names]
        left = [each.left for each in found if each is not None]
        return [why for each in left for who, why in each.items() if who.startswith(f"{name}-")]

    def check_each_counted_once(self) -> int:
        """Returns how many were delivered more than once."""
        rows = self.database.execute("SELECT next, records, sum, delivered FROM counted").fetchall()
        total = self.sent * (self.sent + 1) // 2
        assert [row[:3] for row in rows] == [(self.sent, self.sent, total)] * PARTITIONS
        return int(sum(row[3] for row in rows)) - self.sent * PARTITIONS


@pytest.fixture
def scene(shared_cluster: EmbeddedCluster, producer: Producer, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(shared_cluster, producer, tmp_path)
    with ExitStack() as cleanup:
        cleanup.callback(scene.close)
        yield scene


def says(member: ChildProcess, word: str) -> None:
    member.wait_until(lambda: True if word in member.output() else None, PATIENCE)


def test_a_killed_member_s_unfinished_records_come_again_whatever_was_done_behind_them(
    scene: Scene,
) -> None:
    workers = ("--workers", "6")
    first, _ = scene.start("a", *workers), scene.start("b", *workers)
    victim = scene.start("victim", *workers, "--forgetful")
    eventually(lambda: scene.shared_by("a", "b", "victim"), PATIENCE)
    scene.send(50)
    of_victim = scene.owned_by("victim")
    done = 45 * len(of_victim)
    eventually(lambda: victim.output().count("handled") == done, PATIENCE)
    states = [scene.state(each) for each in of_victim]
    assert all(each is None or (each.offset or 0) <= 3 for each in states)
    victim.kill()
    scene.start("heir", *workers)
    scene.send(50)
    eventually(lambda: scene.shared_by("a", "b", "heir"), PATIENCE)
    first.terminate()
    eventually(scene.all_is_committed, PATIENCE)
    rows = scene.database.execute(
        "SELECT partition, COUNT(DISTINCT offset) FROM handled GROUP BY 1"
    )
    assert dict(rows) == dict.fromkeys(range(PARTITIONS), scene.sent)


def test_a_killed_members_records_come_again_and_each_counts_once(scene: Scene) -> None:
    never = scene.folder / "never"
    members = [scene.start("a"), scene.start("b")]
    victim = scene.start("victim", "--hold-commits", str(never))
    eventually(lambda: scene.shared_by("a", "b", "victim"), PATIENCE)
    scene.send(50)
    says(victim, "counted")
    of_victim = scene.owned_by("victim")
    assert all(state is None or state.offset is None for state in map(scene.state, of_victim))
    victim.kill()
    members.append(scene.start("heir"))
    scene.send(50)
    eventually(lambda: scene.shared_by("a", "b", "heir"), PATIENCE)
    eventually(scene.all_is_committed, PATIENCE)
    assert scene.check_each_counted_once() > 0
    assert scene.how_went("victim") == ["its session ended"]
    for member in members:
        assert member.stop(PATIENCE) == 0, member.output()
    assert not scene.owners()
    assert scene.all_is_committed()


def test_a_killed_member_is_replaced_at_once_and_the_group_notes_that(scene: Scene) -> None:
    scene.start("victim")
    scene.start("a")
    eventually(lambda: scene.shared_by("a", "victim"), PATIENCE)
    scene.members["victim"].kill()
    eventually(lambda: scene.shared_by("a"), PATIENCE)
    eventually(lambda: scene.how_went("victim") == ["its session ended"], PATIENCE)
    assert scene.members["a"].stop(PATIENCE) == 0
    assert scene.how_went("a") == []  # nobody was there to note it


def test_a_member_that_was_stopped_beyond_its_session_may_not_commit_when_it_wakes(
    scene: Scene,
) -> None:
    gate = scene.folder / "gate"
    zombie = scene.start("zombie", "--hold-commits", str(gate), "--session-timeout", "2")
    eventually(lambda: scene.shared_by("zombie"), PATIENCE)
    scene.send(20)
    says(zombie, "counted")
    zombie.pause()
    heir = scene.start("heir")
    eventually(lambda: scene.shared_by("heir"), PATIENCE)
    eventually(scene.all_is_committed, PATIENCE)
    gate.touch()
    before = [scene.state(number) for number in range(PARTITIONS)]
    zombie.resume()
    says(zombie, "refused NotOwner")
    assert "committed" not in zombie.output().splitlines()
    for number, state in enumerate(before):
        assert state is not None
        now = scene.state(number)
        assert now is not None
        assert now.offset == state.offset
    eventually(lambda: scene.shared_by("zombie", "heir"), PATIENCE)
    scene.send(20)
    eventually(scene.all_is_committed, PATIENCE)
    assert scene.check_each_counted_once() > 0
    assert [member.stop(PATIENCE) for member in (zombie, heir)] == [0, 0]
