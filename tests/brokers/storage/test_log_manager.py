"""A broker's data directory: whose it is, what is in it after each kind of stop."""

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace as replace_struct

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.jobs.serial_queue import Pending
from folkmoot.brokers.storage import log as log_module
from folkmoot.brokers.storage.files.atomic_file import write_checked
from folkmoot.brokers.storage.files.cluster_facts import HighestIds, PartitionFacts, load_facts
from folkmoot.brokers.storage.flusher import CHECKPOINT_INTERVAL, Flusher
from folkmoot.brokers.storage.log import FlushResult, Log
from folkmoot.brokers.storage.log_manager import (
    LAYOUT,
    REMOVE_AGAIN_AFTER,
    RUNNING_FILE,
    STOPPED,
    LogManager,
)
from folkmoot.brokers.storage.notes import NOTES_FILE, Notes, load_notes, save_notes
from folkmoot.brokers.storage.partition_creation import PartitionCreation
from folkmoot.brokers.storage.recovery import RecoveryPoint
from folkmoot.coordination.deletions import Deletion
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.errors import (
    ConfigError,
    DirectoryLocked,
    InvalidName,
    InvalidRequest,
    StorageError,
)
from tests.brokers.batches import SMALL, a_batch, append, read_all, values_of
from tests.brokers.hands import Hands, create, lead

LONG = "t" * 249


def logs_in(data: Path, broker_id: int = 1) -> LogManager:
    return LogManager(data, broker_id, SMALL)


def names(data: Path) -> set[str]:
    return {path.name for path in data.iterdir() if path.is_dir()}


def found(logs: LogManager, partition: int = 0, topic_id: str = "first") -> Log:
    log = logs.find(topic_id, partition)
    assert log is not None
    return lead(log)


def task(logs: LogManager) -> None:
    """As the event loop does it."""
    while logs.deletion_task(Now(0.0, 0)) == 0.0:
        pass


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
            append(create(logs, "flights", "first", partition), a_batch(b"a", b"%d" % partition))
        killed = crash(data)
    for directory in (data, killed):
        with logs_in(directory) as logs:
            assert len(logs) == 3
            for log in map(lead, logs):
                assert log.topic_id == "first"
                assert read_all(log) == [(0, b"a"), (1, b"%d" % log.name.partition)]


def test_a_stop_flushes_only_logs_with_something_new(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    put_on_disk = log_module.put_on_disk

    def seen(directory: Path, *given: Any) -> FlushResult:
        flushed.append(directory.name)
        return put_on_disk(directory, *given)

    monkeypatch.setattr(log_module, "put_on_disk", seen)
    with logs_in(data) as logs:
        for number in range(3):
            append(create(logs, "flights", "first", number), a_batch(b"x"))
    assert sorted(flushed) == ["first-0", "first-1", "first-2"]
    flushed.clear()
    with logs_in(data) as logs:
        append(lead(found(logs, 1)), a_batch(b"y"))
    assert flushed == ["first-1"]


def test_what_was_on_disk_at_the_stop_is_not_read_again_and_all_else_is(data: Path) -> None:
    with logs_in(data) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a" * 50), a_batch(b"b" * 50))
    segment = data / "first-0" / f"{0:020}.log"
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    killed, forgetful = crash(data), crash(data, "-forgetful")
    # What was on disk before is not read again; the scrub will find it.
    with logs_in(killed) as logs:
        assert found(logs).log_end == 2
    (forgetful / NOTES_FILE).unlink()
    with logs_in(forgetful) as logs:
        assert found(logs).log_end == 1


def test_what_was_appended_since_the_last_stop_is_checked_after_a_kill(data: Path) -> None:
    with logs_in(data) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a" * 50))
    with logs_in(data) as logs:
        append(found(logs), a_batch(b"b" * 50))
        killed = crash(data)
    segment = killed / "first-0" / f"{0:020}.log"
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    with logs_in(killed) as logs:
        assert read_all(found(logs)) == [(0, b"a" * 50)]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"nonsense"),
        lambda path: path.write_bytes(
            path.read_bytes().replace(b'"end_offset":1', b'"end_offset":2')
        ),
        lambda path: write_checked(path, b'{"recovery_points":{"first-0": 1}}'),
        lambda path: save_notes(
            path.parent, Notes(recovery_points={"first-0": RecoveryPoint(9, 5, 118)})
        ),
        lambda path: write_checked(path, b"{}"),
        lambda path: path.unlink(),
    ],
)
def test_a_wrong_word_about_the_last_stop_is_not_believed(
    data: Path, spoil: Callable[[Path], None]
) -> None:
    with logs_in(data) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a"))
    spoil(data / NOTES_FILE)
    with logs_in(data) as logs:
        assert values_of(found(logs).read(0, 1)) == [(0, b"a")]


