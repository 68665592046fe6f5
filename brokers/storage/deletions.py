"""Giving up the oldest records of partitions, and how nobody else waits for the disk meanwhile."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from folkmoot.brokers.storage.directories import save_start
from folkmoot.brokers.storage.flushing import Flushed, Flushing, flush_all
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.logfile import disk_error
from folkmoot.brokers.storage.partition_creation import Submit, at_once
from folkmoot.protocol.errors import (
    ClosedError,
    FolkmootError,
    Overloaded,
    StorageError,
    UnknownTopicOrPartition,
)

AT_ONCE: Final = 32
MOST_WAITING: Final = 100_000

Then = Callable[[FolkmootError | None], None]


class _Wanted(NamedTuple):
    log: Log
    offset: int
    then: Then


class _Note(NamedTuple):
    """What the background is to put on disk: what was lent of a log, then its new start."""

    flushing: Flushing
    directory: Path
    topic_id: str
    offset: int


class _Noted(NamedTuple):
    flushed: Flushed
    error: OSError | None


class Deletions:
    """Gives up records as DELETE_RECORDS asks for it, for a few logs at a time.

    A job in the background flushes the logs, with snapshots of what the headers that go tell of
    producers, and then notes each new start (`start-offset`). After that the reactor's thread moves
    the starts, and lets go of the segments before them. One job is under way at a time; of one log
    there is one wish in it, so that starts only rise.

    Crash story: until the new start is noted nothing has happened. From then on the records are gone,
    answered or not; segments that are left are deleted by retention. A topic that is deleted
    meanwhile, and perhaps made anew: the note tells whose it is, and nobody else believes it.

    Owner: the reactor's thread.
    """

    def __init__(self, submit: Submit = at_once) -> None:
        self._submit = submit
        self._waiting: deque[_Wanted] = deque()
        self._under_way: list[tuple[_Wanted, Flushing]] = []
        self._going_on = False

    def ask(self, log: Log, offset: int, then: Then) -> None:
        """Have all records of `log` before `offset` given up, which is not behind its end.

        `then` is called once, with what went wrong if it did. Raises Overloaded.
        """
        if len(self._waiting) >= MOST_WAITING:
            raise Overloaded("too many partitions wait for records to be deleted: ask again later")
        self._waiting.append(_Wanted(log, offset, then))
        self._go_on()

    def _go_on(self) -> None:
        if self._going_on:
            return  # asked by a job that was done at once
        self._going_on = True
        try:
            while self._waiting and not self._under_way:
                self._begin()
        finally:
            self._going_on = False

    def _begin(self) -> None:
        logs: set[Log] = set()
        while self._waiting and len(logs) < AT_ONCE and self._waiting[0].log not in logs:
            wanted = self._waiting.popleft()
            log = wanted.log
            try:
                _require_there(log)
                if wanted.offset <= log.start_offset:
                    wanted.then(None)
                    continue
                self._under_way.append((wanted, log.lend(told_before=wanted.offset)))
                logs.add(log)
            except FolkmootError as error:
                wanted.then(error)
        notes = [
            _Note(flushing, wanted.log.directory, wanted.log.topic_id, wanted.offset)
            for wanted, flushing in self._under_way
        ]
        if notes:
            self._submit(partial(_note_all, notes), self._noted)

    def _noted(self, outcome: list[_Noted] | StorageError) -> None:
        assert not isinstance(outcome, StorageError)
        done, self._under_way = self._under_way, []
        for (wanted, flushing), noted in zip(done, outcome, strict=True):
            log = wanted.log
            log.flushed(flushing, noted.flushed)
            try:
                _require_there(log)
            except FolkmootError as error:
                wanted.then(error)
                continue
            failure = noted.flushed.error or noted.error
            if failure is None:
                log.give_up(wanted.offset)
                wanted.then(None)
            else:
                wanted.then(disk_error(f"{log.directory}: nothing was deleted", failure))
        self._go_on()


def _require_there(log: Log) -> None:
    """Raises UnknownTopicOrPartition if it was deleted meanwhile, StorageError if it has failed."""
    try:
        log.require_open()
    except ClosedError as error:
        raise UnknownTopicOrPartition(f"{log.name} was deleted meanwhile") from error


def _note_all(notes: Sequence[_Note]) -> list[_Noted]:
    """The background's part."""
    flushed = flush_all([each.flushing for each in notes])
    return [_Noted(one, _note(each, one)) for each, one in zip(notes, flushed, strict=True)]


def _note(note: _Note, flushed: Flushed) -> OSError | None:
    if flushed.error is None:
        try:
            save_start(note.directory, note.topic_id, note.offset)
        except OSError as error:
            return error
    return None
