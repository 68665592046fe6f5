"""The files in a partition's directory, and their recovery after a stop of any kind."""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from folkmoot.brokers.storage.files.atomic_file import (
    disk_error,
    read_checked,
    sync_directory,
    write_atomic,
    write_checked,
)
from folkmoot.brokers.storage.producer_state import SNAPSHOT_SUFFIX
from folkmoot.brokers.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    OpenSegments,
    Segment,
    SegmentName,
    flush_if_crowded,
)
from folkmoot.protocol.errors import StorageError

logger = logging.getLogger(__name__)

LOG_START_FILE: Final = "log-start"
_ANEW: Final = b"anew"
SPARE_FILE: Final = "spare"
CLEANER_CHECKPOINT_FILE: Final = "cleaner-checkpoint"
"""How far the log is compacted (CleanerCheckpoint)."""
COMPACTED_FOR_FILE: Final = "compacted-for"
"""An offset: compaction has dropped records only for later ones before it."""
INCOMPLETE_FILE: Final = "incomplete"
"""Exists while a replica may lack records that it has acked, since its disk has lost them."""
_LEFTOVER_SUFFIXES: Final = (".cleaned", ".new")

_Natural = Annotated[int, Meta(ge=0)]


class RecoveryPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A log is on disk up to here: the next offset, the segment, and its size."""

    end_offset: _Natural
    segment: _Natural
    size: _Natural


class Listing(NamedTuple):
    """The files in a partition's directory."""

    segments: list[tuple[SegmentName, int]]
    """Name and size of each, in order; none covers another."""
    snapshots: list[int]
    """The offsets of the snapshots of producers, in order."""
    is_incomplete: bool = False


def list_segments(directory: Path) -> Listing:
    """List a partition's directory, and remove what a crash has left of a compaction. Raises OSError.

    That may be a compacted segment with those that it replaces, which are removed here.
    """
    found: list[tuple[SegmentName, int]] = []
    snapshots: list[int] = []
    indexes: set[str] = set()
    doomed: list[Path] = []
    is_incomplete = False
    with os.scandir(directory) as files:
        for file in files:
            name = SegmentName.parse(file.name)
            stem, _, suffix = file.name.rpartition(".")
            if name is not None:
                found.append((name, file.stat().st_size))
            elif "." + suffix == INDEX_SUFFIX:
                indexes.add(stem)
            elif "." + suffix == SNAPSHOT_SUFFIX and stem.isdigit():
                snapshots.append(int(stem))
            elif file.name.endswith(_LEFTOVER_SUFFIXES):
                doomed.append(Path(file.path))
            elif file.name == INCOMPLETE_FILE:
                is_incomplete = True
    current: list[tuple[SegmentName, int]] = []
    # The newest generation first: a segment that is replaced itself replaces no other.
    for name, size in sorted(found, key=lambda each: each[0].generation, reverse=True):
        if not _is_covered(name, current):
            current.append((name, size))
    stems = {name.stem for name, _ in current}
    doomed += [directory / f"{stem}{INDEX_SUFFIX}" for stem in indexes - stems]
    doomed += [
        directory / f"{name.stem}{LOG_SUFFIX}" for name, _ in found if name.stem not in stems
    ]
    for path in doomed:
        path.unlink(missing_ok=True)
    return Listing(sorted(current), sorted(snapshots), is_incomplete)


def open_again(directory: Path, name: SegmentName) -> SegmentName:
    """Rename a compacted segment to append to it; on disk once the directory is flushed.

    Raises OSError.
    """
    if name != name.appendable:
        (directory / f"{name.stem}{INDEX_SUFFIX}").unlink(missing_ok=True)
        os.rename(
            directory / f"{name.stem}{LOG_SUFFIX}",
            directory / f"{name.appendable.stem}{LOG_SUFFIX}",
        )
    return name.appendable


def _is_covered(name: SegmentName, current: Sequence[tuple[SegmentName, int]]) -> bool:
    end = max(name.end, name.base + 1)
    return any(
        other.generation > name.generation and other.base < end and name.base < other.end
        for other, _ in current
    )