def test_a_directory_serves_one_broker_at_a_time(data: Path) -> None:
    with logs_in(data) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a"))
        with pytest.raises(DirectoryLocked, match=f"in use by process {os.getpid()}: stop it"):
            logs_in(data).start()
        assert read_all(found(logs)) == [(0, b"a")]
    with logs_in(data):
        pass


def test_a_directory_is_free_again_when_its_process_is_gone(data: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path;"
        "from tests.brokers.storage.test_log_manager import logs_in;"
        "logs_in(Path(sys.argv[1])).start(); os._exit(0)"
    )
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    subprocess.run(
        [sys.executable, "-c", program, str(data)], env=environment, check=True, timeout=30
    )
    with logs_in(data):
        pass


def test_a_directory_belongs_to_the_broker_that_made_it(data: Path) -> None:
    with logs_in(data, broker_id=1) as logs:
        directory = logs.directory_id
    noted = json.loads((data / "broker.json").read_text())
    assert noted == {"broker_id": 1, "layout": LAYOUT, "directory": directory}
    with pytest.raises(ConfigError, match=r"broker_id=2 .* belongs to broker 1"):
        logs_in(data, broker_id=2).start()
    with LogManager(data, 1, SMALL, cluster="4c") as logs:
        assert logs.directory_id == directory
    noted = json.loads((data / "broker.json").read_text())
    assert (noted["cluster"], noted["directory"]) == ("4c", directory)
    with logs_in(data.with_name("another")) as logs:
        assert logs.directory_id != directory


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"broker_id": "1"}', b"\xff\xfe", b'{"broker_id":1,"cluster":"\xb4"}']
)
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


@pytest.mark.parametrize("layout", [b"", b',"layout":1', b',"layout":5'])
def test_another_layout_is_refused_in_one_line_and_left_as_it_is(data: Path, layout: bytes) -> None:
    (data / "flights-0").mkdir(parents=True)
    (data / "broker.json").write_bytes(b'{"broker_id":1%b}' % layout)
    before = {path: path.is_file() and path.read_bytes() for path in data.rglob("*")}
    with pytest.raises(ConfigError, match=r"has layout [15], .* reads layout 4") as refused:
        logs_in(data).start()
    assert "\n" not in str(refused.value)
    after = {path: path.is_file() and path.read_bytes() for path in data.rglob("*")}
    assert {path: each for path, each in after.items() if path.name != ".lock"} == before


def test_creating_a_log_twice_gives_the_same_log(data: Path) -> None:
    with logs_in(data) as logs:
        log = create(logs, "flights", "first", 0)
        assert create(logs, "flights", "first", 0) is log
        assert logs.find("first", 0) is log
        assert logs.find("first", 1) is None
        assert logs.find("second", 0) is None
        assert (data / "first-0" / "topic").read_text() == "flights\n"


def test_a_topic_made_again_under_its_name_never_sees_the_old_records(data: Path) -> None:
    with logs_in(data) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"old"))
        log = create(logs, "flights", "second", 0)
        assert (log.topic_id, log.log_end) == ("second", 0)
        append(log, a_batch(b"new"))
    with logs_in(data) as logs:
        assert read_all(create(logs, "flights", "second", 0)) == [(0, b"new")]
        logs.configure("flights", "third", {})
        assert create(logs, "flights", "third", 0).log_end == 0
        task(logs)
        assert names(data) == {"first-0", "second-0", "third-0"}, "nobody has deleted those"


def test_a_topic_is_deleted_by_its_id(data: Path) -> None:
    with logs_in(data) as logs:
        for partition in range(3):
            append(create(logs, "flights", "first", partition), a_batch(b"a"))
        kept = create(logs, "other", "second", 0)
        logs.delete_topic("first")
        logs.delete_topic("first")
        assert list(logs) == [kept]
        assert len(logs) == 1
        assert logs.find("first", 0) is None
        task(logs)
        assert names(data) == {"second-0"}


