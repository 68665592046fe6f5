"""All logs of a broker: its data directory."""

import fcntl
import logging
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from folkmoot.brokers.jobs.jobs import (
    Lane,
    Now,
    PassedTime,
    Submit,
    at_once,
    log_failure,
    result_of,
)
from folkmoot.brokers.jobs.serial_queue import RunJob, SerialQueue
from folkmoot.brokers.storage.files.atomic_file import (
    make_directory,
    make_spare,
    overwrite,
    sync_directory,
    write_atomic,
)
from folkmoot.brokers.storage.files.cluster_facts import (
    TOPIC_FILE,
    HighestIds,
    PartitionFacts,
    is_same,
    load_facts,
    save_facts,
    topic_in,
)
from folkmoot.brokers.storage.leader_epochs import EPOCH_STARTS_FILE, NO_EPOCH
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.notes import NOTES_SPARE_FILE, Notes, load_notes, save_notes
from folkmoot.brokers.storage.recovery import SPARE_FILE
from folkmoot.brokers.storage.segment import OpenSegments
from folkmoot.coordination.deletions import Deletion
from folkmoot.coordination.topic_config import LogConfig, topic_config
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.errors import (
    ConfigError,
    DirectoryLocked,
    FolkmootError,
    InvalidRequest,
    StorageError,
)
from folkmoot.protocol.names import check_name
from folkmoot.protocol.records import TopicPartition

logger = logging.getLogger(__name__)

LAYOUT: Final = 4
"""The version of what lies in a data directory; another one is refused."""

LOCK_FILE: Final = ".lock"
IDENTITY_FILE: Final = "broker.json"
RUNNING_FILE: Final = "running"
STOPPED: Final = b"stopped".ljust(36)
"""The content of `running` after an orderly stop, as long as a boot's id: it needs no room on a full disk."""

DELETED: Final = ".deleted"
DELETED_AT_ONCE: Final = 32
CLOSED_AT_ONCE: Final = 128
CLOSING_THREADS: Final = 8
REMOVE_AGAIN_AFTER: Final = 30.0
ORPHANS_SHOWN: Final = 5

_MAX_PARTITION = 99_999
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIRECTORY = re.compile(r"(?P<topic_id>[A-Za-z0-9_-]{1,64})-(?P<partition>0|[1-9][0-9]{0,4})")


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of `broker.json`; fields that a later version adds are passed over."""

    broker_id: int
    layout: int = 1
    cluster: str = ""
    directory: str = ""
    """A unique id of this data directory."""


class PartitionDirectory(NamedTuple):
    """The directory `<topic id>-<partition>` of a partition."""

    path: Path
    topic_id: str
    partition: int
    topic: str
    """The topic's name, for people; "" if the file `topic` cannot be read."""


class _Topic:
    """The logs of one topic, by partition."""

    __slots__ = ("config", "info", "logs", "name", "revision", "saved_facts")

    def __init__(self, name: str) -> None:
        self.name = name
        self.info: TopicInfo | None = None
        self.saved_facts: dict[int, tuple[str, PartitionFacts | None]] = {}
        """By partition, the topic's name and the facts in the file `topic` of its directory."""
        self.revision = 0
        """The highest revision of the topic's node that this broker has seen."""
        self.config: LogConfig | None = None
        """None until the cluster's view names the topic's options."""
        self.logs: dict[int, Log] = {}


