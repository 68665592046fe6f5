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
    is_full,
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

LAYOUT: Final = 3
"""The version of what lies in a data directory; another one is refused."""

LOCK_FILE: Final = ".lock"
IDENTITY_FILE: Final = "broker.json"
RUNNING_FILE: Final = "running"
STOPPED_FILE: Final = "stopped"
"""What `running` is called after an orderly stop: to rename it needs no room on a full disk."""
DELETED: Final = ".deleted"
DELETED_AT_ONCE: Final = 32
CLOSED_AT_ONCE: Final = 128
CLOSING_THREADS: Final = 8
REMOVE_AGAIN_AFTER: Final = 60.0
RENAME_AGAIN_AFTER: Final = 5.0
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
    """What tells this data directory from any other."""


class PartitionDirectory(NamedTuple):
    """A partition's directory: `<topic id>-<partition>`."""

    path: Path
    topic_id: str
    partition: int
    topic: str
    """The topic's name, for people; "" if the file `topic` cannot be read."""


class _Topic:
    """The logs of one topic, by partition; `config` is None until the cluster has told its options."""

    __slots__ = ("config", "info", "logs", "name", "noted", "revision")

    def __init__(self, name: str) -> None:
        self.name = name
        self.info: TopicInfo | None = None
        self.noted: dict[int, tuple[str, PartitionFacts | None]] = {}
        """What the directories say, by partition."""
        self.revision = 0
        """The highest that was seen of the topic's node."""
        self.config: LogConfig | None = None
        self.logs: dict[int, Log] = {}