def test_a_recorded_deletion_is_carried_out_after_its_delay_and_said_at_each_step(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone: list[str] = []
    config = replace(SMALL, delete_delay=60.0)
    with LogManager(data, 1, config, on_deleted=gone.append) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a"))
        caplog.set_level(logging.INFO)
        for now in (0.0, 59.0):
            logs.delete_later("first", Deletion("flights", 0.0, "ann@host", (1,)))
            logs.deletion_task(Now(now, 0))
            assert names(data) == {"first-0"}
        assert "deleted by ann@host: its 1 directories here go in 60 s" in caplog.text
        assert not gone
        logs.deletion_task(Now(60.0, 0))
        assert (names(data), gone) == (set(), ["first"])
        assert "1 directories are renamed" in caplog.text
        assert "its directories are removed" in caplog.text
        logs.delete_later("unknown", Deletion("other", 0.0, "", (1,)))
        for now in (60.0, 120.0):
            logs.deletion_task(Now(now, 0))
        assert gone == ["first", "unknown"], "there is nothing of it here"


def test_a_topic_that_is_there_again_within_the_delay_keeps_its_records(data: Path) -> None:
    with LogManager(data, 1, replace(SMALL, delete_delay=60.0)) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a"))
        logs.delete_later("first", Deletion("flights", 0.0, "", (1,)))
        logs.deletion_task(Now(0.0, 0))
        logs.configure("flights", "first", {})
        logs.deletion_task(Now(61.0, 0))
        assert read_all(found(logs)) == [(0, b"a")]


def test_a_topic_that_is_there_again_while_its_directories_go_gets_a_log_after_they_are_gone(
    data: Path,
) -> None:
    """A log that was made in the meantime lost its directory to the deletion."""
    hands = Hands()
    logs = LogManager(data, 1, SMALL, submit=hands.submit)
    logs.start()
    old = create(logs, "flights", "first", 0)
    release: Pending[None] = Pending()

    async def wait() -> None:
        await release

    old.queue.add(wait())
    logs.delete_later("first", Deletion("flights", 0.0, "", (1,)))
    logs.deletion_task(Now(0.0, 0))
    logs.configure("flights", "first", {})
    creation, made = PartitionCreation(logs), list[Exception | None]()
    creation.when_created("flights", "first", 0, made.append)
    release.finish(None)
    task(logs)
    hands.work_all()
    creation.task(Now(1.0, 0))
    assert made == [None]
    append(lead(found(logs)), a_batch(b"new"))
    assert names(data) == {"first-0"}
    logs.close()
    with logs_in(data) as logs:
        assert read_all(lead(found(logs))) == [(0, b"new")]


def test_a_directory_that_could_not_be_renamed_is_used_again_when_its_topic_is_there_again(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError("read-only")

    with LogManager(data, 1, SMALL) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a"))
        with monkeypatch.context() as faulty:
            faulty.setattr(Path, "rename", refuse)
            logs.delete_later("first", Deletion("flights", 0.0, "", (1,)))
            logs.deletion_task(Now(0.0, 0))
            assert logs.is_deleting(data / "first-0")
        logs.configure("flights", "first", {})
        assert not logs.is_deleting(data / "first-0")
        assert read_all(create(logs, "flights", "first", 0)) == [(0, b"a")]


def test_a_topic_that_is_deleted_again_while_its_directories_go_is_carried_out_once(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError("read-only")

    hands, carried_out = Hands(), list[str]()
    logs = LogManager(data, 1, SMALL, submit=hands.submit, on_deleted=carried_out.append)
    logs.start()
    append(create(logs, "flights", "first", 0), a_batch(b"a"))
    with monkeypatch.context() as faulty:
        faulty.setattr(Path, "rename", refuse)
        logs.delete_later("first", Deletion("flights", 0.0, "", (1,)))
        logs.deletion_task(Now(0.0, 0))
        logs.configure("flights", "first", {})
        assert logs.is_deleting(data / "first-0")
        logs.delete_later("first", Deletion("flights", 1.0, "", (1,)))
        logs.deletion_task(Now(1.0, 0))
        hands.work_all()
    assert logs.is_deleting(data / "first-0")
    assert carried_out == []
    logs.deletion_task(Now(REMOVE_AGAIN_AFTER, 0))
    hands.work_all()
    assert (names(data), carried_out) == (set(), ["first"])
    logs.close()


def test_a_topics_own_delay_of_its_deletion_is_known_after_a_restart(data: Path) -> None:
    topic = TopicInfo("first", [[1]], {"delete_delay": "86400"}, revision=1)
    config = replace(SMALL, delete_delay=60.0)
    with LogManager(data, 1, config) as logs:
        logs.configure("flights", "first", topic.config, topic)
        append(create(logs, "flights", "first", 0), a_batch(b"a"))
    with LogManager(data, 1, config) as logs:
        logs.delete_later("first", Deletion("flights", 0.0, "", (1,)))
        for now in (0.0, 61.0, 86_399.0):
            logs.deletion_task(Now(now, 0))
            assert names(data) == {"first-0"}
        logs.deletion_task(Now(86_400.0, 0))
        assert names(data) == set()


def test_a_deletion_that_was_taken_back_or_may_have_been_removes_nothing(data: Path) -> None:
    is_cut_off = True
    config = replace(SMALL, delete_delay=60.0)
    with LogManager(data, 1, config, is_cut_off=lambda: is_cut_off) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a"))
        logs.delete_later("first", Deletion("flights", 0.0, "", (1,)))
        logs.deletion_task(Now(0.0, 0))
        logs.deletion_task(Now(61.0, 0))
        assert names(data) == {"first-0"}, "it cannot hear what has become of the deletion"
        assert logs.scheduled() == ["first"]
        logs.keep("first")
        is_cut_off = False
        logs.deletion_task(Now(62.0, 0))
        assert names(data) == {"first-0"}


def test_an_id_that_a_client_made_up_is_not_taken_for_one_that_was_given() -> None:
    ids = HighestIds()
    for producer_id in (7, 2**63 - 1, 2**62 + 1):
        ids.note_ids(producer_id, 0)
    assert ids.producer == 7


def test_a_directory_says_what_its_topic_is_and_how_new_that_is(data: Path) -> None:
    old = TopicInfo("first", [[1, 2], [1]], {"retention": "7"}, had_page_cache=True, revision=4)
    new = replace_struct(old, partitions=[[2, 1], [1]], revision=5)
    with logs_in(data) as logs:
        logs.configure("flights", "first", old.config, old)
        create(logs, "flights", "first", 0)
        assert load_facts(data / "first-0") == ("flights", PartitionFacts.of(old, 0))
        create(logs, "flights", "first", 1)
        logs.configure("trips", "first", new.config, new)
        assert load_facts(data / "first-0") == ("trips", PartitionFacts.of(new, 0))
    with logs_in(data) as logs:
        assert logs.revision_of("first") == 5
    path = data / "first-0" / "topic"
    path.write_bytes(path.read_bytes().replace(b'"revision":5', b'"revision":9'))
    assert load_facts(data / "first-0") == ("trips", None)


def test_what_is_lost_is_kept_as_it_is_until_it_is_known_again(data: Path) -> None:
    with logs_in(data) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a"))
        logs.configure("flights", "first", {"retention": "1"})
        assert (logs.lose("first"), logs.lose("first")) == (1, 0)
        assert not found(logs).configured, "neither retention nor compaction"
        logs.configure("flights", "second", {})
        task(logs)
        assert names(data) == {"first-0"}
        logs.configure("flights", "first", {"retention": "1"})
        assert found(logs).configured
        assert logs.lose("first") == 1


def test_one_directory_that_cannot_be_removed_is_tried_again_and_keeps_none_of_the_others(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first error left all those behind it under their names, for the next start to serve."""
    real = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == "first-1":
            raise PermissionError("read-only")
        return real(self, target)

    gone: list[str] = []
    with LogManager(data, 1, SMALL, on_deleted=gone.append) as logs:
        for partition in range(4):
            append(create(logs, "flights", "first", partition), a_batch(b"a"))
        logs.configure("flights", "first", {})
        with monkeypatch.context() as faulty:
            faulty.setattr(Path, "rename", refuse)
            logs.delete_partition("first", 0)
            logs.delete_partition("first", 1)
            logs.delete_later("first", Deletion("flights", 0.0, "", (1,)))
            logs.deletion_task(Now(0.0, 0))
            assert names(data) == {"first-1"}
        assert logs.is_deleting(data / "first-1"), "nothing is made in its place"
        assert "1 directories are left for now: read-only" in caplog.text
        logs.deletion_task(Now(REMOVE_AGAIN_AFTER, 0))
        assert names(data) == set()
        assert not logs.is_deleting(data / "first-1")
        assert gone == ["first"]


def test_deleting_a_topic_touches_no_disk_on_the_event_loop_and_takes_some_logs_at_a_time(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush for each of 300 directories stood still for 2.4 s."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the event loop waits for the disk")

    hands = Hands()
    logs = LogManager(data, 1, SMALL, submit=hands.submit)
    logs.start()
    for partition in range(100):
        create(logs, "flights", "first", partition)
    with monkeypatch.context() as slow:
        for name in ("fsync", "fdatasync", "rename", "replace", "unlink", "rmdir", "scandir"):
            slow.setattr(os, name, refuse)
        logs.delete_topic("first")
        assert logs.find("first", 0) is None
        tasks = 1
        while logs.deletion_task(Now(0.0, 0)) == 0.0:
            tasks += 1
    assert tasks == len(hands.jobs) == 4
    flushed: list[int] = []
    with monkeypatch.context() as counted:
        counted.setattr(os, "fsync", flushed.append)
        hands.work_all()
    assert len(flushed) == 4, "the names of one job's directories are put on disk together"
    assert names(data) == set()
    logs.close()


def test_a_deletion_that_was_interrupted_is_finished_by_the_next_start(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("interrupted")

    with logs_in(data) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a"))
        with monkeypatch.context() as interrupted:
            interrupted.setattr("shutil.rmtree", refuse)
            logs.delete_topic("first")
            task(logs)
        assert names(data) == {"first-0.deleted"}
    with logs_in(data) as logs:
        assert len(logs) == 0
    assert names(data) == set()


def test_a_stop_right_after_a_deletion_leaves_nothing_to_serve(data: Path) -> None:
    with logs_in(data) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a"))
        logs.delete_topic("first")
    with logs_in(data) as logs:
        assert len(logs) == 0
    assert names(data) == set()


def test_a_directory_whose_topic_file_is_lost_is_served_under_the_name_that_the_cluster_has(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for spoiled in (None, b"\xff/../x"):
        with logs_in(data) as logs:
            append(create(logs, "flights", "first", 0), a_batch(b"a"))
        path = data / "first-0" / "topic"
        path.unlink() if spoiled is None else path.write_bytes(spoiled)
        with logs_in(data) as logs:
            assert "cannot be read" in caplog.text
            assert str(found(logs).name) == "first-0"
            logs.configure("flights", "first", {})
            assert str(found(logs).name) == "flights-0"
            assert read_all(found(logs))[0] == (0, b"a")


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_one_directory_without_its_topic_file_gets_the_name_of_the_others(
    data: Path, lost: int
) -> None:
    """As after a kill while the directories of a new topic were made: its partition could not be led."""
    with logs_in(data) as logs:
        for partition in range(3):
            create(logs, "flights", "first", partition)
    (data / f"first-{lost}" / "topic").unlink()
    with logs_in(data) as logs:
        logs.configure("flights", "first", {})
        assert {str(log.name) for log in logs} == {"flights-0", "flights-1", "flights-2"}


def test_topics_that_went_while_the_broker_was_away_are_named_in_one_line(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with logs_in(data) as logs:
        for partition in range(3):
            create(logs, "gone", "first", partition)
        create(logs, "there", "second", 0)
    with logs_in(data) as logs:
        caplog.clear()
        assert logs.report_orphans({"second", "third"}) == ["first"]
        [line] = caplog.messages
        assert "1 topics" in line
        assert "folkmoot log orphans" in line
        caplog.clear()
        assert logs.report_orphans({"first", "second"}) == []
        assert caplog.messages == []
        assert len(logs) == 4, "nothing is deleted by that"


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
        append(create(logs, "flights", "first", 0), a_batch(b"a"))
    for name in (f"{2**63 - 1:020}.log", f"{10**20 - 1}.log", f"{10**20 - 1}.snapshot"):
        (data / "first-0" / name).touch()
    for offset in (1, 2):
        with logs_in(data) as logs:
            assert append(found(logs), a_batch(b"b")) == [offset]


@pytest.mark.parametrize("topic", ["a", "a-0", "a.deleted", "-", "..a", LONG])
def test_any_legal_topic_name_makes_a_directory_and_goes_again(data: Path, topic: str) -> None:
    topic_id = "0123456789abcdef0123456789abcdef-_XY"
    with logs_in(data) as logs:
        for partition in (0, 99_999):
            append(create(logs, topic, topic_id, partition), a_batch(b"a"))
    with logs_in(data) as logs:
        assert {log.name.topic for log in logs} == {topic}
        assert read_all(found(logs, 99_999, topic_id)) == [(0, b"a")]
        logs.delete_topic(topic_id)
        task(logs)
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
            create(logs, topic, topic_id, partition)
        assert names(data) == set()


def test_a_log_that_cannot_be_closed_in_order_is_recovered_at_the_next_start(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Log.close

    def refuse(log: Log) -> object:
        if log.name.partition == 0:
            raise StorageError("no")
        return real(log)

    logs = logs_in(data)
    logs.start()
    for partition in range(2):
        append(create(logs, "flights", "first", partition), a_batch(b"a"))
    with monkeypatch.context() as broken:
        broken.setattr(Log, "close", refuse)
        with pytest.raises(StorageError, match="no"):
            logs.close()
    points = load_notes(data).recovery_points
    assert list(points) == ["first-1"]
    with logs_in(data) as again:
        assert [read_all(lead(log)) for log in again] == [[(0, b"a")]] * 2


def test_a_flush_whose_outcome_was_not_taken_is_not_vouched_for_by_the_stop(data: Path) -> None:
    """The kernel tells of an error once: a second flush at the stop could succeed and prove nothing."""
    hands = Hands()
    logs = LogManager(data, 1, SMALL, submit=hands.submit)
    logs.start()
    log = create(logs, "flights", "first", 0)
    append(log, a_batch(b"a"))
    flusher = Flusher(logs)
    flusher.note_appended(log, 1, Now(0.0, 0))
    flusher.task(Now(CHECKPOINT_INTERVAL, 0))
    flusher.task(Now(CHECKPOINT_INTERVAL, 0))
    [(_, work, _)] = hands.jobs
    work()  # and the event loop has ended before it was told
    logs.close()
    points = load_notes(data).recovery_points
    assert points == {}


@pytest.mark.parametrize("durability", ["fsync", "page-cache"])
def test_a_stop_with_a_log_that_failed_and_was_not_flushed_is_not_orderly(
    data: Path, durability: Literal["fsync", "page-cache"]
) -> None:
    """What it acknowledged since its last flush is in the page cache alone."""
    with LogManager(data, 1, replace(SMALL, durability=durability)) as logs:
        log = create(logs, "flights", "first", 0)
        append(log, a_batch(b"a"))
        log.fail("its end is torn", readable=True)
    is_orderly = (data / RUNNING_FILE).read_bytes() == STOPPED
    assert is_orderly == (durability == "fsync"), "there an answer has waited for its flush"


def test_closing_twice_or_without_a_start_does_nothing(data: Path) -> None:
    logs = logs_in(data)
    logs.close()
    logs.start()
    logs.close()
    logs.close()
    assert not (data / "broker.json.new").exists()


def test_a_broker_starts_on_a_disk_that_is_full(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logs_in(data) as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("folkmoot.brokers.storage.log_manager.os.pwrite", full)
        logs = logs_in(data)
        logs.start()
        assert read_all(found(logs)) == [(0, b"a")]
        logs.abandon()


def test_a_flush_that_fails_while_the_page_cache_is_about_to_be_trusted_again_counts(
    data: Path,
) -> None:
    hands = Hands()
    logs = LogManager(data, 1, SMALL, submit=hands.submit)
    logs.start()
    log = create(logs, "t", "first", 0)
    logs.suspects.add(log.directory.name)
    logs.trust(log)
    logs.distrust()
    hands.work_all()
    assert (data / RUNNING_FILE).read_bytes() == b"", "a start takes that for a lost page cache"
    logs.abandon()
