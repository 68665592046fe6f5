"""Partitions that have no log yet, and how they get one while nobody else waits for the disk."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from folkmoot.brokers.jobs.jobs import Lane, Now, Submit, at_once, call_guarded
from folkmoot.brokers.storage.files.atomic_file import disk_error, sync_directory
from folkmoot.brokers.storage.files.cluster_facts import PartitionFacts, save_facts
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import (
    LogManager,
    PartitionDirectory,
    partition_directory,
)
from folkmoot.protocol.errors import FolkmootError, StorageError
from folkmoot.protocol.records import TopicPartition

AT_ONCE: Final = 256
"""In one job: what follows (epochs, states, the next view of the cluster) is done once for all of it."""
THREADS: Final = 8
LOOK_AGAIN_AFTER: Final = 0.1

Done = Callable[[FolkmootError | None], None]


class PartitionCreation:
    """Makes the directories of partitions beside the event loop, AT_ONCE in one job, one job at a time.

    A directory costs three flushes: ten milliseconds on a busy disk, a minute for ten thousand
    partitions.

    Crash story: a log exists, and is led, only once its directory is on disk with the topic's name inside,
    so nothing is acknowledged before. A death in a job leaves empty directories, which the next start
    opens. What could not be made durable is removed, so that the next try makes it anew.

    Owner: the event loop.
    """

    def __init__(self, logs: LogManager, submit: Submit = at_once) -> None:
        self._logs = logs
        self._submit = submit
        self._wanted: dict[PartitionDirectory, list[Done]] = {}
        self._under_way: Mapping[PartitionDirectory, list[Done]] = {}

    def when_created(self, topic: str, topic_id: str, partition: int, done: Done) -> None:
        """Have a partition's log made, once a former one is removed.

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

    def task(self, now: Now) -> float:
        """Begin the next job, if none is under way."""
        self._begin()
        return LOOK_AGAIN_AFTER

    def _begin(self) -> None:
        if self._under_way:
            return
        free = (each for each in self._wanted if not self._logs.is_going(each.path))
        some = {wanted: self._wanted.pop(wanted) for wanted in list(islice(free, AT_ONCE))}
        if some:
            self._under_way = some
            logs = self._logs
            facts = [logs.facts_of(each.topic_id, each.partition) for each in some]
            new_log = partial(Log, config=logs.config, files=logs.files, run_job=logs.run_job)
            work = partial(create_logs, logs.data, list(some), facts, new_log)
            self._submit(Lane.DISK, work, partial(self._created, facts))

    def _created(
        self,
        facts: Sequence[PartitionFacts | None],
        outcome: list[Log | StorageError] | Exception,
    ) -> None:
        created, self._under_way = self._under_way, {}
        failed = StorageError(str(outcome)) if isinstance(outcome, Exception) else None
        results = [failed] * len(created) if isinstance(outcome, Exception) else outcome
        for (wanted, waiting), noted, result in zip(created.items(), facts, results, strict=True):
            if isinstance(result, Log):
                self._logs.add(result, (wanted.topic, noted))
            for done in waiting:
                error = None if isinstance(result, Log) else result
                call_guarded(wanted.path, done, error)
        if self._wanted:
            self._begin()


def create_logs(
    data: Path,
    wanted: Sequence[PartitionDirectory],
    facts: Sequence[PartitionFacts | None],
    new_log: Callable[[Path, TopicPartition, str], Log],
) -> list[Log | StorageError]:
    """Make directories and open their logs: each is on disk when this returns, or why not.

    All names are put on disk by one flush.
    """
    with ThreadPoolExecutor(THREADS, "creation") as pool:  # the journal is written once for some
        made = zip(wanted, pool.map(_make, wanted, facts), strict=True)
        failures = {each: error for each, error in made if error is not None}
    try:
        sync_directory(data)
    except OSError as error:
        failures = dict.fromkeys(wanted, error) | failures
    return [_opened(each, failures.get(each), new_log) for each in wanted]


def _make(each: PartitionDirectory, known: PartitionFacts | None) -> OSError | None:
    try:
        each.path.mkdir(exist_ok=True)
        save_facts(each.path, each.topic, known)
    except OSError as error:
        return error
    return None


def _opened(
    each: PartitionDirectory,
    failure: OSError | None,
    new_log: Callable[[Path, TopicPartition, str], Log],
) -> Log | StorageError:
    if failure is not None:
        shutil.rmtree(each.path, ignore_errors=True)
        return disk_error(f"{each.path} cannot be created", failure)
    log = new_log(each.path, TopicPartition(each.topic, each.partition), each.topic_id)
    try:
        log.start()
    except StorageError as error:
        return error
    return log
