"""Batches that readers say are bad: looked at again here, and believed only if they are."""

import logging
from functools import partial
from typing import Final, NamedTuple

from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage.damage import Damage, examine
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.logfile import LogFile
from folkmoot.brokers.storage.segment import Segment
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import HEADER_BYTES
from folkmoot.protocol.errors import CorruptBatch, Overloaded, StorageError

logger = logging.getLogger(__name__)

MOST: Final = 100
"""So many batches wait at most; who comes later is refused, and may come again."""
PAUSE: Final = 0.25
_IDLE: Final = 0.5

Suspect = tuple[Log, int]


class Place(NamedTuple):
    """Where to begin to look: a batch in front of the suspect, or that one itself."""

    base_offset: int
    """The segment's, whose first batch is at position 0."""
    position: int
    offset: int


class Suspects:
    """What readers have reported, in the order in which they came, each once.

    A reader's word costs a broker no more than a look: one batch, with what lies in front of it up to
    the next entry of the index, read and checked by the background on a descriptor of its own, and
    never more than one in PAUSE seconds, whoever reports how much. What is bad on disk is marked,
    as the scrub would; what is not was spoiled on its way, or is the reporter's invention.

    A crash forgets the reports: the next reader will report again. The reactor's thread.
    """

    def __init__(self) -> None:
        self._waiting: dict[Suspect, None] = {}
        self._busy = False

    def report(self, log: Log, offset: int) -> None:
        """Have the batch looked at that holds `offset`, which the log has. Raises Overloaded."""
        suspect = log, offset
        if suspect in self._waiting or log.containing(offset).is_damaged(offset):
            return
        if len(self._waiting) >= MOST:
            raise Overloaded(f"{MOST} batches wait to be looked at again")
        self._waiting[suspect] = None

    def chore(self, background: Background, now: Now) -> float:
        """Hand the next look to the background; → the pause until the one after it."""
        if self._waiting and not self._busy:
            log, offset = next(iter(self._waiting))
            del self._waiting[log, offset]
            self._look(log, offset, background)
        return PAUSE if self._waiting or self._busy else _IDLE

    def _look(self, log: Log, offset: int, background: Background) -> None:
        if not log.is_open or not log.start_offset <= offset < log.end_offset:
            return  # deleted meanwhile
        segment = log.containing(offset)
        try:
            place = Place(segment.base_offset, *segment.near(offset))
        except StorageError as error:
            logger.error("%s", error)
            return
        look = partial(_look, segment.copy_to_read(), place, offset, segment.end_offset)
        self._busy = True
        background.submit(look, partial(self._looked, log, segment, offset))

    def _looked(
        self, log: Log, segment: Segment, offset: int, outcome: list[Damage] | StorageError
    ) -> None:
        self._busy = False
        if isinstance(outcome, StorageError):
            logger.error("%s", outcome)
            return
        if not outcome:
            logger.warning("%s: offset %d was reported as damaged and is not", log.name, offset)
        elif log.is_open and offset < log.end_offset and log.containing(offset) is segment:
            for damage in outcome:
                segment.mark(damage)


def _look(log: LogFile, place: Place, offset: int, end_offset: int) -> list[Damage]:
    """What is bad up to behind the batch that should hold `offset`; `log` is the background's own.

    The index is no more believed than the reporter: what it leads to must be the batch it names.
    """
    try:
        if not _is_batch(log, *place[1:]):
            place = Place(place.base_offset, 0, place.base_offset)
        found = []
        for each in examine(log, place.position, place.offset, end_offset):
            if isinstance(each, Damage):
                found.append(each)
            if (each if isinstance(each, Damage) else each[0]).next_offset > offset:
                break
        return found
    finally:
        log.release()


def _is_batch(log: LogFile, position: int, offset: int) -> bool:
    if position >= log.size:
        return False
    try:
        return batch_header.read_header(log.read(HEADER_BYTES, position)).base_offset == offset
    except CorruptBatch:
        return False
