"""Options as text: what a topic may say for itself, and what comes of it."""

from pathlib import Path

import pytest

from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.coordination.topic_config import LogConfig, topic_config
from folkmoot.protocol.errors import BatchTooLarge, ConfigError
from tests.brokers.batches import a_batch, append
from tests.brokers.hands import create


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
        ("retention", "a week", r"a number of seconds .*, or None \(such as 90s, 7d\)"),
        ("retention", "-1", "retention=-1.0 is not allowed"),
        ("retention", "nan", "retention=nan"),
        ("segment_bytes", "none", "a whole number"),
        ("segment_bytes", "1.5", "a whole number"),
        ("segment_bytes", "3", "segment_bytes=3"),
        ("durability", "disk", "durability='disk'"),
        ("min_in_sync", "0", "min_in_sync=0"),
        ("cleanup_policy", "shrink", "use 'delete', 'compact' or 'compact,delete'"),
        ("min_cleanable_dirty_ratio", "1.1", "a number from 0 to 1"),
        ("min_cleanable_dirty_ratio", "much", "use a number from 0 to 1$"),
        ("max_compaction_lag", "0", "max_compaction_lag=0"),
    ],
)
def test_what_a_topic_may_not_say_is_refused(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        topic_config(LogConfig(), {name: text})


def test_a_topics_options_hold_from_the_next_append_on_and_for_logs_to_come(
    tmp_path: Path,
) -> None:
    with LogManager(tmp_path / "data", 1, LogConfig()) as logs:
        logs.configure("t", "id-1", {"segment_bytes": "512", "max_batch_bytes": "300"})
        log = create(logs, "t", "id-1", 0)
        for _ in range(4):
            append(log, a_batch(b"x" * 150))
        assert len(log.segments) == 2
        with pytest.raises(BatchTooLarge):
            append(log, a_batch(b"x" * 400))
        logs.configure("t", "id-1", {})
        append(log, a_batch(b"x" * 400))
        assert len(log.segments) == 2


def test_options_that_are_not_allowed_leave_the_former_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LogManager(tmp_path / "data", 1, LogConfig()) as logs:
        logs.configure("t", "id-1", {"segment_bytes": "512"})
        log = create(logs, "t", "id-1", 0)
        logs.configure("t", "id-1", {"segment_bytes": "nonsense"})
        assert log.config.segment_bytes == 512
        assert "keeps its former options" in caplog.text
