"""A broker's data directory: whose it is, what is in it after each kind of stop."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from folkmoot.brokers.storage.atomic_file import write_checked
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.protocol.errors import (
    ConfigError,
    DirectoryLocked,
    InvalidName,
    InvalidRequest,
    StorageError,
    UnknownTopicOrPartition,
)
from tests.brokers.batches import SMALL, a_batch, append, read_all

LONG = "t" * 249


def logs_in(data: Path, broker_id: int = 1) -> Logs:
    return Logs(data, broker_id, SMALL)


def names(data: Path) -> set[str]:
    return {path.name for path in data.iterdir() if path.is_dir()}


def crash(data: Path, name: str = "-killed") -> Path:
    """The directory as it would be found had the broker been killed now."""
    copy = data.with_name(data.name + name)
    shutil.copytree(data, copy)
    return copy


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_what_was_appended_is_there_after_a_stop_and_after_a_crash(data: Path) -> None:
    with logs_in(data) as logs:
        for partition in range(3):
            append(logs.create("flights", "first", partition), a_batch(b"a", b"%d" % partition))
        killed = crash(data)
    for directory in (data, killed):
        with logs_in(directory) as logs:
            assert len(logs) == 3
            for log in logs:
                assert log.topic_id == "first"
                assert read_all(log) == [(0, b"a"), (1, b"%d" % log.name.partition)]


def test_only_an_orderly_stop_spares_recovery_and_only_once(data: Path) -> None:
    with logs_in(data) as logs:
        append(logs.create("flights", "first", 0), a_batch(b"a" * 50), a_batch(b"b" * 50))
    segment = data / "flights-0" / f"{0:020}.log"
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    with logs_in(data) as logs:
        assert logs.get("flights", 0).end_offset == 2
        assert not (data / "clean-shutdown").exists()
        killed, forgetful = crash(data), crash(data, "-forgetful")
    # What was on disk before is not read again; the scrub will find it.
    with logs_in(killed) as logs:
        assert logs.get("flights", 0).end_offset == 2
    (forgetful / "durable").unlink()
    with logs_in(forgetful) as logs:
        assert logs.get("flights", 0).end_offset == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"nonsense"),
        lambda path: path.write_bytes(
            path.read_bytes().replace(b'"end_offset":1', b'"end_offset":2')
        ),
        lambda path: write_checked(path, b'{"flights-0": 1}'),
        lambda path: write_checked(path, b'{"flights-0":{"end_offset":9,"segment":0,"size":1}}'),
        lambda path: write_checked(path, b'{"flights-0":{"end_offset":9,"segment":5,"size":118}}'),
        lambda path: write_checked(path, b"{}"),
        lambda path: path.unlink(),
    ],
)
def test_a_wrong_word_about_the_last_stop_is_not_believed(
    data: Path, spoil: Callable[[Path], None]
) -> None:
    with logs_in(data) as logs:
        append(logs.create("flights", "first", 0), a_batch(b"a"))
    spoil(data / "clean-shutdown")
    with logs_in(data) as logs:
        assert read_all(logs.get("flights", 0)) == [(0, b"a")]


def test_a_directory_serves_one_broker_at_a_time(data: Path) -> None:
    with logs_in(data) as logs:
        append(logs.create("flights", "first", 0), a_batch(b"a"))
        with pytest.raises(DirectoryLocked, match=f"in use by process {os.getpid()}: stop it"):
            logs_in(data).start()
        assert read_all(logs.get("flights", 0)) == [(0, b"a")]
    with logs_in(data):
        pass


def test_a_directory_is_free_again_when_its_process_is_gone(data: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from tests.brokers.test_logs import logs_in;"
        "logs_in(Path(sys.argv[1])).start(); os._exit(0)"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    subprocess.run(
        [sys.executable, "-c", program, str(data)], env=environment, check=True, timeout=30
    )
    with logs_in(data):
        pass


def test_a_directory_belongs_to_the_broker_that_made_it(data: Path) -> None:
    with logs_in(data, broker_id=1):
        pass
    assert json.loads((data / "broker.json").read_text()) == {"broker_id": 1}
    with pytest.raises(ConfigError, match=r"broker_id=2 .* belongs to broker 1"):
        logs_in(data, broker_id=2).start()
    with logs_in(data, broker_id=1):
        pass


@pytest.mark.parametrize("content", [b"", b"[]", b'{"broker_id": "1"}', b"\xff\xfe"])
def test_an_identity_that_cannot_be_read_is_an_error_and_not_replaced(
    data: Path, content: bytes
) -> None:
    data.mkdir()
    (data / "broker.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"broker\.json"):
        logs_in(data).start()
    assert (data / "broker.json").read_bytes() == content


def test_a_data_path_that_is_a_file_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for data in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="data="):
            logs_in(data).start()


def test_creating_a_log_twice_gives_the_same_log(data: Path) -> None:
    with logs_in(data) as logs:
        log = logs.create("flights", "first", 0)
        assert logs.create("flights", "first", 0) is log
        assert logs.get("flights", 0) is log
        with pytest.raises(UnknownTopicOrPartition):
            logs.get("flights", 1)


def test_a_topic_made_again_under_its_name_never_sees_the_old_records(data: Path) -> None:
    with logs_in(data) as logs:
        append(logs.create("flights", "first", 0), a_batch(b"old"))
        log = logs.create("flights", "second", 0)
        assert (log.topic_id, log.end_offset) == ("second", 0)
        append(log, a_batch(b"new"))
    with logs_in(data) as logs:
        assert read_all(logs.create("flights", "second", 0)) == [(0, b"new")]
        assert logs.create("flights", "third", 0).end_offset == 0
    assert names(data) == {"flights-0"}


def test_a_topic_is_deleted_by_its_id(data: Path) -> None:
    with logs_in(data) as logs:
        for partition in range(3):
            append(logs.create("flights", "first", partition), a_batch(b"a"))
        kept = logs.create("other", "second", 0)
        logs.delete_topic("first")
        logs.delete_topic("first")
        assert list(logs) == [kept]
        with pytest.raises(UnknownTopicOrPartition):
            logs.get("flights", 0)
        assert names(data) == {"other-0"}


def test_a_deletion_that_was_interrupted_is_finished_by_the_next_start(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError("interrupted")

    with logs_in(data) as logs:
        append(logs.create("flights", "first", 0), a_batch(b"a"))
        with monkeypatch.context() as interrupted:
            interrupted.setattr("folkmoot.brokers.storage.directories.shutil.rmtree", refuse)
            with pytest.raises(StorageError):
                logs.delete_topic("first")
        assert names(data) == {"flights-0.first.deleted"}
        # The name is free at once, and a second deletion is not in the way of the first.
        append(logs.create("flights", "first", 0), a_batch(b"b"))
        logs.delete_topic("first")
        (data / "flights-0.first.deleted").mkdir()
        (data / "flights-1.first.creating").mkdir()
    with logs_in(data) as logs:
        assert len(logs) == 0
    assert names(data) == set()


def test_a_directory_without_a_topic_id_is_neither_served_nor_touched(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with logs_in(data) as logs:
        append(logs.create("flights", "first", 0), a_batch(b"a"))
    (data / "flights-0" / "topic-id").unlink()
    with logs_in(data) as logs:
        assert len(logs) == 0
        assert "not served" in caplog.text
        with pytest.raises(StorageError, match="cannot be created"):
            logs.create("flights", "first", 0)
    assert (data / "flights-0" / f"{0:020}.log").stat().st_size > 0


def test_what_is_no_partition_is_left_alone(data: Path) -> None:
    strange = ["lost+found", "flights", "flights-x", "flights-01", "a b-0", "-1"]
    for name in strange:
        (data / name).mkdir(parents=True)
    (data / "flights-0").write_text("a file")
    with logs_in(data) as logs:
        assert len(logs) == 0
    assert names(data) == set(strange)


def test_a_file_named_by_an_offset_that_there_cannot_be_is_no_segment(data: Path) -> None:
    with logs_in(data) as logs:
        append(logs.create("flights", "first", 0), a_batch(b"a"))
    for name in (f"{2**63 - 1:020}.log", f"{10**20 - 1}.log", f"{10**20 - 1}.snapshot"):
        (data / "flights-0" / name).touch()
    for offset in (1, 2):
        with logs_in(data) as logs:
            assert append(logs.get("flights", 0), a_batch(b"b")) == [offset]


@pytest.mark.parametrize("topic", ["a", "a-0", "a.deleted", "-", "..a", LONG])
def test_any_legal_topic_name_makes_a_directory_and_goes_again(data: Path, topic: str) -> None:
    topic_id = "0123456789abcdef0123456789abcdef-_XY"
    with logs_in(data) as logs:
        for partition in (0, 99_999):
            append(logs.create(topic, topic_id, partition), a_batch(b"a"))
    with logs_in(data) as logs:
        assert {log.name.topic for log in logs} == {topic}
        assert read_all(logs.get(topic, 99_999)) == [(0, b"a")]
        logs.delete_topic(topic_id)
    assert names(data) == set()


@pytest.mark.parametrize(
    ("topic", "topic_id", "partition", "error"),
    [
        ("../outside", "first", 0, InvalidName),
        ("", "first", 0, InvalidName),
        ("flights", "../outside", 0, InvalidRequest),
        ("flights", "", 0, InvalidRequest),
        ("flights", "x" * 65, 0, InvalidRequest),
        ("flights", "first", -1, InvalidRequest),
        ("flights", "first", 100_000, InvalidRequest),
    ],
)
def test_no_name_leads_out_of_the_data_directory(
    data: Path, topic: str, topic_id: str, partition: int, error: type[Exception]
) -> None:
    with logs_in(data) as logs:
        with pytest.raises(error):
            logs.create(topic, topic_id, partition)
        assert names(data) == set()


def test_a_log_that_cannot_be_flushed_at_the_stop_is_recovered_at_the_next_start(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Log.flush

    def refuse(log: Log) -> None:
        if log.name.partition == 0:
            raise StorageError("no")
        real(log)

    logs = logs_in(data)
    logs.start()
    for partition in range(2):
        append(logs.create("flights", "first", partition), a_batch(b"a"))
    with monkeypatch.context() as broken:
        broken.setattr(Log, "flush", refuse)
        with pytest.raises(StorageError, match="no"):
            logs.close()
    assert list(json.loads((data / "clean-shutdown").read_bytes().partition(b"\n")[2])) == [
        "flights-1"
    ]
    with logs_in(data) as again:
        assert [read_all(log) for log in again] == [[(0, b"a")]] * 2


def test_closing_twice_or_without_a_start_does_nothing(data: Path) -> None:
    logs = logs_in(data)
    logs.close()
    logs.start()
    logs.close()
    logs.close()
    assert not (data / "broker.json.new").exists()
