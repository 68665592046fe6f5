"""Flushing all logs from time to time, and noting up to where they are on disk."""

import logging
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final

import msgspec

from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage.atomic_file import write_checked
from folkmoot.brokers.storage.flushing import CleanEnd, Flushed, Flushing, flush_all
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import DURABLE_FILE, Logs
from folkmoot.protocol.errors import StorageError

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL: Final = 30.0
CHECKPOINT_BYTES: Final = 512 * 1024 * 1024
"""After so much the next round begins earlier: a start checks about a gigabyte in a second."""

SHORTEST_INTERVAL: Final = 2.0
FLUSH_TICK: Final = 0.1
LOGS_AT_ONCE: Final = 200
"""Each has a few descriptors on loan to the background meanwhile."""

_MORE = 0.05
_TICK = 1.0


class Checkpoints:
    """Bounds what an unclean stop leaves to be checked, and what a power cut can take.

    Every CHECKPOINT_INTERVAL, from one beginning to the next, or once CHECKPOINT_BYTES came since the
    last one, the logs that were appended to are flushed in the background, then the ends that they
    had before the flush are written to `durable` in the data directory. A start without an orderly
    stop before it checks only what lies behind. The file may be old, which costs time, and is never
    ahead of the disk. The reactor's thread.
    """

    def __init__(self, logs: Logs, background: Background) -> None:
        self._logs = logs
        self._background = background
        self._round: list[Log] = []
        self._next_round = self._soonest = 0.0
        self._appended_before = 0
        self._busy = False
        self._news = False
        self._lent: list[tuple[Log, Flushing]] = []
        self._noting: list[tuple[Log, CleanEnd | None]] = []

    def chore(self, now: Now) -> float:
        """Hand some dirty logs to the background, or, after the last of a round, the file."""
        if self._busy:
            return _MORE
        if self._round:
            some, self._round = self._round[:LOGS_AT_ONCE], self._round[LOGS_AT_ONCE:]
            self._flush(some)
        elif self._news:
            self._note()
        elif now.monotonic < self._next_round and not self._is_much(now):
            return min(_TICK, self._next_round - now.monotonic)
        else:
            self._next_round = now.monotonic + CHECKPOINT_INTERVAL
            self._soonest = now.monotonic + SHORTEST_INTERVAL
            self._appended_before = self._logs.appended_bytes
            self._round = [log for log in self._logs if log.dirty]
            if not self._round:
                return _TICK
        return _MORE

    def _is_much(self, now: Now) -> bool:
        """Whether so much has come since the last round that a start would take long to check it."""
        much = self._logs.appended_bytes - self._appended_before >= CHECKPOINT_BYTES
        return much and now.monotonic >= self._soonest

    def flush_chore(self, now: Now) -> float:
        """Hand to the background those logs whose topics ask for a flush by now."""
        if self._busy:
            return _MORE
        timed = self._logs.flushed_by_time()
        due = [log for log in timed if log.flush_due <= now.monotonic and log.dirty]
        # Those that have waited longest first: the others are still due the next time.
        due = sorted(due, key=attrgetter("flush_due"))[:LOGS_AT_ONCE]
        for log in due:
            log.flush_due = now.monotonic + (log.config.flush_interval or 0.0)
        if due:
            self._flush(due)
        return FLUSH_TICK if timed else 1.0

    def _flush(self, some: list[Log]) -> None:
        flushings = []
        for log in some:
            if not log.dirty:
                continue  # deleted, or flushed otherwise, since it was listed
            try:
                flushings.append((log, log.lend()))
            except StorageError as error:
                logger.warning("%s: not flushed: %s", log.name, error)
        self._busy = True
        self._background.submit(partial(flush_all, [each for _, each in flushings]), self._flushed)
        self._lent = flushings

    def _flushed(self, outcome: list[Flushed] | StorageError) -> None:
        self._busy = False
        assert not isinstance(outcome, StorageError)
        for (log, flushing), flushed in zip(self._lent, outcome, strict=True):
            log.flushed(flushing, flushed)
            self._news = True
        self._lent = []

    def _note(self) -> None:
        self._busy, self._news = True, False
        self._noting = [(log, log.durable_end()) for log in self._logs]
        note = partial(_write, self._logs.data / DURABLE_FILE, self._logs.durable_ends())
        self._background.submit(note, self._noted)

    def _noted(self, outcome: StorageError | None) -> None:
        self._busy = False
        if outcome is not None:
            logger.warning("the logs' durable ends were not noted: %s", outcome)
        else:
            for log, durable in self._noting:
                log.noted = durable
        self._noting = []


def _write(path: Path, ends: dict[str, CleanEnd]) -> None:
    write_checked(path, msgspec.json.encode(ends))