class LogManager:
    """A broker's data directory.

    ```
    .lock                     held by flock as long as the broker lives; names its process
    broker.json               {"broker_id":1,"layout":3,"cluster":"4c…","directory":"9a…"}: whose
                              directory this is, what lies in it, which cluster it belongs to
                              (coordination/layout.py), and what tells it from any other
    notes                     recovery points, leader epochs, the highest ids, the scrub's place (Notes)
    running                   the machine's boot that it runs in; called `stopped` by an orderly stop
    spare, spare-notes        room on a full disk, for logs' starts and for the notes here
    <topic id>-<partition>/   a log (see Log), with the topic's name in the file `topic`
    <…>.deleted/              given up; removed by the deletion task, or by the next start
    ```

    Start: lock, compare the identity, remove what was given up, open every log. What a log has behind
    its recovery point is checked. A log that cannot be opened is out of use until the next start, and
    the others are served, unless it is all of them. Stop is the reverse.

    A partition is known by its topic's id, so that a topic that is created anew under an old name has
    directories of its own. The name in a directory is for people; it is corrected when the cluster
    tells the topic's options, which is before anybody is served.

    **Nothing is removed but what somebody has deleted.** `delete_later` carries a recorded deletion out,
    `delete_delay` after it was read; `delete_partition` a move to other brokers. What the cluster merely
    does not know any more, or knows under another id, is `lost`: out of use, and kept as it is, retention
    and compaction included, until the cluster knows it again.

    Crash story of a deletion: until the rename to `.deleted` is on disk the directory is found by the
    next start and served to nobody, since its topic's id exists no more, and the record is still there to
    be carried out. Behind that the next start removes it. What cannot be renamed or removed is tried again,
    and counts as not carried out.

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
        carried_out: Callable[[str], None] = lambda topic_id: None,
        ids_noted: Callable[[HighestIds], None] = lambda ids: None,
    ) -> None:
        """`cluster`: the id of the one that it belongs to from here on; "" leaves that open.

        Nothing is deleted while `is_cut_off`, since a deletion may have been taken back. `carried_out` gets
        the id of a topic of which nothing is left. `ids_noted` is called when higher ids than before were
        seen, and are on disk."""
        self.data = data
        self._cluster = cluster
        self.config = config
        self.files = OpenSegments() if files is None else files
        self.room = self.files.room
        self.room.data = data
        self.passed_time = PassedTime()
        """By which records grow old."""
        self.appended_bytes = 0
        """What producers have brought since the start, over all logs."""
        self.dirty: dict[Log, None] = {}
        """Logs with something that a flush would put on disk, the oldest first (Flusher)."""
        self.notes = Notes()
        """Put on disk by `Flusher.note`."""
        self.noted = Notes()
        """What of them is on disk."""
        self.has_stale_points = False
        """There are those of logs that are gone: one made anew would seem to have lost what they had."""
        self.suspects: set[str] = set()
        """Directories of replicas that may have lost what was in the page cache: the machine went down
        under their broker, or a flush failed. Until they are trusted again, each start finds them so
        (`trust`)."""
        self._has_lost = False
        self._broker_id = broker_id
        self._submit = submit
        self.run_job: RunJob = partial(submit, Lane.DISK)
        self.run_note: RunJob = partial(submit, Lane.NOTES)
        """For the files of the data directory itself: one job after another."""
        self.directory_id = ""
        self._lock = -1
        self._topics: dict[str, _Topic] = {}
        self._ids: dict[str, set[str]] = {}
        self.lost: set[str] = set()
        """Ids of topics that have logs here and are not, or not any more, what the cluster knows."""
        self._is_cut_off = is_cut_off
        self._carried_out = carried_out
        self._have_ids_noted = ids_noted
        self._scheduled: dict[str, float | None] = {}
        self._left: dict[str, set[str]] = {}
        self._left_behind: list[str] = []
        self._kept: set[str] = set()
        """Directories whose removal is under way, and was taken back: not tried again if it fails."""
        self._deleted: deque[Log] = deque()
        self._going: set[Path] = set()
        self._doomed: dict[Log, list[Path]] = {}
        self._remove_again_at = self._rename_again_at = 0.0
        self._said_left: set[str] = set()

    def start(self) -> None:
        """Raises DirectoryLocked, ConfigError, StorageError; then nothing is left open or locked."""
        try:
            self._take_lock()
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
        logs = [log for log in self if log.failed is None]  # why others failed is in the log
        # What those have acknowledged may be in the page cache alone, as behind a kill.
        self._has_lost |= any(log.failed is not None and not log.flushes for log in self)
        _flush_side_by_side(logs)
        for log in logs:
            # A flush may be under way, whose outcome is lost, and what came since is in the page cache alone.
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
                (self.data / RUNNING_FILE).replace(self.data / STOPPED_FILE)
                sync_directory(self.data)
        except OSError as error:
            failures.append(StorageError(f"{self.data}: the logs' ends were not noted: {error}"))
        self.abandon()
        if failures:
            raise failures[0]

    def abandon(self) -> None:
        """Close all files as they are, as after a crash, and let go of the directory."""
        for log in (*self, *self._deleted):
            log.queue.close()
            log.abandon()
        for kept in (self._topics, self._ids, self._deleted, self.dirty):
            kept.clear()
        for waiting in (self._scheduled, self._left, self._left_behind, self._kept, self.lost):
            waiting.clear()
        self._doomed.clear()
        self._going.clear()
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
        """A start behind a power cut finds the boot of before. What an orderly stop has left is put right
        before it is renamed, and neither needs room. Raises OSError."""
        path, stopped, boot = self.data / RUNNING_FILE, self.data / STOPPED_FILE, boot_id()
        if path.exists():
            before = path.read_bytes()
            if before != boot or not before:
                self.suspects = {log.directory.name for log in self}
            if before == boot or self.suspects:
                return
        elif stopped.exists():
            overwrite(stopped, boot)
            stopped.replace(path)
            sync_directory(self.data)
            return
        try:
            write_atomic(path, boot)
        except OSError as error:
            if not (path.exists() and is_full(error)):
                raise
            logger.warning("%s: the next start trusts no page cache: %s", path, error)

    def distrust(self) -> None:
        """A flush has failed: the next start finds what one behind a power cut would.

        Nothing has to be flushed for that: a power cut later comes to the same.
        """
        self._has_lost = True
        with suppress(OSError):
            (self.data / RUNNING_FILE).write_bytes(b"")

    def trust(self, log: Log) -> None:
        """It has all that is committed, or does not count on the page cache."""
        if log.directory.name in self.suspects:
            self.suspects.discard(log.directory.name)
            if not (self.suspects or self._has_lost):
                failed = partial(log_failure, f"{self.data}: the next start trusts no page cache")
                self.run_note(self._note_trusted, failed)

    def _note_trusted(self) -> None:
        """The background's part of `trust`; a flush may have failed since it was submitted."""
        write_atomic(self.data / RUNNING_FILE, boot_id())
        if self._has_lost:
            self.distrust()

    def mark_incomplete(self) -> None:
        """Of all replicas, on disk: another data directory had this broker's id last, and what that one has
        acked may be missing here. Raises StorageError."""
        for log in self:
            log.may_lack_acked()

    # -- logs ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(len(topic.logs) for topic in self._topics.values())

    def __iter__(self) -> Iterator[Log]:
        return iter([log for topic in self._topics.values() for log in topic.logs.values()])

    def find(self, topic_id: str, partition: int) -> Log | None:
        """The log of a partition, if there is one; asked for each entry of each request."""
        topic = self._topics.get(topic_id)
        return None if topic is None else topic.logs.get(partition)

    def add(self, log: Log, noted: tuple[str, PartitionFacts | None] | None = None) -> None:
        """Take in a log that was just opened. `noted`: what its directory says of its topic (load_facts),
        if that was just written or read."""
        topic = self._topics.get(log.topic_id)
        if topic is None:
            topic = self._topics[log.topic_id] = _Topic(log.name.topic)
            self._ids.setdefault(topic.name, set()).add(log.topic_id)
        topic.logs[log.name.partition] = log
        log.ids = self.notes.ids
        name, facts = load_facts(log.directory) if noted is None else noted
        topic.noted[log.name.partition] = name, facts
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
        """Take over what the cluster says of a topic, and have it noted beside its records. Options that are
        not allowed leave all as it is.

        Until then a topic's retention is not known, and nothing of it is deleted.
        """
        self.keep(topic_id)
        self.lost.discard(topic_id)
        topic = self._topics.setdefault(topic_id, _Topic(name))
        self._rename(topic, topic_id, name)
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
        """The highest revision of a topic's node that this broker has seen, as far as it has logs of it."""
        topic = self._topics.get(topic_id)
        return 0 if topic is None else topic.revision

    def facts_of(self, topic_id: str, partition: int) -> PartitionFacts | None:
        """What the cluster says of a partition; None before it was configured."""
        topic = self._topics.get(topic_id)
        info = None if topic is None else topic.info
        known = info is not None and partition < len(info.partitions)
        return PartitionFacts.of(info, partition) if info is not None and known else None

    def _note_facts(self, topic: _Topic) -> None:
        stale: list[tuple[int, Path, PartitionFacts | None]] = []
        for number, log in topic.logs.items():
            facts = self.facts_of(log.topic_id, number)
            name, noted = topic.noted.get(number, ("", None))
            facts = noted if facts is None else facts
            if name != topic.name or not is_same(noted, facts):
                stale.append((number, log.directory, facts))
        if stale:
            work = partial(_save_facts, topic.name, stale)
            self._submit(Lane.FACTS, work, partial(self._facts_noted, topic, topic.name, stale))

    def _facts_noted(
        self,
        topic: _Topic,
        name: str,
        stale: Sequence[tuple[int, Path, PartitionFacts | None]],
        outcome: object,
    ) -> None:
        log_failure(f"{self.data}: what {name} is was not noted", outcome)
        if not isinstance(outcome, Exception):
            topic.noted.update({number: (name, facts) for number, _, facts in stale})

    def _rename(self, topic: _Topic, topic_id: str, name: str) -> None:
        """Call a topic's logs by the name that the cluster has for it. A directory whose file `topic` was not
        written before a kill has a log without that name, whatever the others have."""
        if topic.name != name:
            self._ids[topic.name].discard(topic_id)
            topic.name = name
        for log in topic.logs.values():
            if log.name.topic != name:
                log.name = TopicPartition(name, log.name.partition)
        self._ids.setdefault(name, set()).add(topic_id)

    def ids_of(self, name: str) -> set[str]:
        """The ids of topics of that name that have logs here, or are configured."""
        return self._ids.get(name, set())

    def name_of(self, topic_id: str) -> str:
        """What a topic is called that has logs here; else its id."""
        topic = self._topics.get(topic_id)
        return topic_id if topic is None else topic.name

    def lose(self, topic_id: str) -> int:
        """Keep a topic's logs as they are until it is configured again → how many; 0: it was lost before,
        it is to be deleted, or has none."""
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

    def delete_later(self, topic_id: str, deletion: Deletion) -> None:
        """Have a topic's directories removed once `delete_delay` is over, unless it is configured again by
        then; `carried_out` is called when nothing is left of it. Asked for twice it is done once."""
        if topic_id in self._scheduled or topic_id in self._left:
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
        """Do not remove a topic's directories, if they are not renamed yet: its deletion was taken back."""
        self._scheduled.pop(topic_id, None)
        # What could not be renamed with the topic; a replica that has moved away goes all the same.
        left = self._left.pop(topic_id, set())
        behind = left.intersection(self._left_behind)
        self._kept |= left - behind
        self._going.difference_update(self.data / each for each in behind)
        self._left_behind = [each for each in self._left_behind if each not in left]

    def scheduled(self) -> list[str]:
        """The ids of topics whose directories go once their delay is over."""
        return list(self._scheduled)

    def _delete_delay(self, topic_id: str) -> float:
        topic = self._topics.get(topic_id)
        if topic is None:
            return self.config.delete_delay
        if topic.config is not None:
            return topic.config.delete_delay
        # Since the start it was never configured: its directories know its options.
        noted = [facts for _, facts in topic.noted.values() if facts is not None]
        newest = max(noted, key=lambda facts: facts.revision, default=None)
        try:
            return topic_config(self.config, newest.config if newest else {}).delete_delay
        except ConfigError:
            return self.config.delete_delay

    def _delete_due(self, now: float) -> None:
        for topic_id, due in list(self._scheduled.items()):
            if due is None:
                due = self._scheduled[topic_id] = now + self._delete_delay(topic_id)
            # Cut off from ZooKeeper it cannot hear that the deletion was taken back.
            if due <= now and not self._is_cut_off():
                del self._scheduled[topic_id]
                name, topic = self.name_of(topic_id), self._topics.get(topic_id)
                names = (
                    [] if topic is None else [each.directory.name for each in topic.logs.values()]
                )
                if names:
                    logger.warning(
                        "topic %s (id %s): %d directories are renamed to *%s, and removed",
                        *(name, topic_id, len(names), DELETED),
                    )
                of_before = (*self._left_behind, *self._kept)
                behind = {each for each in of_before if each.rpartition("-")[0] == topic_id}
                self._kept -= behind
                self._left[topic_id] = {*names, *behind}
                self.delete_topic(topic_id)
                self._are_gone(topic_id, ())

    def delete_topic(self, topic_id: str) -> None:
        """Serve a topic's logs no more; `deletion_task` closes them and has their directories removed.

        Until then none is made in their place (`is_going`).
        """
        topic = self._topics.pop(topic_id, None)
        if topic is not None:
            self._ids[topic.name].discard(topic_id)
            if not self._ids[topic.name]:
                del self._ids[topic.name]
            self._deleted.extend(topic.logs.values())
            self._going.update(log.directory for log in topic.logs.values())

    def delete_partition(self, topic_id: str, partition: int) -> None:
        """As `delete_topic`, of one log."""
        topic = self._topics.get(topic_id)
        log = None if topic is None else topic.logs.pop(partition, None)
        if log is not None:
            self._deleted.append(log)
            self._going.add(log.directory)

    def are_noted(self, notes: Notes) -> None:
        """These are on disk."""
        are_higher = notes.ids != self.noted.ids
        self.noted = notes
        points = self.notes.recovery_points
        self.has_stale_points = bool(notes.recovery_points.keys() - points.keys())
        if are_higher:
            self._have_ids_noted(notes.ids)

    def is_going(self, directory: Path) -> bool:
        """Whether a partition's directory is being removed, or its recovery point is still on disk."""
        is_stale = (
            directory.name in self.noted.recovery_points
            and directory.name not in self.notes.recovery_points
        )
        return directory in self._going or is_stale

    def deletion_task(self, now: Now) -> float:
        """Close some logs that were deleted, and hand their directories to the background."""
        self._delete_due(now.monotonic)
        names: list[str] = []
        for _ in range(min(len(self._deleted), DELETED_AT_ONCE)):
            log = self._deleted.popleft()
            log.abandon()
            if not log.queue.is_idle:  # what is under way there ends with an error
                self._deleted.append(log)
                continue
            self._doomed.pop(log, None)
            self.dirty.pop(log, None)
            self.notes.recovery_points.pop(log.directory.name, None)
            self.has_stale_points |= log.directory in self._going
            self.notes.leader_epochs.pop(log.directory.name, None)
            self.trust(log)
            names.append(log.directory.name)
        self._delete_directories(names)
        if now.monotonic >= self._rename_again_at:  # a replica may be wanted in its place
            self._rename_again_at = now.monotonic + RENAME_AGAIN_AFTER
            left, self._left_behind = self._left_behind, []
            self._delete_directories(left)
        if now.monotonic >= self._remove_again_at:
            self._remove_again_at = now.monotonic + REMOVE_AGAIN_AFTER
            for log in list(islice(self._doomed, DELETED_AT_ONCE)):
                log.queue.add(self._remove(log))
        return 0.0 if names and self._deleted else 0.2

    def _delete_directories(self, names: Sequence[str]) -> None:
        if names:
            work = partial(delete_directories, self.data, names)
            self._submit(Lane.DISK, work, partial(self._gone, names))

    def _gone(self, names: Sequence[str], outcome: Mapping[str, OSError] | Exception) -> None:
        """What is left is tried again, and nothing is made in its place meanwhile."""
        errors = dict.fromkeys(names, outcome) if isinstance(outcome, Exception) else outcome
        failed = {name: error for name, error in errors.items() if name not in self._kept}
        self._kept.difference_update(names)
        if failed:
            why = next(iter(failed.values()))
            level = logging.DEBUG if self._said_left.issuperset(failed) else logging.ERROR
            logger.log(
                level, "%s: %d directories are left for now: %s", self.data, len(failed), why
            )
            self._left_behind += failed
            self._said_left.update(failed)
        gone = [each for each in names if each not in failed]
        self._said_left.difference_update(gone)
        self._going.difference_update(self.data / name for name in gone)
        for topic_id in {each.rpartition("-")[0] for each in gone}:
            self._are_gone(topic_id, gone)

    def _are_gone(self, topic_id: str, names: Iterable[str]) -> None:
        left = self._left.get(topic_id)
        if left is not None:
            left.difference_update(names)
            if not left:
                del self._left[topic_id]
                if names:
                    logger.info("topic id %s: its directories are removed", topic_id)
                self._carried_out(topic_id)

    def remove(self, log: Log, files: Sequence[Path]) -> None:
        """Have files of a log removed in the background, in order.

        One that cannot be removed is tried again, and so are those behind it: if they went first, what
        the next start finds would have a hole.
        """
        if files:
            self._doomed.setdefault(log, []).extend(files)
            log.queue.add(self._remove(log))

    async def remove_now(self, log: Log, files: Sequence[Path]) -> None:
        """The same within an operation of the log: what cannot be removed yet is tried again."""
        self._doomed.setdefault(log, []).extend(files)
        await self._remove(log)

    def is_removing(self, log: Log) -> bool:
        """Whether files of a log are still to be removed."""
        return log in self._doomed

    async def _remove(self, log: Log) -> None:
        files = list(self._doomed.get(log, ()))
        if not files:
            return
        work = partial(_make_room, files, self.data / SPARE_FILE)
        removed, error = await log.queue.job(work)
        if error is not None:
            logger.error("%s: deleted files stay for now: %s", log.directory, error)
        # What was removed is not tried again: another file may have the name by then.
        if left := self._doomed.pop(log, [])[removed:]:
            self._doomed[log] = left  # behind the others, that each has its turn

    def report_orphans(self, existing: Collection[str]) -> list[str]:
        """The ids of topics that have logs here and are not among the `existing` ones, nor to be deleted:
        they are lost. Says so once."""
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

    def _take_lock(self) -> None:
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
        self.noted = load_notes(self.data)
        self.notes = self.noted.copy()
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
            noted = load_facts(found.path)
            log.is_alone = noted[1] is not None and len(noted[1].replicas) == 1
            point = self.noted.recovery_points.get(found.path.name)
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
            self.add(log, noted)
        self.has_stale_points = bool(self.noted.recovery_points.keys() - points.keys())
        if failure is not None and not any(log.is_open for log in self):
            raise failure  # it is not about one file


