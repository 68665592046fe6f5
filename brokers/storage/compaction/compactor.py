"""Compaction: which log is next, one pass after another, and putting new segments in their places."""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage.compaction.cleanable import cleanable, runs, urgency
from folkmoot.brokers.storage.compaction.passes import (
    Cleaned,
    Done,
    Noted,
    Outcome,
    Piece,
    Plan,
    Rotten,
    Source,
)
from folkmoot.brokers.storage.compaction.segment_swap import Replacement, settle
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.brokers.storage.segment import Segment
from folkmoot.protocol.errors import StorageError

logger = logging.getLogger(__name__)

COMPACTION_INTERVAL: Final = 15.0
LOGS_AT_ONCE: Final = 100
RETRY_PAUSE: Final = 600.0
_BUSY = 0.02
_MORE = 0.05


class _Pass(NamedTuple):
    log: Log
    segments: dict[int, Segment]
    work: Iterator[Any]


def _cleaning(plan: Plan) -> Iterator[Outcome]:
    """The pass; what opens batches is loaded by the first one, and not at every start of a broker."""
    from folkmoot.brokers.storage.compaction.cleaning import cleaning

    yield from cleaning(plan)


class Compactor:
    """Keeps the last record of each key in logs that ask for it (`cleanup_policy`).

    Every COMPACTION_INTERVAL all logs are looked at, some at a time, and the one with the largest
    part not compacted yet is taken, if that is `min_cleanable_dirty_ratio` of it or older than
    `max_compaction_lag`, or if tombstones have had their time. One pass after another.

    Only what can never change or be lost is touched: sealed segments before the one that the file
    `durable` names, if a record is there. So an unclean start never looks into a compacted segment,
    and behind every gap there is a record. Damaged segments stay as they are.

    The background does the work (`cleaning`), in pieces, with pauses that keep it below
    `bytes_per_second`; the reactor's thread takes finished segments over (`swap`), if those they were
    made from are all still there: what deleted one meanwhile wins.
    """

    def __init__(
        self, logs: Logs, background: Background, memory_bytes: int, bytes_per_second: int
    ) -> None:
        self._logs = logs
        self._background = background
        self._memory_bytes = memory_bytes
        self._bytes_per_second = bytes_per_second
        self._round: list[Log] = []
        self._best: tuple[float, Log] | None = None
        self._pass: _Pass | None = None
        self._busy = False
        self._then: Callable[[Any, Now], float] | None = None
        self._outcome: Any = None
        self._retry_at: dict[str, float] = {}

    def chore(self, now: Now) -> float:
        """Look at some logs, or go on with the pass under way; → the pause that keeps the pace."""
        if self._busy:
            return _BUSY
        if self._then is not None:
            then, self._then = self._then, None
            return then(self._outcome, now)
        if self._pass is not None:
            self._do(partial(next, self._pass.work, None), self._stepped)
            return _BUSY
        return self._look(now)

    # -- which log ----------------------------------------------------------------------------------

    def _look(self, now: Now) -> float:
        if not self._round:
            self._round = [
                log for log in self._logs if log.configured and log.config.compacts and log.is_open
            ]
            self._best = None
        some, self._round = self._round[:LOGS_AT_ONCE], self._round[LOGS_AT_ONCE:]
        for log in some:
            if self._retry_at.get(_key(log), 0.0) > now.monotonic:
                continue
            try:
                score = urgency(log, now.wall)
            except StorageError as error:
                self._give_up(log, error, now)
                continue
            if score is not None and (self._best is None or score > self._best[0]):
                self._best = score, log
        if self._round:
            return _MORE
        if self._best is None:
            return COMPACTION_INTERVAL
        self._begin(self._best[1], now)
        return 0.0

    def _begin(self, log: Log, now: Now) -> None:
        self._round, self._best = [], None
        try:
            segments = cleanable(log, now.wall)
        except StorageError as error:
            self._give_up(log, error, now)
            return
        sources = [
            Source(segment.base_offset, segment.end_offset, segment.copy_to_read())
            for segment in segments
        ]
        by_base = {source.base: source for source in sources}
        config = log.config
        plan = Plan(
            directory=log.directory,
            state=log.compacted,
            sources=sources,
            runs=[[by_base[segment.base_offset] for segment in run] for run in runs(segments)],
            segment_bytes=config.segment_bytes,
            droppable_before=log.compacted.droppable_before(config.delete_retention, now.wall),
            memory_bytes=self._memory_bytes,
            index_interval_bytes=config.index_interval_bytes,
        )
        logger.info("%s: compacting %d segments", log.name, len(segments))
        known = {segment.base_offset: segment for segment in segments}
        self._pass = _Pass(log, known, _cleaning(plan))

    # -- a pass -------------------------------------------------------------------------------------

    def _do(self, job: Callable[[], Any], then: Callable[[Any, Now], float]) -> None:
        self._busy = True
        self._then = then
        self._background.submit(job, self._reported)

    def _reported(self, outcome: Any) -> None:
        self._busy, self._outcome = False, outcome

    def _stepped(self, outcome: Outcome | StorageError | None, now: Now) -> float:
        assert self._pass is not None
        log = self._pass.log
        match outcome:
            case Piece():
                return outcome.moved / self._bytes_per_second
            case Noted():
                log.compacted = outcome.state
            case Cleaned():
                return self._commit(outcome)
            case Done():
                return self._note(outcome, now)
            case Rotten():
                segment = self._pass.segments[outcome.base]
                if log.sealed(outcome.base) is segment:
                    segment.mark(outcome.damage)
                self._pass = None
            case StorageError():
                self._give_up(log, outcome, now)
        return 0.0

    def _commit(self, cleaned: Cleaned) -> float:
        """Step 2 of a swap."""
        if not cleaned.is_new:
            self._do(cleaned.replacement.undo, self._settled)
            return _BUSY
        if self._old(cleaned.replacement) is None:
            return self._undo(cleaned)
        try:
            cleaned.replacement.commit()
        except OSError as error:
            logger.error("%s: not compacted: %s", cleaned.replacement.directory, error)
            return self._undo(cleaned)
        self._do(cleaned.replacement.flush, partial(self._committed, cleaned))
        return _BUSY

    def _committed(self, cleaned: Cleaned, outcome: StorageError | None, now: Now) -> float:
        """Steps 4 and 5, unless a segment was deleted since, which wins. If they fail, the log has."""
        assert self._pass is not None
        old = self._old(cleaned.replacement)
        if old is None or outcome is not None:
            return self._undo(cleaned)
        log = self._pass.log
        try:
            doomed = log.replace(old, cleaned.replacement, cleaned.size)
        except StorageError as error:
            self._give_up(log, error, now)
            return 0.0
        self._do(partial(settle, cleaned.replacement, doomed), self._settled)
        return _BUSY

    def _settled(self, outcome: StorageError | None, now: Now) -> float:
        if outcome is not None:
            logger.error("files of a compaction are left behind: %s", outcome)
        return 0.0

    def _undo(self, cleaned: Cleaned) -> float:
        """What was to be replaced has changed: begin again another time."""
        self._pass = None
        self._do(cleaned.replacement.undo, self._settled)
        return _BUSY

    def _old(self, replacement: Replacement) -> list[Segment] | None:
        """The segments to be replaced, if they are all as they were when the pass began."""
        assert self._pass is not None
        log = self._pass.log
        old = [
            segment
            for base, segment in self._pass.segments.items()
            if replacement.base <= base < replacement.end
        ]
        whole = all(log.sealed(each.base_offset) is each and not each.damage for each in old)
        return old if whole else None

    def _note(self, done: Done, now: Now) -> float:
        """Have it noted how far the log is compacted now."""
        assert self._pass is not None
        log = self._pass.log
        state = log.compacted.after_pass(
            *(done.clean_before, done.tombstones, done.dropped_before, now.wall)
        )

        def save() -> None:
            state.save(log.directory)

        def saved(outcome: StorageError | None, now: Now) -> float:
            self._pass = None
            if outcome is not None:
                self._give_up(log, outcome, now)
            elif log.is_open:
                log.compacted = state
                logger.info("%s: compacted up to offset %d", log.name, state.clean_before)
            return 0.0

        self._do(save, saved)
        return _BUSY

    def _give_up(self, log: Log, error: StorageError, now: Now) -> None:
        """Leave this log alone for a while."""
        logger.error("%s: not compacted: %s", log.name, error)
        self._retry_at[_key(log)] = now.monotonic + RETRY_PAUSE
        self._pass = None


def _key(log: Log) -> str:
    return f"{log.name}.{log.topic_id}"
