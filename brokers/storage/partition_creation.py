"""Partitions that have no log yet, and how they get one while nobody else waits for the disk."""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final

from folkmoot.brokers.storage.files.atomic_file import disk_error, sync_directory
from folkmoot.brokers.storage.files.cluster_facts import PartitionFacts, save_facts
from folkmoot.brokers.storage.jobs import Now, Submit, at_once
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import (
    LogManager,
    PartitionDirectory,
    partition_directory,
)
from folkmoot.brokers.storage.segment import OpenSegments
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol.errors import FolkmootError, StorageError, UnknownTopicOrPartition
from folkmoot.protocol.records import TopicPartition

logger = logging.getLogger(__name__)

AT_ONCE: Final = 32
LOOKED_AT: Final = 200
"""So many partitions are looked at in one step for those that have no log."""

Done = Callable[[FolkmootError | None], None]


class PartitionCreation:
    """Makes the directories of partitions beside the event loop, AT_ONCE in one job.

    A directory costs three flushes: ten milliseconds on a busy disk, a minute for ten thousand
    partitions. So they are made as soon as the cluster tells of a topic (`create_ahead`), and those
    that somebody produces to already come first (`when_created`). One job is under way at a time.

    Crash story: a log exists, and can be appended to, only once its directory is on disk with the
    topic's name inside, so nothing is acknowledged before. A death in a job leaves empty directories,
    which the next start serves. What could not be made durable is removed, so that the next try makes
    it anew. A topic that is deleted while its directory is made: the log is deleted as any other.

    Owner: the event loop.
    """

    def __init__(self, logs: LogManager, submit: Submit = at_once) -> None:
        self._logs = logs
        self._submit = submit
        self._wanted: dict[PartitionDirectory, list[Done]] = {}
        self._under_way: Mapping[PartitionDirectory, list[Done]] = {}
        self._ahead: dict[str, tuple[str, Iterator[int]]] = {}
        self._forgotten: set[str] = set()

    def when_created(self, topic: str, topic_id: str, partition: int, done: Done) -> None:
        """Have a partition's log made before those for which nobody waits.

        `done` is called once, with what went wrong if it did, in the order of the calls. Raises
        InvalidName, InvalidRequest.
        """
        wanted = partition_directory(self._logs.data, topic, topic_id, partition)
        if self._logs.find(topic_id, partition) is not None:
            done(None)
        elif wanted in self._under_way:
            self._under_way[wanted].append(done)
        else:
            self._wanted.setdefault(wanted, []).append(done)
            self._begin()

    def create_ahead(self, topic: str, topic_id: str, partitions: Iterable[int]) -> None:
        """Partitions that this broker leads: those without a log get one when there is time."""
        self._forgotten.discard(topic_id)  # its deletion was taken back
        _, before = self._ahead.get(topic_id, (topic, iter(())))
        self._ahead[topic_id] = topic, chain(before, partitions)

    def leave(self, topic_id: str) -> None:
        """The topic is not known any more: nothing is made of it ahead."""
        self._ahead.pop(topic_id, None)

    def forget(self, topic_id: str) -> None:
        """The topic was deleted: its logs are not made, or not kept."""
        self.leave(topic_id)
        if self._wanted or self._under_way:
            self._forgotten.add(topic_id)

    def task(self, now: Now) -> float:
        """Begin the next job, if none is under way."""
        self._begin()
        return 0.01 if self._ahead or self._under_way else 0.1

    def _begin(self) -> None:
        if self._under_way:
            return
        some: dict[PartitionDirectory, list[Done]] = {}
        free = (each for each in self._wanted if not self._logs.is_going(each.path))
        for wanted in list(islice(free, AT_ONCE)):
            some[wanted] = self._wanted.pop(wanted)
        for wanted in self._next_ahead(AT_ONCE - len(some)):
            some.setdefault(wanted, [])
        if some:
            self._under_way = some
            logs = self._logs
            facts = [logs.facts_of(each.topic_id, each.partition) for each in some]
            work = partial(create_logs, logs.data, list(some), facts, logs.config, logs.files)
            self._submit("creation", work, partial(self._created, facts))
        elif not self._wanted:
            self._forgotten.clear()

    def _next_ahead(self, most: int) -> list[PartitionDirectory]:
        found: list[PartitionDirectory] = []
        for _ in range(LOOKED_AT):
            if not self._ahead or len(found) >= most:
                break
            topic_id, (topic, partitions) = next(iter(self._ahead.items()))
            partition = next(partitions, None)
            if partition is None:
                del self._ahead[topic_id]
            elif self._logs.find(topic_id, partition) is None:
                found.append(partition_directory(self._logs.data, topic, topic_id, partition))
        return found

    def _created(
        self,
        facts: Sequence[PartitionFacts | None],
        outcome: list[Log | StorageError] | Exception,
    ) -> None:
        created, self._under_way = self._under_way, {}
        failed = StorageError(str(outcome)) if isinstance(outcome, Exception) else None
        results = [failed] * len(created) if isinstance(outcome, Exception) else outcome
        for (wanted, waiting), noted, result in zip(created.items(), facts, results, strict=True):
            error: FolkmootError | None = None
            if isinstance(result, Log):
                self._logs.add(result, (wanted.topic, noted))
            elif result is not None:
                error = result
                if not self._logs.room.is_missed(error) and not waiting:
                    logger.warning("%s; the first produce will try again", error)
            if wanted.topic_id in self._forgotten:
                self._logs.delete_partition(wanted.topic_id, wanted.partition)
                error = UnknownTopicOrPartition(f"{wanted.topic} was deleted meanwhile")
            for done in waiting:
                done(error)
        if self._wanted:
            self._begin()


def create_logs(
    data: Path,
    wanted: Sequence[PartitionDirectory],
    facts: Sequence[PartitionFacts | None],
    config: LogConfig,
    files: OpenSegments,
) -> list[Log | StorageError]:
    """Make directories and open their logs: each is on disk when this returns, or why not.

    All names are put on disk by one flush.
    """
    failures: dict[PartitionDirectory, OSError] = {}
    for each, known in zip(wanted, facts, strict=True):
        try:
            each.path.mkdir(exist_ok=True)
            save_facts(each.path, each.topic, known)
        except OSError as error:
            failures[each] = error
    try:
        sync_directory(data)
    except OSError as error:
        failures = dict.fromkeys(wanted, error) | failures
    return [_opened(each, failures.get(each), config, files) for each in wanted]


def _opened(
    each: PartitionDirectory, failure: OSError | None, config: LogConfig, files: OpenSegments
) -> Log | StorageError:
    if failure is not None:
        shutil.rmtree(each.path, ignore_errors=True)
        return disk_error(f"{each.path} cannot be created", failure)
    log = Log(each.path, TopicPartition(each.topic, each.partition), each.topic_id, config, files)
    try:
        log.start()
    except StorageError as error:
        return error
    return log
