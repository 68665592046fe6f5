"""Making the logs of partitions beside the event loop."""

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from folkmoot.brokers.jobs.jobs import Lane, Now, Submit, at_once, call_guarded
from folkmoot.brokers.jobs.serial_queue import SerialQueue
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
"""The most logs of one job: epochs, states and the next view of the cluster follow once for all of them."""
THREADS: Final = 8
LOOK_AGAIN_AFTER: Final = 0.1

Callback = Callable[[FolkmootError | None], None]
_NewLog = Callable[[Path, TopicPartition, str], Log]


class PartitionCreation:
    """Makes the directories of partitions, AT_ONCE in one job, one job at a time.

    A directory costs three flushes: ten milliseconds on a busy disk, a minute for ten thousand partitions.

    Crash story: a log exists, and is led, only once its directory is on disk with the topic's name inside,
    so nothing is acknowledged before. A death in a job leaves empty directories, which the next start opens.
    A directory that could not be made durable is removed, and the next try makes it anew.

    Owner: the event loop.
    """

    def __init__(self, logs: LogManager, submit: Submit = at_once) -> None:
        self._logs = logs
        self._queue = SerialQueue(partial(submit, Lane.DISK))
        self._wanted: dict[PartitionDirectory, list[Callback]] = {}
        self._in_progress: dict[PartitionDirectory, list[Callback]] = {}

    def when_created(self, topic: str, topic_id: str, partition: int, callback: Callback) -> None:
        """Have a partition's log made, once the directory of a former one is removed.

        `callback` is called once, with the error, if any, in the order of the calls. Raises InvalidName,
        InvalidRequest.
        """
        wanted = partition_directory(self._logs.data, topic, topic_id, partition)
        if self._logs.find(topic_id, partition) is not None:
            callback(None)
        elif wanted in self._in_progress:
            self._in_progress[wanted].append(callback)
        else:
            self._wanted.setdefault(wanted, []).append(callback)
            self._begin()

    def task(self, now: Now) -> float:
        """Create logs whose former directories are removed by now."""
        self._begin()
        return LOOK_AGAIN_AFTER

    def _begin(self) -> None:
        if self._wanted and self._queue.is_idle:
            self._queue.add(self._create_all())

    async def _create_all(self) -> None:
        logs = self._logs
        while True:
            free = (each for each in self._wanted if not logs.is_deleting(each.path))
            some = self._in_progress = {
                wanted: self._wanted.pop(wanted) for wanted in list(islice(free, AT_ONCE))
            }
            if not some:
                return
            facts = [logs.facts_of(each.topic_id, each.partition) for each in some]
            new_log = partial(Log, config=logs.config, files=logs.files, run_job=logs.run_job)
            work = partial(create_logs, logs.data, list(some), facts, new_log)
            outcome = await self._queue.outcome_of(work)
            self._in_progress = {}
            if isinstance(outcome, Exception):
                outcome = [StorageError(str(outcome))] * len(some)
            for (wanted, waiting), partition_facts, result in zip(
                some.items(), facts, outcome, strict=True
            ):
                if isinstance(result, Log):
                    logs.add(result, (wanted.topic, partition_facts))
                for callback in waiting:
                    call_guarded(wanted.path, callback, None if isinstance(result, Log) else result)


def create_logs(
    data: Path,
    wanted: Sequence[PartitionDirectory],
    facts: Sequence[PartitionFacts | None],
    new_log: _NewLog,
) -> list[Log | StorageError]:
    """Make directories and open their logs → each log, on disk, or its error.

    One flush puts all names on disk.
    """
    with ThreadPoolExecutor(THREADS, "creation") as pool:  # the journal is written once for several
        failures = dict(zip(wanted, pool.map(_make, wanted, facts), strict=True))
    try:
        sync_directory(data)
    except OSError as error:
        failures = {each: failures[each] or error for each in wanted}
    return [_open(each, failures[each], new_log) for each in wanted]


def _make(each: PartitionDirectory, known: PartitionFacts | None) -> OSError | None:
    try:
        each.path.mkdir(exist_ok=True)
        save_facts(each.path, each.topic, known)
    except OSError as error:
        return error
    return None


def _open(
    each: PartitionDirectory, failure: OSError | None, new_log: _NewLog
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
