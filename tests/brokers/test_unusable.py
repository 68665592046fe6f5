"""A start among files that cannot be read, or removed: whoever is not concerned is served."""

import json
from pathlib import Path

import pytest

from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.protocol.errors import StorageError
from tests.brokers.batches import SMALL, a_batch, append, read_all


def logs_in(data: Path) -> Logs:
    return Logs(data, 1, SMALL)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_log_that_cannot_be_opened_is_out_of_use_and_the_others_are_served(data: Path) -> None:
    with logs_in(data) as logs:
        for partition in range(3):
            append(logs.create("flights", "first", partition), a_batch(b"a", b"b"))
    before = json.loads((data / "durable").read_bytes().partition(b"\n")[2])
    segment = data / "flights-1" / f"{0:020}.log"
    kept = segment.rename(data / "kept")
    segment.mkdir()
    (data / "clean-shutdown").unlink()

    logs = logs_in(data)
    logs.start()
    for partition in (0, 2):
        log = logs.get("flights", partition)
        assert append(log, a_batch(b"c")) == [2]
        assert [value for _, value in read_all(log)] == [b"a", b"b", b"c"]
    broken = logs.get("flights", 1)
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
    durable = json.loads((data / "durable").read_bytes().partition(b"\n")[2])
    assert durable["flights-1.first"] == before["flights-1.first"]
    segment.rmdir()
    kept.rename(segment)
    with logs_in(data) as logs:
        assert append(logs.get("flights", 1), a_batch(b"c")) == [2]
        assert [value for _, value in read_all(logs.get("flights", 0))] == [b"a", b"b", b"c"]


def test_no_log_that_can_be_opened_is_no_start(data: Path) -> None:
    with logs_in(data) as logs:
        append(logs.create("flights", "first", 0), a_batch(b"a"))
    segment = data / "flights-0" / f"{0:020}.log"
    segment.unlink()
    segment.mkdir()
    with pytest.raises(StorageError, match="Is a directory"):
        logs_in(data).start()
    segment.rmdir()
    logs_in(data).start()


def test_a_topic_id_that_cannot_be_read_keeps_nobody_else_from_being_served(data: Path) -> None:
    with logs_in(data) as logs:
        for partition in range(2):
            append(logs.create("flights", "first", partition), a_batch(b"a"))
    before = json.loads((data / "durable").read_bytes().partition(b"\n")[2])
    known = data / "flights-1" / "topic-id"
    kept = known.rename(data / "kept")
    known.mkdir()
    with logs_in(data) as logs:
        assert [log.name.partition for log in logs] == [0]
        append(logs.get("flights", 0), a_batch(b"b"))
    after = json.loads((data / "durable").read_bytes().partition(b"\n")[2])
    assert after["flights-1.first"] == before["flights-1.first"]
    known.rmdir()
    kept.rename(known)
    with logs_in(data) as logs:
        assert append(logs.get("flights", 1), a_batch(b"c")) == [1]


def test_what_cannot_be_removed_keeps_nobody_from_being_served(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logs_in(data) as logs:
        append(logs.create("flights", "first", 0), a_batch(b"a"))
    doomed = data / "old-0.second.deleted"
    doomed.mkdir()

    def refuse(path: str) -> None:
        raise OSError(5, "Input/output error", path)

    with monkeypatch.context() as broken:
        broken.setattr("folkmoot.brokers.storage.directories.shutil.rmtree", refuse)
        with logs_in(data) as logs:
            assert read_all(logs.get("flights", 0)) == [(0, b"a")]
    with logs_in(data):
        assert not doomed.exists()
