"""A start among files that cannot be read, or removed: whoever is not concerned is served."""

from pathlib import Path

import pytest

from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.notes import load_notes
from folkmoot.protocol.errors import StorageError
from tests.brokers.batches import SMALL, a_batch, append, read_all
from tests.brokers.hands import create
from tests.brokers.storage.test_log_manager import found


def logs_in(data: Path) -> LogManager:
    return LogManager(data, 1, SMALL)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_log_that_cannot_be_opened_is_out_of_use_and_the_others_are_served(data: Path) -> None:
    with logs_in(data) as logs:
        for partition in range(3):
            append(create(logs, "flights", "first", partition), a_batch(b"a", b"b"))
    before = load_notes(data).recovery_points
    segment = data / "first-1" / f"{0:020}.log"
    kept = segment.rename(data / "kept")
    segment.mkdir()

    logs = logs_in(data)
    logs.start()
    for partition in (0, 2):
        log = found(logs, partition)
        assert append(log, a_batch(b"c")) == [2]
        assert [value for _, value in read_all(log)] == [b"a", b"b", b"c"]
    broken = found(logs, 1)
    for attempt in (
        lambda: append(broken, a_batch(b"c")),
        lambda: broken.read(0, 100),
        lambda: broken.offset_for_time(0),
        broken.require_open,
    ):
        with pytest.raises(StorageError, match=r"flights-1 is out of use: .*: Is a directory"):
            attempt()
    assert not broken.dirty
    logs.close()

    # What was known of its end outlives that.
    durable = load_notes(data).recovery_points
    assert durable["first-1"] == before["first-1"]
    segment.rmdir()
    kept.rename(segment)
    with logs_in(data) as logs:
        assert append(found(logs, 1), a_batch(b"c")) == [2]
        assert [value for _, value in read_all(found(logs))] == [b"a", b"b", b"c"]


def test_no_log_that_can_be_opened_is_no_start(data: Path) -> None:
    with logs_in(data) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a"))
    segment = data / "first-0" / f"{0:020}.log"
    segment.unlink()
    segment.mkdir()
    with pytest.raises(StorageError, match="Is a directory"):
        logs_in(data).start()
    segment.rmdir()
    logs_in(data).start()


def test_what_cannot_be_removed_keeps_nobody_from_being_served(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logs_in(data) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a"))
    doomed = data / "second-0.deleted"
    doomed.mkdir()

    def refuse(path: str, **_: object) -> None:
        raise OSError(5, "Input/output error", path)

    with monkeypatch.context() as broken:
        broken.setattr("shutil.rmtree", refuse)
        with logs_in(data) as logs:
            assert read_all(found(logs)) == [(0, b"a")]
    with logs_in(data):
        assert not doomed.exists()


def test_a_snapshot_that_cannot_be_removed_costs_its_partition_alone(data: Path) -> None:
    """The log is shorter than it says, so it would be believed once the log has grown."""
    with logs_in(data) as logs:
        for partition in range(2):
            append(create(logs, "flights", "first", partition), a_batch(b"a"))
    (data / "first-1" / f"{9:020}.snapshot").mkdir()
    with logs_in(data) as logs:
        assert read_all(found(logs, 0)) == [(0, b"a")]
        with pytest.raises(StorageError, match=r"out of use: .*Is a directory"):
            found(logs, 1).require_open()
