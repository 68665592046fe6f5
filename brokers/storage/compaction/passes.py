"""What a pass of compaction is told, and what it tells: between the reactor and the background."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from folkmoot.brokers.storage.compaction.compacted import Compacted
from folkmoot.brokers.storage.compaction.segment_swap import Replacement
from folkmoot.brokers.storage.damage import Damage
from folkmoot.brokers.storage.logfile import LogFile


class Source(NamedTuple):
    """A sealed segment to be read, by a descriptor of its own."""

    base: int
    end: int
    log: LogFile


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a pass is to do, said by the log's owner.

    All of `sources` is on disk, and below the high watermark. `runs` are those of them that are
    written anew, next to each other; damaged ones are in none and stay. Tombstones go that lie before
    `droppable_before`, unless something in front of them stays as it is: it may have older records
    of their keys, which would be the last ones then.
    """

    directory: Path
    state: Compacted
    sources: Sequence[Source]
    runs: Sequence[Sequence[Source]]
    segment_bytes: int
    droppable_before: int
    memory_bytes: int
    index_interval_bytes: int


class Piece(NamedTuple):
    """So many bytes were read and written; go on."""

    moved: int


class Rotten(NamedTuple):
    """This was found in the segment with this base offset; the pass has ended."""

    base: int
    damage: Damage


class Cleaned(NamedTuple):
    """A segment is written; it has to be in its place, or undone, before the pass goes on."""

    replacement: Replacement
    size: int
    is_new: bool
    """Whether it differs from what it was made from at all."""


class Noted(NamedTuple):
    """This is on disk now."""

    state: Compacted


class Done(NamedTuple):
    """All was written: every key has one record at most before `clean_before`.

    So many tombstones are left there, none before `dropped_before` that could go.
    """

    clean_before: int
    tombstones: int
    dropped_before: int


Outcome = Piece | Rotten | Noted | Cleaned | Done
