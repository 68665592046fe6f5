"""Batches that readers report as damaged: looked at again here, and believed only if they are."""

import logging
from functools import partial
from typing import Final

from folkmoot.brokers.jobs.jobs import Lane, Now, Submit
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.segment import Damage, Segment, SegmentReader
from folkmoot.protocol.errors import Overloaded

logger = logging.getLogger(__name__)

MOST: Final = 100
"""So many batches wait at most; who comes later is refused, and may come again."""

PAUSE: Final = 0.25
_IDLE: Final = 0.5


class DamageReports:
    """What readers have reported, in the order in which they came, each once.

    A report costs a broker no more than a look: one batch, with what lies in front of it up to the next
    entry of the index, is read and checked in the background on a descriptor of its own, and never
    more than one in PAUSE seconds. What is bad on disk is marked, as the scrubber would; what is not
    was spoiled on its way, or is the reporter's invention.

    A crash forgets the reports: the next reader will report again. Owner: the event loop.
    """

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._waiting: dict[tuple[Log, int], None] = {}
        self._busy = False

    def report(self, log: Log, offset: int) -> None:
        """Have the batch looked at that holds `offset`, which the log has. Raises Overloaded."""
        report = log, offset
        if report in self._waiting or log.segment_at(offset).is_damaged(offset):
            return
        if len(self._waiting) >= MOST:
            raise Overloaded(f"{MOST} batches wait to be looked at again")
        self._waiting[report] = None

    def task(self, now: Now) -> float:
        """Hand the next look to the background; → the pause until the one after it."""
        if self._waiting and not self._busy:
            log, offset = next(iter(self._waiting))
            del self._waiting[log, offset]
            if _has(log, offset):
                self._look(log, offset)
        return PAUSE if self._waiting or self._busy else _IDLE

    def _look(self, log: Log, offset: int) -> None:
        segment = log.segment_at(offset)
        segment.save_index()  # it says where a damaged batch ends
        look = partial(_read, segment.reader(), offset)
        self._busy = True
        self._submit(Lane.READ, look, partial(self._looked, log, segment, offset))

    def _looked(
        self, log: Log, segment: Segment, offset: int, outcome: list[Damage] | Exception
    ) -> None:
        self._busy = False
        if isinstance(outcome, Exception):
            logger.error("%s: %s", log.name, outcome)
        elif not outcome:
            logger.warning("%s: offset %d was reported as damaged and is not", log.name, offset)
        elif _has(log, offset) and log.segment_at(offset) is segment:
            for damage in outcome:
                segment.mark(damage)


def _has(log: Log, offset: int) -> bool:
    return log.is_open and log.log_start <= offset < log.log_end


def _read(reader: SegmentReader, offset: int) -> list[Damage]:
    """What is bad up to behind the batch that should hold `offset`. The background's part."""
    try:
        bad = []
        for found in reader.batches(reader.start_near(offset)):
            if isinstance(found, Damage):
                bad.append(found)
            if (found if isinstance(found, Damage) else found[0]).next_offset > offset:
                break
        return bad
    finally:
        reader.close()