def _flush_side_by_side(logs: Iterable[Log]) -> None:
    """Flush logs on some threads: a file system writes its journal once for what is flushed together.

    What fails makes the log's `close` fail.
    """
    waiting = (log for log in logs if log.is_open and log.queue.is_idle)
    ended: SimpleQueue[Callable[[], None]] = SimpleQueue()
    with ThreadPoolExecutor(CLOSING_THREADS, "closing") as pool:

        def run_job(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
            pool.submit(lambda: ended.put(partial(done, result_of(work))))

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
    """The id of the cluster that a data directory belongs to, "" if it belongs to none yet.

    Nothing is changed. Raises ConfigError, OSError.
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
    """What tells this boot of the machine from any other; nothing, if that is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""


# -- directories -----------------------------------------------------------------------------------


def partition_directory(
    data: Path, topic: str, topic_id: str, partition: int
) -> PartitionDirectory:
    """Where a partition's log lies. Raises InvalidName, InvalidRequest for what cannot be a name."""
    check_name("topic", topic)
    if not _TOPIC_ID.fullmatch(topic_id):
        raise InvalidRequest(f"topic id {topic_id!r} of {topic} is not allowed")
    if not 0 <= partition <= _MAX_PARTITION:
        raise InvalidRequest(f"partition {partition} of {topic} is outside 0 … {_MAX_PARTITION}")
    return PartitionDirectory(data / f"{topic_id}-{partition}", topic_id, partition, topic)


def partition_directories(data: Path) -> Iterator[PartitionDirectory]:
    """Every partition that lies in `data`. Raises OSError."""
    with os.scandir(data) as entries:
        for entry in entries:
            match = _DIRECTORY.fullmatch(entry.name)
            if match is not None and entry.is_dir(follow_symlinks=False):
                path = data / entry.name
                yield PartitionDirectory(
                    *(path, match["topic_id"], int(match["partition"]), topic_in(path))
                )


def delete_directories(data: Path, names: Sequence[str]) -> dict[str, OSError]:
    """Take partitions' directories out of use, durably, and remove them → what is left, and why.

    To do it again for what is left does no harm. Raises OSError: all are left.
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


def _save_facts(topic: str, stale: Sequence[tuple[int, Path, PartitionFacts | None]]) -> None:
    for _, directory, facts in stale:
        with suppress(FileNotFoundError):  # the partition may have been deleted meanwhile
            save_facts(directory, topic, facts)


def _make_room(doomed: Sequence[Path], spare: Path) -> tuple[int, OSError | None]:
    """→ how many were removed, in order, and why no more were."""
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
        except OSError as error:  # nobody is served from it
            logger.error("%s: not removed: %s", doomed, error)
