"""How far a log has been compacted: what has to be known again after a restart."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from folkmoot.brokers.storage.atomic_file import read_checked, write_checked

logger = logging.getLogger(__name__)

CHECKPOINT_FILE: Final = "cleaner-checkpoint"
MOST_CLEANINGS: Final = 32

_Natural = Annotated[int, Meta(ge=0)]


class Cleaning(msgspec.Struct, frozen=True, array_like=True):
    """At the time `at` (ms) all records before `offset` had been gone through."""

    offset: _Natural
    at: int


class CleanerCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The file `cleaner-checkpoint` of a partition, behind a first line with its checksum.

    `clean_before`: before it no key has two records. Moves when a whole pass is done; a pass that was
    interrupted is done again, and finds less to do. If the file is lost, so is every pass.

    `cleanings`, rising: when tombstones were first gone through, which is when their time begins.
    Few are kept: a tombstone whose own was left out counts as of a later one.

    `tombstones`: how many were left before `clean_before`.
    """

    clean_before: _Natural = 0
    cleanings: tuple[Cleaning, ...] = ()
    tombstones: _Natural = 0

    def droppable_before(self, delete_retention: float, now: int) -> int:
        """Tombstones before this offset have been there for long enough."""
        limit = now - delete_retention * 1000
        return max((each.offset for each in self.cleanings if each.at <= limit), default=0)

    def after_pass(
        self, clean_before: int, tombstones: int, dropped_before: int, now: int
    ) -> "CleanerCheckpoint":
        """What is to be known after a pass that left no tombstone before `dropped_before`."""
        later = [each for each in self.cleanings if each.offset > dropped_before and each.at <= now]
        if not later or later[-1].offset < clean_before:
            later.append(Cleaning(clean_before, now))
        return CleanerCheckpoint(
            clean_before=clean_before, cleanings=_fewer(later), tombstones=tombstones
        )

    def save(self, directory: Path) -> None:
        """On disk when this returns. Raises OSError."""
        write_checked(directory / CHECKPOINT_FILE, msgspec.json.encode(self))


def load(directory: Path) -> CleanerCheckpoint:
    """What is noted beside a partition's segments; as if never compacted, if nothing is legible.

    Raises OSError.
    """
    noted = read_checked(directory / CHECKPOINT_FILE)
    if noted is None:
        return CleanerCheckpoint()
    try:
        return msgspec.json.decode(noted, type=CleanerCheckpoint)
    except msgspec.MsgspecError as error:
        logger.warning("%s: not understood: %s", directory / CHECKPOINT_FILE, error)
        return CleanerCheckpoint()


def _fewer(cleanings: Sequence[Cleaning]) -> tuple[Cleaning, ...]:
    """The newest always, of the others every second one as often as needed."""
    while len(cleanings) > MOST_CLEANINGS:
        cleanings = [*cleanings[1:-1:2], cleanings[-1]]
    return tuple(cleanings)
