"""Options as text: what a topic may say for itself, and what comes of it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from folkmoot.brokers.server.context import Answer, Context
from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.metadata_cache import ClusterView
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage.checkpoints import Checkpoints
from folkmoot.brokers.storage.config import LogConfig
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.brokers.storage.options import topic_config
from folkmoot.brokers.storage.retention import Retention
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.errors import BatchTooLarge, ConfigError
from tests.brokers.batches import NOW, a_batch, append, flushed
from tests.brokers.parts import (
    BROKERS,
    ME,
    carried_out,
    into,
    make_batch,
    make_context,
    make_logs,
    produce,
)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with make_logs(tmp_path / "data") as logs:
        yield make_context(logs)


def show(context: Context, **config: str) -> None:
    context.show(ClusterView(BROKERS, {"t": TopicInfo("id-1", [[ME]], config)}), frozenset())


def test_a_topics_options_lie_over_the_brokers() -> None:
    defaults = LogConfig(segment_bytes=1024, retention=60.0)
    config = topic_config(
        defaults, {"retention": "none", "retention_bytes": "5000", "segment_age": "1.5"}
    )
    assert config == LogConfig(
        segment_bytes=1024, retention=None, retention_bytes=5000, segment_age=1.5
    )


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("retentoin", "1", "did you mean 'retention'"),
        ("retention", "a week", "a number of seconds or 'none'"),
        ("retention", "-1", "retention=-1.0 is not allowed"),
        ("retention", "nan", "retention=nan"),
        ("segment_bytes", "none", "a whole number"),
        ("segment_bytes", "1.5", "a whole number"),
        ("segment_bytes", "3", "segment_bytes=3"),
        ("flush_records", "0", "flush_records=0"),
        ("cleanup_policy", "shrink", "use one of delete | compact | compact,delete"),
        ("min_cleanable_dirty_ratio", "1.1", "a number from 0 to 1"),
        ("min_cleanable_dirty_ratio", "much", "use a number$"),
        ("max_compaction_lag", "0", "max_compaction_lag=0"),
    ],
)
def test_what_a_topic_may_not_say_is_refused(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        topic_config(LogConfig(), {name: text})


def test_a_topics_options_hold_from_the_next_append_on_and_for_logs_to_come(
    context: Context,
) -> None:
    show(context, segment_bytes="512", max_batch_bytes="300")
    payload, large = make_batch(b"x" * 150), make_batch(b"x" * 400)
    for _ in range(4):
        carried_out(produce(into(0)), [payload], Now(0.0, NOW), context)
    log = context.logs.get("t", 0)
    assert log.segments == 2
    answer = carried_out(produce(into(0)), [large], Now(0.0, NOW), context)
    assert isinstance(answer, Answer)
    assert answer.response.results[0].error == BatchTooLarge.code
    show(context)
    answer = carried_out(produce(into(0)), [large], Now(0.0, NOW), context)
    assert isinstance(answer, Answer)
    assert (answer.response.results[0].error, log.segments) == (0, 2)


def test_options_that_are_not_allowed_leave_the_former_ones(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    show(context, segment_bytes="512")
    log = context.logs.create("t", "id-1", 0)
    show(context, segment_bytes="nonsense")
    assert log.config.segment_bytes == 512
    assert "keeps its former options" in caplog.text


def test_nothing_is_deleted_before_a_topics_own_retention_is_known(tmp_path: Path) -> None:
    with Logs(tmp_path / "data", ME, LogConfig(retention=1.0)) as logs:
        context = make_context(logs, ClusterView())
        append(logs.create("t", "id-1", 0), a_batch(b"a"))
        much_later = Now(0.0, NOW + 10**9)
        Retention(logs).chore(much_later)
        assert logs.get("t", 0).start_offset == 0
        show(context, retention="none")
        Retention(logs).chore(much_later)
        assert logs.get("t", 0).start_offset == 0
        show(context)
        Retention(logs).chore(much_later)
        flushed(logs.get("t", 0))
        Retention(logs).chore(much_later)
        assert logs.get("t", 0).start_offset == 1


# -- flush -------------------------------------------------------------------------------------------


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Descriptors flushed."""
    found: list[int] = []
    real = os.fdatasync

    def counted(fd: int) -> None:
        found.append(fd)
        real(fd)

    monkeypatch.setattr("folkmoot.brokers.storage.logfile.os.fdatasync", counted)
    monkeypatch.setattr("folkmoot.brokers.storage.flushing.os.fdatasync", counted)
    return found


def test_a_topic_that_asks_for_it_is_flushed_after_so_many_records(
    context: Context, flushes: list[int]
) -> None:
    show(context, flush_records="5")
    log = context.logs.create("t", "id-1", 0)
    counts = []
    for _ in range(10):
        append(log, a_batch(b"a", b"b"))
        counts.append(len(flushes))
    assert counts == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    show(context, flush_records="1")
    append(log, a_batch(b"a"))
    assert not log.dirty


def test_a_topic_that_asks_for_it_is_flushed_by_time_in_the_background(
    context: Context, flushes: list[int]
) -> None:
    def fail(error: Exception) -> None:
        raise error

    background = Background(fail)
    checkpoints = Checkpoints(context.logs, background)
    show(context, flush_interval="2")
    log = context.logs.create("t", "id-1", 0)
    append(context.logs.create("other", "id-2", 0), a_batch(b"never by time"))
    counts = []
    for second in range(8):
        append(log, a_batch(b"a"))
        checkpoints.flush_chore(Now(float(second), NOW))
        background.run_all()
        counts.append(len(flushes))
    assert counts == [1, 1, 2, 2, 3, 3, 4, 4]
    assert log.durable is not None
    assert log.durable.end_offset == 7


def test_of_more_due_logs_than_are_flushed_at_once_each_has_its_turn(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(error: Exception) -> None:
        raise error

    monkeypatch.setattr("folkmoot.brokers.storage.checkpoints.LOGS_AT_ONCE", 2)
    background = Background(fail)
    checkpoints = Checkpoints(context.logs, background)
    show(context, flush_interval="1")
    logs = [context.logs.create("t", "id-1", number) for number in range(5)]
    for log in logs:
        append(log, a_batch(b"a"))
    for second, dirty in ((10.0, 3), (11.5, 1), (13.0, 0)):
        for log in logs[:2]:
            append(log, a_batch(b"more"))
        checkpoints.flush_chore(Now(second, NOW))
        background.run_all()
        assert sum(log.dirty for log in logs[2:]) == dirty