def load_log_start(directory: Path) -> tuple[int, bool]:
    """Return the offset before which all records were deleted, and whether the log was to begin anew
    there (`save_log_start`). Raises OSError; StorageError: 0 would bring back what was deleted.
    """
    path = directory / LOG_START_FILE
    content = read_checked(path)
    if content is not None:
        offset, _, anew = content.partition(b" ")
        if offset.isdigit() and anew in (b"", _ANEW):
            return int(offset), anew == _ANEW
    elif not path.exists():
        return 0, False
    raise StorageError(
        f"{path} is damaged, and has the end of the deleted records: remove it only if they "
        "may be served again, then restart the broker"
    )


def save_log_start(directory: Path, offset: int, *, anew: bool = False) -> None:
    """Put it on disk. `anew`: a start removes all that the log has now. Raises OSError.

    On a full disk the spare file is used, so that deletions can make room.
    """
    content = b"%d %b" % (offset, _ANEW) if anew else b"%d" % offset
    write_checked(directory / LOG_START_FILE, content, directory.parent / SPARE_FILE)


def load_compacted_for(directory: Path) -> int | None:
    """Return the offset before which all records lie that others were dropped for; None: not known.

    Raises OSError.
    """
    content = read_checked(directory / COMPACTED_FOR_FILE)
    return int(content) if content is not None and content.isdigit() else None


def note_compacted_for(directory: Path, offset: int) -> None:
    """Put it on disk, before a new segment takes its place. Raises OSError."""
    write_checked(directory / COMPACTED_FOR_FILE, b"%d" % offset)


def note_incomplete(directory: Path) -> None:
    """Put it on disk: an empty file, which needs no block of a full disk. Raises OSError."""
    write_atomic(directory / INCOMPLETE_FILE, b"")


def note_complete(directory: Path) -> None:
    """Remove the note, durably. Raises OSError."""
    with suppress(FileNotFoundError):  # the partition may have been deleted meanwhile
        (directory / INCOMPLETE_FILE).unlink()
        sync_directory(directory)


def recover(
    segments: list[Segment],
    point: RecoveryPoint | None,
    directory: Path,
    before_loss: Callable[[], None],
    flushed: int,
    files: OpenSegments,
) -> RecoveryPoint | None:
    """Check all behind `point`, which may not have been on disk; → `point`, if it can be believed.

    `before_loss` is called before a bad batch is cut that is no torn end. A segment that has a torn end
    from offset `flushed` on becomes the last: a power cut has left less of it than of those behind it,
    which were not flushed either. If the last segment ends at the point nothing is read, as after an
    orderly stop, or any stop of an idle log. Raises StorageError.
    """
    last = segments[-1]
    if point is not None and (point.segment, point.size) == (last.base_offset, last.size):
        last.end_offset = point.end_offset
        return point
    if point is not None and point.segment > last.base_offset:
        logger.error("%s: segment %d is missing", directory, point.segment)
        point = None
    first = 0 if point is None else point.segment
    for segment in [each for each in segments if each.base_offset >= first]:
        position, offset = 0, segment.base_offset
        if point is not None and segment.base_offset == first and not segment.sparse:
            position, offset = point.size, point.end_offset
        was_cut = segment.recover(
            *(position, offset),
            is_last=segment is last,
            flushed=flushed,
            before_cut=partial(_before_cut, segment, segments, before_loss),
        )
        segment.close_if_flushed()
        flush_if_crowded(segments, files)
        if was_cut:
            break
    return point


def _before_cut(
    segment: Segment, segments: list[Segment], before_loss: Callable[[], None], is_torn: bool
) -> None:
    if segment is not segments[-1]:
        _remove_behind(segment, segments)
    elif not is_torn:
        before_loss()


def _remove_behind(segment: Segment, segments: list[Segment]) -> None:
    """Remove the segments behind this one, the newest first: a death in between leaves some of them.

    On disk before anything is appended, which they would follow. Raises StorageError.
    """
    try:
        while segments[-1] is not segment:
            for path in segments[-1].files():
                path.unlink(missing_ok=True)
            removed = segments.pop()
            logger.warning(
                "%s: given up, it follows the torn end of %s", removed.path, segment.path
            )
        sync_directory(segment.directory)
    except OSError as error:
        raise disk_error(f"{segment.directory} cannot be used", error) from error
    segment.sealed = False