class LogManager:
    """A broker's data directory; docs/format.md lists its files.

    Start: lock, compare the identity, remove deleted directories, open every log and check its records
    after the recovery point. A log that cannot be opened is out of use until the next start; the others
    are served, unless all of them fail. Stop is the reverse.

    A directory is known by its topic's id, so a new topic with an old name has directories of its own.
    The name in a directory is for people; `configure` corrects it.

    **Nothing is removed that was not deleted.** `delete_later` carries a recorded deletion out after
    `delete_delay`; `delete_partition` removes a replica that moved to another broker. A topic that the
    cluster does not know, or knows under another id, is `lost`: the broker does not serve it, and retention
    and compaction skip it, until the cluster knows it again.

    Crash story of a deletion: until the rename to `.deleted` is on disk, the next start finds the log, and
    serves it to no client, since no topic has that id; the deletion's record is still there. After the
    rename the next start removes the directory. A rename or removal that fails is retried, and only then
    the deletion counts as carried out.

    Owner: the broker's event loop. `start` and `close` block; they run before and after it.
    """

    def __init__(
        self,
        data: Path,
        broker_id: int,
        config: LogConfig,
        files: OpenSegments | None = None,
        submit: Submit = at_once,
        cluster: str = "",
        *,
        is_cut_off: Callable[[], bool] = lambda: False,
        on_deleted: Callable[[str], None] = lambda topic_id: None,
        on_ids_saved: Callable[[HighestIds], None] = lambda ids: None,
    ) -> None:
        """`cluster`: the id of the cluster that the directory belongs to from now on; "" leaves that open.

        While `is_cut_off` no deletion is carried out: it may have been taken back. `on_deleted` is called
        with a topic's id when its deletion has ended here, `on_ids_saved` when higher ids are on disk."""
        self.data = data
        self._cluster = cluster
        self.config = config
        self.files = OpenSegments() if files is None else files
        self.room = self.files.room
        self.room.data = data
        self.passed_time = PassedTime()
        """The clock for the age of records."""
        self.dirty: dict[Log, None] = {}
        """Logs that a flush would put on disk, the oldest first (Flusher)."""
        self.notes = Notes()
        """The current notes; `Flusher.note` puts them on disk."""
        self.saved_notes = Notes()
        """The notes on disk."""
        self.has_stale_points = False
        """True if `saved_notes` has recovery points of deleted logs. They make a new log lack records."""
        self.suspects: set[str] = set()
        """Directories of replicas that may have lost what was in the page cache: the machine went down
        under their broker, or a flush failed. Each start finds them so until `trust` has cleared all."""
        self._has_lost = False
        self._broker_id = broker_id
        self._submit = submit
        self.run_job: RunJob = partial(submit, Lane.DISK)
        self.run_note: RunJob = partial(submit, Lane.NOTES)
        """Runs jobs that write files of the data directory itself, one after another."""
        self.directory_id = ""
        self._lock = -1
        self._topics: dict[str, _Topic] = {}
        self._ids: dict[str, set[str]] = {}
        """By name, the ids of topics that have logs here or are configured."""
        self.lost: set[str] = set()
        """Ids of topics with logs here that the cluster does not know, or knows no more."""
        self._is_cut_off = is_cut_off
        self._on_deleted = on_deleted
        self._on_ids_saved = on_ids_saved
        self._scheduled: dict[str, float | None] = {}
        """When to delete a topic (monotonic); None until the deletion task has seen it."""
        self._unreported: set[str] = set()
        """Ids of topics whose deletion is under way, and not carried out yet."""
        self._deleted: deque[Log] = deque()
        """Logs to close, and whose directories are then removed."""
        self._deleting: dict[str, set[str]] = {}
        """By topic id, the names of directories that are being removed."""
        self._left_behind: set[str] = set()
        """Those of them whose removal has failed."""
        self._cancelled: set[str] = set()
        """Directories whose removal has begun, and was taken back: it is not retried if it fails."""
        self._doomed: dict[Log, list[Path]] = {}
        """Files of logs to be removed, in order."""
        self._remove_again_at = 0.0

    def start(self) -> None:
        """Raises DirectoryLocked, ConfigError, StorageError; then nothing is left open or locked."""
        try:
            self._lock_directory()
            self._check_identity()
            self._open_all()
            self._note_running()
            for spare in (SPARE_FILE, NOTES_SPARE_FILE):
                make_spare(self.data / spare)
        except OSError as error:
            self.abandon()
            raise StorageError(f"{self.data} cannot be used: {error}") from error
        except BaseException:
            self.abandon()
            raise

    def close(self) -> None:
        """Flush and close all logs, and note where they end. Raises the first StorageError, closed."""
        if self._lock < 0:
            return
        failures: list[StorageError] = []
        logs = [log for log in self if log.failed is None]
        # Records that a failed log has acknowledged may be in the page cache alone, as after a kill.
        self._has_lost |= any(log.failed is not None and not log.flushes for log in self)
        _flush_side_by_side(logs)
        for log in logs:
            # The outcome of a flush that is under way is lost, and later records are in the page cache alone.
            self._has_lost |= not (log.queue.is_idle or log.flushes)
            try:
                point = log.close()
            except StorageError as error:
                self.distrust()
                failures.append(error)
                continue
            if point is not None:
                self.notes.recovery_points[log.directory.name] = point
        try:
            names = [log.directory.name for log in self._deleted]
            if left := delete_directories(self.data, names):
                logger.error("%s: left behind: %s", self.data, "; ".join(map(str, left.values())))
            save_notes(self.data, self.notes)
            if not (self.suspects or self._has_lost):
                overwrite(self.data / RUNNING_FILE, STOPPED)
        except OSError as error:
            failures.append(StorageError(f"{self.data}: the logs' ends were not noted: {error}"))
        self.abandon()
        if failures:
            raise failures[0]

    def abandon(self) -> None:
        """Close all files without a flush, as after a crash, and unlock the directory."""
        for log in (*self, *self._deleted):
            log.queue.close()
            log.abandon()
        for collection in (
            self._topics,
            self._ids,
            self.lost,
            self.dirty,
            self._deleted,
            self._doomed,
        ):
            collection.clear()
        for names in (
            self._scheduled,
            self._unreported,
            self._deleting,
            self._left_behind,
            self._cancelled,
        ):
            names.clear()
        if self._lock >= 0:
            lock, self._lock = self._lock, -1
            os.close(lock)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- power --------------------------------------------------------------------------------------

    def _note_running(self) -> None:
        """Note the machine's boot: a start after a power cut finds an earlier one. Raises OSError."""
        path, boot = self.data / RUNNING_FILE, boot_id()
        found = path.read_bytes() if path.exists() else b""
        if found != STOPPED and (found != boot or not boot):
            self.suspects = {log.directory.name for log in self}
        if not self.suspects and (found != boot or not path.exists()):
            write = overwrite if path.exists() else write_atomic
            write(path, boot)

    def distrust(self) -> None:
        """A flush has failed: have the next start act as after a power cut.

        This write is not flushed: a power cut that loses it has the same effect.
        """
        self._has_lost = True
        with suppress(OSError):
            (self.data / RUNNING_FILE).write_bytes(b"")

    def trust(self, log: Log) -> None:
        """The log has all committed records, or does not count on the page cache."""
        if log.directory.name in self.suspects:
            self.suspects.discard(log.directory.name)
            if not (self.suspects or self._has_lost):
                failed = partial(log_failure, f"{self.data}: the next start trusts no page cache")
                self.run_note(self._note_trusted, failed)

    def _note_trusted(self) -> None:
        """The background's part of `trust`; a flush may have failed in the meantime."""
        write_atomic(self.data / RUNNING_FILE, boot_id())
        if self._has_lost:
            self.distrust()

    def mark_incomplete(self) -> None:
        """Note all replicas as incomplete, on disk: another data directory had this broker's id last, and
        may have acknowledged records that are missing here. Raises StorageError."""
        for log in self:
            log.may_lack_acked()

    # -- logs ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(len(topic.logs) for topic in self._topics.values())

    def __iter__(self) -> Iterator[Log]:
        return iter([log for topic in self._topics.values() for log in topic.logs.values()])

    def find(self, topic_id: str, partition: int) -> Log | None:
        """Return the log of a partition, None if there is none. Called for each entry of each request."""
        topic = self._topics.get(topic_id)
        return None if topic is None else topic.logs.get(partition)

    def add(self, log: Log, topic_file: tuple[str, PartitionFacts | None] | None = None) -> None:
        """Add a log that was just opened. `topic_file`: what its file `topic` has (load_facts), if known."""
        topic = self._topics.get(log.topic_id)
        if topic is None:
            topic = self._topics[log.topic_id] = _Topic(log.name.topic)
            self._ids.setdefault(topic.name, set()).add(log.topic_id)
        topic.logs[log.name.partition] = log
        log.ids = self.notes.ids
        name, facts = load_facts(log.directory) if topic_file is None else topic_file
        topic.saved_facts[log.name.partition] = name, facts
        topic.revision = max(topic.revision, 0 if facts is None else facts.revision)
        if topic.config is not None:
            log.config, log.configured = topic.config, True
        if log.is_open and log.dirty:
            self.dirty[log] = None

    def configure(
        self,
        name: str,
        topic_id: str,
        options: Mapping[str, str],
        info: TopicInfo | None = None,
    ) -> None:
        """Apply a topic's node, and have its facts noted beside its records. If the options are not allowed,
        the former ones stay.

        Before the first call a topic's retention is not known, and none of its records is deleted.
        """
        self.keep(topic_id)
        self.lost.discard(topic_id)
        topic = self._topics.setdefault(topic_id, _Topic(name))
        if topic.name != name:
            self._ids[topic.name].discard(topic_id)
            topic.name = name
        self._ids.setdefault(name, set()).add(topic_id)
        for log in topic.logs.values():
            log.name = TopicPartition(name, log.name.partition)
        if info is not None:
            topic.info, topic.revision = info, max(topic.revision, info.revision)
        self._note_facts(topic)
        try:
            config = topic_config(self.config, options)
        except ConfigError as error:
            logger.error("topic %s keeps its former options: %s", name, error)
            return
        topic.config = config
        for log in topic.logs.values():
            log.config, log.configured = config, True

    def revision_of(self, topic_id: str) -> int:
        """The highest revision of a topic's node that this broker has seen; 0 if it has no logs of it."""
        topic = self._topics.get(topic_id)
        return 0 if topic is None else topic.revision

    def facts_of(self, topic_id: str, partition: int) -> PartitionFacts | None:
        """The facts of a partition in the topic's node; None before `configure`."""
        topic = self._topics.get(topic_id)
        info = None if topic is None else topic.info
        known = info is not None and partition < len(info.partitions)
        return PartitionFacts.of(info, partition) if info is not None and known else None

    def _note_facts(self, topic: _Topic) -> None:
        stale: dict[int, tuple[Path, tuple[str, PartitionFacts | None]]] = {}
        for number, log in topic.logs.items():
            name, saved = topic.saved_facts.get(number, ("", None))
            facts = self.facts_of(log.topic_id, number) or saved
            if name != topic.name or not is_same(saved, facts):
                stale[number] = log.directory, (topic.name, facts)

        def written(outcome: object) -> None:
            log_failure(f"{self.data}: the facts of topic {topic.name} were not noted", outcome)
            if not isinstance(outcome, Exception):
                topic.saved_facts.update({number: saved for number, (_, saved) in stale.items()})

        if stale:
            self._submit(Lane.FACTS, partial(_save_facts, list(stale.values())), written)

    def ids_of(self, name: str) -> set[str]:
        """The ids of topics of that name that have logs here or are configured."""
        return self._ids.get(name, set())

    def name_of(self, topic_id: str) -> str:
        """The name of a topic that has logs here; else its id."""
        topic = self._topics.get(topic_id)
        return topic_id if topic is None else topic.name

    def lose(self, topic_id: str) -> int:
        """Keep a topic's logs as they are until it is configured again → how many; 0 if it was lost before,
        its deletion is scheduled, or it has none."""
        topic = self._topics.get(topic_id)
        if topic is None or topic_id in self.lost or topic_id in self._scheduled:
            return 0
        if not topic.logs:
            self.delete_topic(topic_id)
            return 0
        self.lost.add(topic_id)
        topic.config = None
        for log in topic.logs.values():
            log.configured = False
        return len(topic.logs)

    # -- deletion -----------------------------------------------------------------------------------

    def delete_later(self, topic_id: str, deletion: Deletion) -> None:
        """Delete a topic's directories once `delete_delay` is over, unless it is configured again before.

        `on_deleted` is called when all are removed. A second call for the same topic does nothing."""
        if topic_id in self._scheduled or topic_id in self._unreported:
            return
        topic = self._topics.get(topic_id)
        self._scheduled[topic_id] = None
        self.lost.discard(topic_id)
        if topic is not None and topic.logs:
            logger.warning(
                "topic %s (id %s) was deleted by %s: its %d directories here go in %g s",
                *(deletion.topic, topic_id, deletion.by or "somebody", len(topic.logs)),
                self._delete_delay(topic_id),
            )

    def keep(self, topic_id: str) -> None:
        """A topic's deletion was taken back: keep its directories, also those that could not be renamed."""
        self._scheduled.pop(topic_id, None)
        if topic_id in self._unreported:
            self._unreported.discard(topic_id)
            deleting = self._deleting.get(topic_id, set())
            failed = self._left_behind & deleting
            self._left_behind -= failed
            self._cancelled |= deleting - failed
            deleting -= failed

    def scheduled(self) -> list[str]:
        """The ids of topics that are deleted once their delay is over."""
        return list(self._scheduled)

    def _delete_delay(self, topic_id: str) -> float:
        topic = self._topics.get(topic_id)
        if topic is not None and topic.config is not None:
            return topic.config.delete_delay
        # Not configured since the start: its directories have its options.
        facts_on_disk = (
            [] if topic is None else [facts for _, facts in topic.saved_facts.values() if facts]
        )
        newest = max(facts_on_disk, key=lambda facts: facts.revision, default=None)
        try:
            return topic_config(self.config, newest.config if newest else {}).delete_delay
        except ConfigError:
            return self.config.delete_delay

    def _delete_due(self, now: float) -> None:
        for topic_id, due in list(self._scheduled.items()):
            if due is None:
                due = self._scheduled[topic_id] = now + self._delete_delay(topic_id)
            # A broker that is cut off from ZooKeeper cannot hear that the deletion was taken back.
            if due <= now and not self._is_cut_off():
                del self._scheduled[topic_id]
                topic = self._topics.get(topic_id)
                if topic is not None and topic.logs:
                    logger.warning(
                        "topic %s (id %s): %d directories are renamed to *%s, and removed",
                        *(topic.name, topic_id, len(topic.logs), DELETED),
                    )
                self._cancelled = {
                    each for each in self._cancelled if _topic_id_of(each) != topic_id
                }
                self.delete_topic(topic_id)
                self._unreported.add(topic_id)
                self._report_carried_out(topic_id)

    def delete_topic(self, topic_id: str) -> None:
        """Serve a topic's logs no more; `deletion_task` closes them and has their directories removed.

        Until then no log is made in their place (`is_deleting`).
        """
        topic = self._topics.pop(topic_id, None)
        if topic is not None:
            self._ids[topic.name].discard(topic_id)
            if not self._ids[topic.name]:
                del self._ids[topic.name]
            for log in topic.logs.values():
                self._delete(log)

    def delete_partition(self, topic_id: str, partition: int) -> None:
        """As `delete_topic`, of one log."""
        topic = self._topics.get(topic_id)
        log = None if topic is None else topic.logs.pop(partition, None)
        if log is not None:
            self._delete(log)

    def _delete(self, log: Log) -> None:
        self._deleted.append(log)
        self._deleting.setdefault(log.topic_id, set()).add(log.directory.name)

    def is_deleting(self, directory: Path) -> bool:
        """True while a partition's directory is being removed, or its recovery point is still on disk."""
        name = directory.name
        if name in self._deleting.get(_topic_id_of(name), ()):
            return True
        return name in self.saved_notes.recovery_points and name not in self.notes.recovery_points

    def set_saved_notes(self, notes: Notes) -> None:
        """These notes are on disk."""
        are_higher = notes.ids != self.saved_notes.ids
        self.saved_notes = notes
        points = self.notes.recovery_points
        self.has_stale_points = bool(notes.recovery_points.keys() - points.keys())
        if are_higher:
            self._on_ids_saved(notes.ids)

    def deletion_task(self, now: Now) -> float:
        """Close some deleted logs, and have their directories removed."""
        self._delete_due(now.monotonic)
        names: list[str] = []
        for _ in range(min(len(self._deleted), DELETED_AT_ONCE)):
            log = self._deleted.popleft()
            log.abandon()
            if not log.queue.is_idle:  # its operations end with an error now
                self._deleted.append(log)
                continue
            name = log.directory.name
            self._doomed.pop(log, None)
            self.dirty.pop(log, None)
            self.notes.recovery_points.pop(name, None)
            self.notes.leader_epochs.pop(name, None)
            self.has_stale_points = True
            self.trust(log)
            names.append(name)
        self._delete_directories(names)
        if now.monotonic >= self._remove_again_at:
            self._remove_again_at = now.monotonic + REMOVE_AGAIN_AFTER
            left, self._left_behind = self._left_behind, set()
            self._delete_directories(list(left))
            for log in list(islice(self._doomed, DELETED_AT_ONCE)):
                log.queue.add(self.remove(log, ()))
        return 0.0 if names and self._deleted else 0.2

    def _delete_directories(self, names: Sequence[str]) -> None:
        if names:
            work = partial(delete_directories, self.data, names)
            self._submit(Lane.DISK, work, partial(self._directories_deleted, names))

    def _directories_deleted(
        self, names: Sequence[str], outcome: Mapping[str, OSError] | Exception
    ) -> None:
        left = dict.fromkeys(names, outcome) if isinstance(outcome, Exception) else outcome
        cancelled = self._cancelled & left.keys()
        self._cancelled.difference_update(names)
        left = {name: error for name, error in left.items() if name not in cancelled}
        if left:
            why = next(iter(left.values()))
            logger.error("%s: %d directories are left for now: %s", self.data, len(left), why)
            self._left_behind.update(left)
        for name in names:
            topic_id = _topic_id_of(name)
            if name not in left:
                self._deleting[topic_id].discard(name)
            self._report_carried_out(topic_id)
        for topic_id in {_topic_id_of(name) for name in names}:
            if not self._deleting[topic_id]:
                del self._deleting[topic_id]

    def _report_carried_out(self, topic_id: str) -> None:
        if topic_id in self._unreported and not self._deleting.get(topic_id):
            self._unreported.discard(topic_id)
            logger.info("topic id %s: its directories are removed", topic_id)
            self._on_deleted(topic_id)

    async def remove(self, log: Log, files: Sequence[Path]) -> None:
        """Within an operation of the log: remove files of it, in order, behind those left before.

        A file that cannot be removed is retried with all behind it (`is_removing`): the next start must not
        find a log with a hole.
        """
        files = self._doomed[log] = [*self._doomed.get(log, ()), *files]
        if not files:
            del self._doomed[log]
            return
        removed, error = await log.queue.job(partial(_make_room, files, self.data / SPARE_FILE))
        if error is not None:
            logger.error("%s: deleted files stay for now: %s", log.directory, error)
        self._doomed.pop(log, None)
        if left := files[removed:]:  # what was removed is not retried: its name may be in use again
            self._doomed[log] = left  # behind other logs, so that each has its turn

    def remove_later(self, log: Log, files: Sequence[Path]) -> None:
        """As `remove`, in an operation of its own. From here on `is_removing`: a cut that comes first removes
        them itself, before a new segment has the name of one."""
        if files:
            self._doomed[log] = [*self._doomed.get(log, ()), *files]
            log.queue.add(self.remove(log, ()))

    def is_removing(self, log: Log) -> bool:
        """True while files of a log are left to be removed."""
        return log in self._doomed

    def report_orphans(self, existing: Collection[str]) -> list[str]:
        """Lose topics with logs here that neither exist nor have a recorded deletion → their ids."""
        orphans = sorted(each for each in self._topics.keys() - existing if self.lose(each))
        if orphans:
            shown = ", ".join(map(self.name_of, orphans[:ORPHANS_SHOWN]))
            logger.error(
                "%d topics that have logs in %s are not in ZooKeeper, and their deletion is not recorded "
                "there: out of use, and kept (%s%s). `folkmoot log orphans` lists them, `folkmoot topic "
                "restore` puts one back",
                *(len(orphans), self.data, shown, ", …" * (len(orphans) > ORPHANS_SHOWN)),
            )
        return orphans

    # -- start --------------------------------------------------------------------------------------

    def _lock_directory(self) -> None:
        try:
            make_directory(self.data)
            lock = os.open(self.data / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(
                f"data={self.data}: {error.strerror}: use another directory"
            ) from error
        self._lock = lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(lock, 20).decode("ascii", "replace").strip() or "unknown"
            raise DirectoryLocked(
                f"data={self.data} is in use by process {owner}: stop it or use another directory"
            ) from error
        with suppress(OSError):  # for people: a disk that is full is served all the same
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def _check_identity(self) -> None:
        path, found = self.data / IDENTITY_FILE, identity_in(self.data)
        identity = found or Identity(self._broker_id, LAYOUT)
        if identity.layout != LAYOUT:
            raise ConfigError(
                f"data={self.data} has layout {identity.layout}, and this version reads layout "
                f"{LAYOUT} alone: use another directory"
            )
        if identity.broker_id != self._broker_id:
            raise ConfigError(
                f"broker_id={self._broker_id} is not allowed with data={self.data}, which belongs "
                f"to broker {identity.broker_id}: use that id or another directory"
            )
        self.directory_id = identity.directory or uuid4().hex
        cluster = identity.cluster or self._cluster
        known = replace(identity, cluster=cluster, directory=self.directory_id)
        if known != found:
            write_atomic(path, msgspec.json.encode(known) + b"\n")

    def _open_all(self) -> None:
        _remove_deleted(self.data)
        self.saved_notes = load_notes(self.data)
        self.notes = self.saved_notes.copy()
        points = self.notes.recovery_points = {}
        # Names of partitions that a life before has made, and was killed over, are on disk then, too.
        sync_directory(self.data)
        failure: FolkmootError | None = None
        for found in partition_directories(self.data):
            if not found.topic:
                logger.warning("%s: its file %r cannot be read", found.path, TOPIC_FILE)
            name = TopicPartition(found.topic or found.topic_id, found.partition)
            log = Log(found.path, name, found.topic_id, self.config, self.files, self.run_job)
            epoch = self.notes.leader_epochs.get(found.path.name)
            # The file with its epoch was lost, and with it what it may have acked.
            is_blank = epoch is None and (found.path / EPOCH_STARTS_FILE).exists()
            log.leader_epoch = NO_EPOCH if epoch is None else epoch
            topic_file = load_facts(found.path)
            log.is_alone = topic_file[1] is not None and len(topic_file[1].replicas) == 1
            point = self.saved_notes.recovery_points.get(found.path.name)
            if point is not None:
                points[found.path.name] = point
            try:
                if is_blank:
                    log.may_lack_acked()
                log.start(point)
            except FolkmootError as error:
                logger.error("%s", error)
                log.fail(str(error))
                failure = failure or error
            self.add(log, topic_file)
        self.has_stale_points = bool(self.saved_notes.recovery_points.keys() - points.keys())
        if failure is not None and not any(log.is_open for log in self):
            raise failure  # it is not about one file


def _flush_side_by_side(logs: Iterable[Log]) -> None:
    """Flush logs on some threads: a file system writes its journal once for files flushed together.

    A failure makes the log's `close` fail.
    """
    waiting = (log for log in logs if log.is_open and log.queue.is_idle)
    ended: SimpleQueue[Callable[[], None]] = SimpleQueue()
    with ThreadPoolExecutor(CLOSING_THREADS, "closing") as pool:

        def run_job(work: Callable[[], Any], callback: Callable[[Any], None]) -> None:
            pool.submit(lambda: ended.put(partial(callback, result_of(work))))

        while some := list(islice(waiting, CLOSED_AT_ONCE)):
            for log in some:
                log.queue = SerialQueue(run_job)
                log.queue.add(_flush_last(log))
            while not all(log.queue.is_idle for log in some):
                ended.get()()


async def _flush_last(log: Log) -> None:
    with suppress(StorageError):
        await log.flush_last()


def cluster_of(data: Path) -> str:
    """Return the id of the cluster that a data directory belongs to, "" if to none yet.

    Raises ConfigError, OSError.
    """
    identity = identity_in(data)
    return "" if identity is None else identity.cluster


def identity_in(data: Path) -> Identity | None:
    path = data / IDENTITY_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Identity)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a broker's identity: {error}") from error


