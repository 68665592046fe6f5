"""Directories of new partitions: made beside the reactor, whole or not at all, whatever dies when."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from folkmoot.brokers.server import producing
from folkmoot.brokers.server.context import Answer, Context, Later
from folkmoot.brokers.server.metadata_cache import ClusterView
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage import directories
from folkmoot.brokers.storage import partition_creation as newcomers
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.errors import DiskFull, Overloaded, UnknownTopicOrPartition
from folkmoot.protocol.messages import ProduceRequest, ProduceResponse
from folkmoot.protocol.records import TopicPartition
from tests.brokers.hands import Hands
from tests.brokers.parts import BROKERS, ME, carried_out, into, make_batch, make_logs, produce

NOW = Now(100.0, 1_700_000_000_000)
MANY = 100


def view_of(**topics: TopicInfo) -> ClusterView:
    return ClusterView(BROKERS, topics)


VIEW = view_of(t=TopicInfo("id-1", [[ME]] * MANY))


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    with make_logs(tmp_path / "data") as logs:
        yield logs


@pytest.fixture
def context(logs: Logs, hands: Hands) -> Context:
    """Knows the topic, but was not told of it: nothing is made ahead."""
    return Context(ME, logs, 2**20, VIEW, submit=hands.submit)


def send(context: Context, request: ProduceRequest, *batches: bytes) -> list[ProduceResponse]:
    """→ where the answer will be."""
    outcome = carried_out(request, batches, NOW, context)
    answers: list[ProduceResponse] = []
    if isinstance(outcome, Later):
        outcome.reply = lambda answer: answers.append(answer.response)
    else:
        assert isinstance(outcome, Answer)
        answers.append(outcome.response)
    return answers


def names(data: Path) -> set[str]:
    return {each.name for each in data.iterdir() if each.is_dir()}


def test_a_produce_to_a_new_partition_waits_for_its_directory_and_nobody_else_does(
    context: Context, hands: Hands
) -> None:
    context.logs.create("t", "id-1", 1)
    both = send(context, produce(into(0), into(1)), make_batch(b"new"), make_batch(b"old"))
    assert both == []
    [other] = send(context, produce(into(1)), make_batch(b"other"))
    assert [each.base_offset for each in other.results] == [1]
    assert context.logs.find("t", "id-1", 0) is None
    hands.work()
    assert [(each.error, each.base_offset) for each in both[0].results] == [(0, 0), (0, 0)]
    assert context.waiting_bytes == 0


def test_what_waits_for_a_partition_is_appended_in_the_order_sent(
    context: Context, hands: Hands
) -> None:
    first = send(context, produce(into(0), into(1)), make_batch(b"a"), make_batch(b"b"))
    second = send(context, produce(into(1)), make_batch(b"c"))
    third = send(context, produce(into(0)), make_batch(b"d"))
    hands.work_all()
    offsets = [[each.base_offset for each in one[0].results] for one in (first, second, third)]
    assert offsets == [[0, 0], [1], [1]]


def test_partitions_of_a_topic_are_made_ahead_a_few_at_a_time_and_wanted_ones_first(
    logs: Logs, hands: Hands
) -> None:
    context = Context(ME, logs, 2**20, submit=hands.submit)
    context.show(VIEW, frozenset())
    answers = send(context, produce(into(MANY - 1)), make_batch(b"a"))
    assert len(hands.jobs) == 1
    hands.work()
    assert len(logs) == newcomers.AT_ONCE
    assert answers == []
    hands.work()
    assert answers[0].results[0].error == 0
    hands.work_all()
    assert len(logs) == MANY
    [again] = send(context, produce(into(7)), make_batch(b"b"))
    assert again.results[0].base_offset == 0


def test_a_view_that_changes_nothing_makes_nothing(logs: Logs, hands: Hands) -> None:
    context = Context(ME, logs, 2**20, submit=hands.submit)
    context.show(VIEW, frozenset())
    hands.work_all()
    context.show(
        view_of(t=TopicInfo("id-1", [[ME]] * MANY, config={"retention": "5"})), frozenset()
    )
    assert hands.jobs == []


def test_a_full_disk_is_answered_as_such_and_the_next_produce_tries_again(
    context: Context, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_new: Path, _topic_id: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(directories, "_fill", full)
        answers = send(context, produce(into(0)), make_batch(b"a"))
        hands.work_all()
    assert answers[0].results[0].error == DiskFull.code
    answers = send(context, produce(into(0)), make_batch(b"a"))
    hands.work_all()
    assert answers[0].results[0].base_offset == 0


def test_a_name_that_cannot_be_made_durable_is_not_used(
    context: Context, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        if path == context.logs.data:
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(directories, "sync_directory", refuse)
        answers = send(context, produce(into(0)), make_batch(b"a"))
        hands.work_all()
    assert answers[0].results[0].error != 0
    assert len(context.logs) == 0
    answers = send(context, produce(into(0)), make_batch(b"a"))
    hands.work_all()
    assert answers[0].results[0].base_offset == 0


def test_a_topic_deleted_while_its_directory_is_made_leaves_nothing(
    context: Context, hands: Hands
) -> None:
    answers = send(context, produce(into(0)), make_batch(b"a"))
    context.show(view_of(), frozenset({"id-1"}))
    hands.work_all()
    assert answers[0].results[0].error == UnknownTopicOrPartition.code
    assert names(context.logs.data) == set()


def test_a_topic_made_anew_while_its_directory_is_made_gets_its_own(
    context: Context, hands: Hands
) -> None:
    old = send(context, produce(into(0)), make_batch(b"old"))
    context.show(view_of(t=TopicInfo("id-2", [[ME]])), frozenset({"id-1"}))
    new = send(context, produce(into(0, topic_id="id-2")), make_batch(b"new"))
    hands.work_all()
    assert old[0].results[0].error != 0
    assert new[0].results[0].base_offset == 0
    assert [log.topic_id for log in context.logs] == ["id-2"]
    assert names(context.logs.data) == {"t-0"}


def test_only_so_many_bytes_wait(
    context: Context, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_batch(b"a" * 100)
    monkeypatch.setattr(producing, "MAX_WAITING_BYTES", len(one) + 1)
    first = send(context, produce(into(0)), one)
    [second] = send(context, produce(into(1)), one)
    assert second.results[0].error == Overloaded.code
    hands.work_all()
    assert first[0].results[0].error == 0
    third = send(context, produce(into(1)), one)
    hands.work_all()
    assert third[0].results[0].error == 0


# -- what dies when --------------------------------------------------------------------------------

STEPS = ("_fill", "flush_file", "sync_directory", "_move_in")
WANTED = {TopicPartition("t", 0): "id-1", TopicPartition("t", 1): "id-1"}


class Killed(BaseException):
    """The process is gone."""


def until_killed(
    patch: pytest.MonkeyPatch, data: Path, calls: int, after: bool
) -> list[tuple[str, str]]:
    """Make directories until dead, right before or after the step of that number; → the steps."""
    steps: list[tuple[str, str]] = []

    def wrapped(name: str, step: Callable[..., None]) -> Callable[..., None]:
        def run(path: Path, *rest: Any) -> None:
            if len(steps) == calls and not after:
                raise Killed
            step(path, *rest)
            steps.append((name, path.name))
            if len(steps) == calls and after:
                raise Killed

        return run

    for name in STEPS:
        patch.setattr(directories, name, wrapped(name, getattr(directories, name)))
    directories.create_all(data, WANTED)
    return steps


def test_all_of_a_directory_is_on_disk_before_its_name_and_all_names_before_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = until_killed(monkeypatch, tmp_path, -1, after=False)
    for name in ("t-0.id-1.creating", "t-1.id-1.creating"):
        filled, moved = steps.index(("_fill", name)), steps.index(("_move_in", name))
        assert filled < steps.index(("sync_directory", name)) < moved
    first_move = min(number for number, (step, _) in enumerate(steps) if step == "_move_in")
    assert [step for step, _ in steps[:first_move]].count("flush_file") == 2
    assert steps[-1] == ("sync_directory", tmp_path.name)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("calls", range(1, 9))
def test_a_death_at_any_step_leaves_each_partition_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, after: bool
) -> None:
    data = tmp_path / "data"
    with make_logs(data):
        pass
    with monkeypatch.context() as patch, pytest.raises(Killed):
        until_killed(patch, data, calls, after)
    with make_logs(data) as logs:
        assert names(data) == {str(log.name) for log in logs} <= {"t-0", "t-1"}
        assert all(log.end_offset == 0 and log.topic_id == "id-1" for log in logs)
        context = Context(ME, logs, 2**20, VIEW)
        [answer] = send(context, produce(into(0), into(1)), make_batch(b"a"), make_batch(b"b"))
        assert [(each.error, each.base_offset) for each in answer.results] == [(0, 0), (0, 0)]
