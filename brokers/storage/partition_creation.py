"""Partitions that have no directory yet, and how they get one without anybody else waiting for it."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

from folkmoot.brokers.storage import directories
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.brokers.storage.logfile import disk_error
from folkmoot.protocol.errors import FolkmootError, StorageError
from folkmoot.protocol.records import TopicPartition

logger = logging.getLogger(__name__)

AT_ONCE: Final = 32

_Outcomes = dict[TopicPartition, OSError | None]
_Report = Callable[[_Outcomes | StorageError], None]
Then = Callable[[FolkmootError | None], None]


class Submit(Protocol):
    """Has a job done somewhere and its result reported on the reactor's thread."""

    def __call__(self, job: Callable[[], Any], report: Callable[[Any], None], /) -> None: ...


def at_once(job: Callable[[], _Outcomes], report: _Report) -> None:
    """Do a job here and now: for tests, and where nobody else waits."""
    report(job())


class Newcomers:
    """Makes the directories of partitions beside the reactor, a few at a time.

    A directory costs two flushes and its share of a third: ten milliseconds on a busy disk, which
    would be a minute for ten thousand partitions. So they are made by a thread of their own, up to
    AT_ONCE in one job, as soon as the view tells of a topic (`look_ahead`); and partitions that
    somebody already produces to come first (`when_made`). One job is under way at a time; its end
    is where the logs are opened, on the reactor's thread, and where the next job begins.

    Crash story: a log exists, and can be appended to, only once its directory is on disk under its
    own name; so nothing is acknowledged before. A death in a job leaves directories that are not
    finished, which the next start removes, and empty ones, which it serves. A topic that is deleted
    while its directory is made: the log is opened and deleted at once, as any other.

    Owner: the reactor's thread.
    """

    def __init__(self, logs: Logs, submit: Submit = at_once) -> None:
        self._logs = logs
        self._submit = submit
        self._ahead: dict[TopicPartition, str] = {}
        self._urgent: dict[TopicPartition, str] = {}
        self._waiting: dict[TopicPartition, list[Then]] = {}
        self._under_way: Mapping[TopicPartition, str] = {}
        self._going_on = False

    def when_made(self, name: TopicPartition, topic_id: str, then: Then) -> None:
        """Have a partition's directory made, before those for which nobody waits.

        `then` is called once, with what went wrong if it did, in the order of asking: before anyone
        who asks later finds the log.
        """
        self._waiting.setdefault(name, []).append(then)
        if self._under_way.get(name) != topic_id:
            self._urgent[name] = topic_id
        self._ahead.pop(name, None)
        self._go_on()

    def look_ahead(self, topic: str, topic_id: str, partitions: list[int]) -> None:
        """Partitions that this broker leads: those without a log get one when there is time."""
        for partition in partitions:
            name = TopicPartition(topic, partition)
            if self._logs.find(topic, topic_id, partition) is None:
                self._ahead[name] = topic_id
        self._go_on()

    def forget(self, topic_id: str) -> None:
        """The topic was deleted: what is not begun is not made, and what is under way goes again."""
        self._ahead = {name: id for name, id in self._ahead.items() if id != topic_id}
        if topic_id in self._under_way.values():
            self._under_way = {
                name: "" if id == topic_id else id for name, id in self._under_way.items()
            }

    def _go_on(self) -> None:
        if self._going_on:
            return  # asked by a job that was done at once
        self._going_on = True
        try:
            while not self._under_way and (self._urgent or self._ahead):
                self._begin(self._urgent or self._ahead)
        finally:
            self._going_on = False

    def _begin(self, queue: dict[TopicPartition, str]) -> None:
        ready = {}
        for name, topic_id in list(islice(queue.items(), AT_ONCE)):
            del queue[name]
            try:
                if self._logs.find(name.topic, topic_id, name.partition) is None:
                    ready[self._logs.make_way(name.topic, topic_id, name.partition)] = topic_id
                else:
                    self._tell(name, None)
            except FolkmootError as error:
                self._tell(name, error)
        if ready:
            self._under_way = ready
            job = partial(directories.create_all, self._logs.data, ready)
            self._submit(job, partial(self._made, ready))

    def _made(
        self, wanted: Mapping[TopicPartition, str], outcomes: _Outcomes | StorageError
    ) -> None:
        still, self._under_way = self._under_way, {}
        for name, topic_id in wanted.items():
            failure = outcomes if isinstance(outcomes, StorageError) else outcomes[name]
            error = failure if isinstance(failure, StorageError) else None
            if isinstance(failure, OSError):
                error = disk_error(f"{self._logs.data / str(name)} cannot be created", failure)
            if error is None:
                error = self._open(name, topic_id, keep=still.get(name) == topic_id)
            self._tell(name, error)
        self._go_on()

    def _open(self, name: TopicPartition, topic_id: str, *, keep: bool) -> StorageError | None:
        try:
            self._logs.adopt(name, topic_id)
            if not keep:
                self._logs.delete_topic(topic_id)
        except StorageError as error:
            return error
        return None

    def _tell(self, name: TopicPartition, error: FolkmootError | None) -> None:
        if name in self._urgent:
            return  # a later topic of the name: its own directory comes next
        waiting = self._waiting.pop(name, ())
        if error is not None and not waiting:
            logger.warning("%s; the first produce will try again", error)
        for then in waiting:
            then(error)