def boot_id() -> bytes:
    """The unique id of this boot of the machine; empty if it is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""


# -- directories -----------------------------------------------------------------------------------


def partition_directory(
    data: Path, topic: str, topic_id: str, partition: int
) -> PartitionDirectory:
    """Return the directory of a partition's log. Raises InvalidName, InvalidRequest."""
    check_name("topic", topic)
    if not _TOPIC_ID.fullmatch(topic_id):
        raise InvalidRequest(f"topic id {topic_id!r} of {topic} is not allowed")
    if not 0 <= partition <= _MAX_PARTITION:
        raise InvalidRequest(f"partition {partition} of {topic} is outside 0 … {_MAX_PARTITION}")
    return PartitionDirectory(data / f"{topic_id}-{partition}", topic_id, partition, topic)


def partition_directories(data: Path) -> Iterator[PartitionDirectory]:
    """Every partition's directory in `data`. Raises OSError."""
    with os.scandir(data) as entries:
        for entry in entries:
            match = _DIRECTORY.fullmatch(entry.name)
            if match is not None and entry.is_dir(follow_symlinks=False):
                path = data / entry.name
                yield PartitionDirectory(
                    *(path, match["topic_id"], int(match["partition"]), topic_in(path))
                )


def delete_directories(data: Path, names: Sequence[str]) -> dict[str, OSError]:
    """Rename partitions' directories to `.deleted`, durably, and remove them → errors by name.

    May be retried for those. Raises OSError: all are left.
    """
    left: dict[str, OSError] = {}
    for name in names:
        path, doomed = data / name, data / f"{name}{DELETED}"
        try:
            if path.exists():
                if doomed.exists():  # an earlier replica of the same partition
                    shutil.rmtree(doomed)
                path.rename(doomed)
        except OSError as error:
            left[name] = error
    if names:
        sync_directory(data)
    for name in names:
        try:
            if name not in left and (data / f"{name}{DELETED}").exists():
                shutil.rmtree(data / f"{name}{DELETED}")
        except OSError as error:
            left[name] = error
    return left


def _topic_id_of(name: str) -> str:
    """The topic's id in the name of a partition's directory."""
    return name.rpartition("-")[0]


def _save_facts(stale: Sequence[tuple[Path, tuple[str, PartitionFacts | None]]]) -> None:
    for directory, (topic, facts) in stale:
        with suppress(FileNotFoundError):  # the partition may have been deleted meanwhile
            save_facts(directory, topic, facts)


def _make_room(doomed: Sequence[Path], spare: Path) -> tuple[int, OSError | None]:
    """Remove files in order → how many are removed, and the error at the next one."""
    removed = 0
    try:
        for path in doomed:
            path.unlink(missing_ok=True)
            removed += 1
        make_spare(spare)
    except OSError as error:
        return removed, error
    return removed, None


def _remove_deleted(data: Path) -> None:
    for doomed in data.glob(f"*{DELETED}"):
        try:
            shutil.rmtree(doomed)
        except OSError as error:
            logger.error("%s: not removed: %s", doomed, error)
