"""What lies in a partition's directory, made whole before anybody reads it."""

import logging
from pathlib import Path
from typing import NamedTuple

from folkmoot.brokers.storage.compaction import compacted
from folkmoot.brokers.storage.compaction import segment_swap as swap
from folkmoot.brokers.storage.compaction.compacted import COMPACTED_FILE, Compacted
from folkmoot.brokers.storage.damage import Damage
from folkmoot.brokers.storage.directories import (
    START_FILE,
    Files,
    is_interrupted,
    load_start,
    partition_files,
)
from folkmoot.brokers.storage.flushing import CleanEnd
from folkmoot.brokers.storage.segments import Segments

logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """A partition's directory: its files, the first offset not given up, how far it is compacted."""

    files: Files
    begin: int
    compacted: Compacted


def look(directory: Path, topic_id: str) -> Found:
    """List a partition's directory, after ending a compaction that was interrupted. Raises OSError."""
    files = partition_files(directory)
    if any(map(is_interrupted, files.others)):
        swap.finish(directory)
        files = partition_files(directory)
    begin = load_start(directory, topic_id) if START_FILE in files.others else 0
    known = Compacted(topic_id=topic_id)
    if COMPACTED_FILE in files.others:
        known = compacted.load(directory, topic_id)
    return Found(files, begin, known)


def recover(segments: Segments, durable: CleanEnd | None, directory: Path) -> CleanEnd | None:
    """Check what may not have been on disk: all behind `durable`. → that, if it is to be believed.

    Raises StorageError.
    """
    if durable is not None and durable.segment > segments[-1].base_offset:
        logger.error("%s: segment %d is missing", directory, durable.segment)
        durable = None
    first = 0 if durable is None else durable.segment
    if durable is None or segments[-1].base_offset > first:
        # A life before has made files, and may have died with their names not on disk.
        segments.names += 1
    for segment in segments:
        if segment.base_offset >= first:
            position, offset = 0, segment.base_offset
            if durable is not None and segment.base_offset == first:
                position, offset = durable.size, durable.end_offset
            if segment is segments[-1]:
                segment.recover(position, offset)
            else:
                segment.verify(position, offset)
            segment.release()
    return durable


def skip_lost(segments: Segments, offset: int, directory: Path) -> None:
    """The end was lost, if it was once at `offset`: its offsets are not given again."""
    if offset > segments.end_offset:
        logger.error("%s: lost offsets %d to %d", directory, segments.end_offset, offset - 1)
        for last in segments[-1:]:
            last.mark(Damage(last.end_offset, offset, last.size, last.size))
            last.end_offset = offset
        segments.roll(offset)
