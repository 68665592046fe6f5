"""How far a log has been compacted: what has to be known again after a restart."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from folkmoot.brokers.storage.atomic_file import read_checked, write_checked

logger = logging.getLogger(__name__)

COMPACTED_FILE: Final = "compacted"
MOST_CLEANINGS: Final = 32

_Natural = Annotated[int, Meta(ge=0)]


class Cleaning(msgspec.Struct, frozen=True, array_like=True):
    """At the time `at` (ms) all records before `offset` had been gone through."""

    offset: _Natural
    at: int


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The file `compacted` of a partition, behind a first line with its checksum.

    `sparse_before`: segments that begin before it may lack offsets. On disk before the first of them
    is replaced. If the file is lost, gaps are taken for damage, and answered as such, until the log
    is compacted again.

    `clean_before`: before it no key has two records. Moves when a whole pass is done; a pass that was
    interrupted is done again, and finds less to do.

    `cleanings`, rising: when tombstones were first gone through, which is when their time begins.
    Few are kept: a tombstone whose own was left out counts as of a later one.

    `tombstones`: how many were left before `clean_before`.

    `topic_id`: whose log this is. A topic may be deleted, and created again under its name, while the
    background is about to write the file: the new one has nothing to do with it.
    """

    sparse_before: _Natural = 0
    clean_before: _Natural = 0
    cleanings: tuple[Cleaning, ...] = ()
    tombstones: _Natural = 0
    topic_id: str = ""

    def droppable_before(self, delete_retention: float, now: int) -> int:
        """Tombstones before this offset have been there for long enough."""
        limit = now - delete_retention * 1000
        return max((each.offset for each in self.cleanings if each.at <= limit), default=0)

    def after_pass(self, clean_before: int, tombstones: int, dropped: int, now: int) -> "Compacted":
        """What is to be known after a pass that went up to `clean_before`.

        Before `dropped` no tombstone is left.
        """
        later = [each for each in self.cleanings if each.offset > dropped and each.at <= now]
        if not later or later[-1].offset < clean_before:
            later.append(Cleaning(clean_before, now))
        return Compacted(
            sparse_before=self.sparse_before,
            clean_before=clean_before,
            cleanings=_thinned(later),
            tombstones=tombstones,
            topic_id=self.topic_id,
        )

    def save(self, directory: Path) -> None:
        """On disk when this returns. Raises OSError."""
        write_checked(directory / COMPACTED_FILE, msgspec.json.encode(self))


def load(directory: Path, topic_id: str) -> Compacted:
    """What is noted beside a partition's segments; as if never compacted, if nothing is legible.

    Raises OSError.
    """
    never = Compacted(topic_id=topic_id)
    noted = read_checked(directory / COMPACTED_FILE)
    if noted is None:
        return never
    try:
        known = msgspec.json.decode(noted, type=Compacted)
    except msgspec.MsgspecError as error:
        logger.warning("%s: not understood: %s", directory / COMPACTED_FILE, error)
        return never
    return known if known.topic_id == topic_id else never


def _thinned(cleanings: Sequence[Cleaning]) -> tuple[Cleaning, ...]:
    """The newest always, of the others every second one as often as needed."""
    while len(cleanings) > MOST_CLEANINGS:
        cleanings = [*cleanings[1:-1:2], cleanings[-1]]
    return tuple(cleanings)
