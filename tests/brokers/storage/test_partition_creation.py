"""Directories of new partitions: made beside the event loop, whole or not at all, whatever dies when."""

import errno
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.storage import partition_creation
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.partition_creation import PartitionCreation
from folkmoot.protocol.errors import DiskFull, FolkmootError
from tests.brokers.batches import SMALL, a_batch, append, read_all
from tests.brokers.hands import Hands
from tests.brokers.power import NAMES, Power
from tests.brokers.storage.test_log_manager import found, task

NOW = Now(100.0, 1_700_000_000_000)
MANY = partition_creation.AT_ONCE + 10

Outcomes = list[FolkmootError | None]


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    with LogManager(tmp_path / "data", 1, SMALL) as logs:
        yield logs


@pytest.fixture
def creation(logs: LogManager, hands: Hands) -> PartitionCreation:
    return PartitionCreation(logs, hands.submit)


def wanted(creation: PartitionCreation, partition: int, topic_id: str = "id-1") -> Outcomes:
    """→ where the outcome will be."""
    outcomes: Outcomes = []
    creation.when_created("t", topic_id, partition, outcomes.append)
    return outcomes


def names(data: Path) -> set[str]:
    return {each.name for each in data.iterdir() if each.is_dir()}


def test_a_log_is_there_when_its_directory_is_made_and_not_before(
    logs: LogManager, creation: PartitionCreation, hands: Hands
) -> None:
    outcomes = wanted(creation, 0)
    assert (outcomes, logs.find("id-1", 0)) == ([], None)
    hands.work()
    assert outcomes == [None]
    assert append(found(logs, 0, "id-1"), a_batch(b"a")) == [0]
    assert wanted(creation, 0) == [None]
    assert hands.jobs == []


def test_those_who_wait_for_a_partition_are_told_in_the_order_of_their_asking(
    creation: PartitionCreation, hands: Hands
) -> None:
    told: list[int] = []

    def tell(number: int, _error: FolkmootError | None) -> None:
        told.append(number)

    for number in range(3):
        creation.when_created("t", "id-1", 0, partial(tell, number))
    hands.work_all()
    assert told == [0, 1, 2]


def test_a_fault_of_one_that_waits_for_its_partition_holds_up_no_other(
    logs: LogManager, creation: PartitionCreation, hands: Hands
) -> None:
    outcomes = [wanted(creation, number) for number in range(3)]

    def fail(_error: FolkmootError | None) -> None:
        raise RuntimeError("a fault")

    creation.when_created("t", "id-1", 3, fail)
    outcomes += [wanted(creation, number) for number in (3, 4)]
    for _ in range(2):
        with suppress(RuntimeError):  # the event loop logs it
            hands.work_all()
    assert outcomes == [[None]] * 5
    assert len(logs) == 5


def test_partitions_are_made_a_few_at_a_time(
    logs: LogManager, creation: PartitionCreation, hands: Hands
) -> None:
    outcomes = [wanted(creation, number) for number in range(MANY)]
    assert len(hands.jobs) == 1
    hands.work()  # of the first, which did not wait for more
    hands.work()
    assert len(logs) == 1 + partition_creation.AT_ONCE
    hands.work_all()
    assert outcomes == [[None]] * MANY
    creation.task(NOW)
    assert hands.jobs == []


def test_a_partition_is_made_once_an_earlier_replica_is_gone(
    logs: LogManager, creation: PartitionCreation, hands: Hands
) -> None:
    wanted(creation, 0)
    hands.work_all()
    logs.delete_partition("id-1", 0)
    outcomes = wanted(creation, 0)
    creation.task(NOW)
    assert hands.jobs == []
    task(logs)
    creation.task(NOW)
    hands.work_all()
    assert outcomes == [None]


def test_nothing_is_flushed_renamed_or_listed_on_the_event_loop(
    creation: PartitionCreation, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = wanted(creation, 0)
    [(_, work, done)] = hands.jobs
    result = work()
    with monkeypatch.context() as slow:
        for name in ("fsync", "fdatasync", "rename", "replace", "unlink", "scandir", "listdir"):
            slow.setattr(os, name, None)
        done(result)
    assert outcomes == [None]


def test_a_full_disk_is_answered_as_such_and_the_next_try_succeeds(
    logs: LogManager, creation: PartitionCreation, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(partition_creation, "save_facts", full)
        outcomes = wanted(creation, 0)
        hands.work_all()
    assert isinstance(outcomes[0], DiskFull)
    assert names(logs.data) == set()
    outcomes = wanted(creation, 0)
    hands.work_all()
    assert outcomes == [None]


def test_a_name_that_cannot_be_made_durable_is_not_used(
    logs: LogManager, creation: PartitionCreation, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(partition_creation, "sync_directory", refuse)
        outcomes = wanted(creation, 0)
        hands.work_all()
    assert outcomes[0] is not None
    assert (len(logs), names(logs.data)) == (0, set())
    outcomes = wanted(creation, 0)
    hands.work_all()
    assert outcomes == [None]


@pytest.mark.parametrize("kept", NAMES)
@pytest.mark.parametrize("done", [False, True])
def test_a_power_cut_leaves_a_new_log_whole_once_it_was_told_of(
    tmp_path: Path, kept: str, done: bool
) -> None:
    data, left = tmp_path / "data", tmp_path / "left"
    data.mkdir()
    power = Power(data)
    with power.watched():
        logs = LogManager(data, 1, SMALL)
        logs.start()
        hands = Hands()
        creation = PartitionCreation(logs, hands.submit)
        outcomes = wanted(creation, 0)
        if done:
            hands.work_all()
            assert outcomes == [None]
        power.cut(left, kept, random.Random(7))
        logs.abandon()
    power.close()
    with LogManager(left, 1, SMALL) as again:
        assert len(again) == int(done)
        if done:
            assert str(found(again, 0, "id-1").name) == "t-0"
            append(found(again, 0, "id-1"), a_batch(b"a"))
            assert read_all(found(again, 0, "id-1")) == [(0, b"a")]


def test_a_kill_at_any_step_leaves_directories_that_a_start_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    for number, step in enumerate(("save_facts", "sync_directory", "_open")):
        data = tmp_path / str(number)
        logs = LogManager(data, 1, SMALL)
        logs.start()
        hands = Hands()
        wanted(PartitionCreation(logs, hands.submit), 0)
        with monkeypatch.context() as killed:
            killed.setattr(partition_creation, step, die)
            with pytest.raises(Killed):
                hands.work()
        logs.abandon()
        with LogManager(data, 1, SMALL) as again:
            outcomes: Outcomes = []
            PartitionCreation(again).when_created("t", "id-1", 0, outcomes.append)
            assert outcomes == [None]
            assert append(found(again, 0, "id-1"), a_batch(b"a")) == [0]
