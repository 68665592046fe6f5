"""A background whose jobs are done when a test says so, and logs made without waiting for it."""

from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Any

from folkmoot.brokers.jobs.jobs import result_of
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.notes import save_notes
from folkmoot.brokers.storage.partition_creation import PartitionCreation
from folkmoot.brokers.storage.retention import Retention
from folkmoot.coordination.topic_config import LogConfig
from tests.brokers.batches import SMALL

_KINDS = {
    "put_on_disk": "flush",
    "save_notes": "notes",
    "save_log_start": "log starts",
    "_note_start": "log starts",
    "delete_all": "begin anew",
    "delete_directories": "deletion",
    "_make_room": "deletion",
    "write_anew": "cleaner",
}


def kind_of(work: Callable[[], Any]) -> str:
    """What a job does, by the function that does it."""
    while isinstance(work, partial):
        work = work.args[0] if work.func is result_of else work.func
    return _KINDS.get(work.__name__, work.__qualname__)


class Hands:
    """The threads beside the event loop: one job at a time, and only when told."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Hashable, Callable[[], Any], Callable[[Any], None]]] = []

    def submit(
        self, key: Hashable, work: Callable[[], Any], done: Callable[[Any], None], /
    ) -> None:
        self.jobs.append((key, work, done))

    def work(self) -> None:
        """Do the first job that waits."""
        _, work, done = self.jobs.pop(0)
        done(result_of(work))

    def work_all(self) -> None:
        """Do all that waits, and what comes of it."""
        while self.jobs:
            self.work()

    def keys(self) -> list[Hashable]:
        """What waits, by what it does."""
        return [kind_of(work) for _, work, _ in self.jobs]


def create(logs: LogManager, topic: str, topic_id: str, partition: int) -> Log:
    """The log of a partition, made here and now if it is not there, and led; raises what went wrong."""
    outcomes: list[Exception | None] = []
    PartitionCreation(logs).when_created(topic, topic_id, partition, outcomes.append)
    [error] = outcomes
    if error is not None:
        raise error
    log = logs.find(topic_id, partition)
    assert log is not None
    name = log.directory.name
    if name not in logs.notes.leader_epochs:
        logs.notes.leader_epochs[name] = log.leader_epoch = 0
        save_notes(logs.data, logs.notes)
    return lead(log)


def lead(log: Log) -> Log:
    """As the only replica does: all that is there is committed."""
    log.is_led = log.is_alone = True
    if log.is_open:
        log.advance_high_watermark(log.log_end)
    return log


class OneLog:
    """A data directory with one log, and what lets go of its records."""

    def __init__(self, data: Path, config: LogConfig = SMALL) -> None:
        self.data = data
        self.config = config
        self.open()

    def open(self) -> None:
        self.hands = Hands()
        self.logs = LogManager(self.data, 1, self.config, submit=self.hands.submit)
        self.logs.start()
        self.log: Log = create(self.logs, "flights", "first", 0)
        self.logs.configure("flights", "first", {})
        self.flusher = Flusher(self.logs)
        self.retention = Retention(self.logs, self.flusher, self.hands.submit)

    def reopen(self, *, clean: bool) -> None:
        self.logs.close() if clean else self.logs.abandon()
        self.open()

    def delete_before(self, offset: int) -> None:
        """As DELETE_RECORDS does it; raises what it would answer."""
        outcomes: list[Exception | None] = []
        self.retention.delete_records(self.log, offset, outcomes.append)
        self.hands.work_all()
        [error] = outcomes
        if error is not None:
            raise error


def truncate(log: Log, offset: int) -> None:
    """Cut a log, here and now."""
    log.queue.run_now(log.cut(offset))
