"""What has rotted in a log: finding it, how far it goes, and remembering it."""

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from folkmoot.brokers.storage.atomic_file import read_checked, write_checked
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import HEADER_BYTES, BatchHeader
from folkmoot.protocol.errors import CorruptBatch

if TYPE_CHECKING:
    from folkmoot.brokers.storage.logfile import LogFile

logger = logging.getLogger(__name__)

DAMAGE_SUFFIX: Final = ".damage"
_WINDOW_BYTES = 4 * 1024 * 1024
_SEARCH_WINDOW_BYTES = 1024 * 1024
_SEARCH_BYTES = 128 * 1024 * 1024


class Damage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes `[position, end)` of a `.log`, where the records `[offset, next_offset)` should be."""

    offset: int
    next_offset: int
    position: int
    end: int


_decoder = msgspec.json.Decoder(list[Damage])


def load(path: Path) -> tuple[Damage, ...]:
    """The damage noted beside a segment; none if the note itself cannot be read."""
    try:
        noted = read_checked(path)
        return () if noted is None else tuple(_decoder.decode(noted))
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("%s: not understood: %s", path, error)
        return ()


def save(path: Path, damage: Sequence[Damage]) -> None:
    """Note it, so that the next start knows. What cannot be noted will be found again."""
    try:
        write_checked(path, msgspec.json.encode(damage))
    except OSError as error:
        logger.warning("%s: cannot be written: %s", path, error)


def examine(
    log: "LogFile", position: int, offset: int, end_offset: int | None = None
) -> Iterator[tuple[BatchHeader, int] | Damage]:
    """Every batch from `position` on, where `offset` should be, with its position, wholly checked.

    What is no batch, or not the one that should follow, comes as Damage, up to the next one that is
    whole; damage that is marked already is passed over in silence. At the end of the file damage
    reaches to `end_offset`, or, if that is not known, no further than it begins. Raises StorageError.
    """
    while position < log.size:
        try:
            for header, at in log.walk(position, _WINDOW_BYTES, batch_header.check):
                position = at
                follows = header.base_offset == offset or (
                    log.sparse and header.base_offset > offset
                )
                if not follows and not _is_marked(log, offset, header):
                    raise CorruptBatch(f"it holds offset {header.base_offset}, not {offset}")
                yield header, position
                offset, position = header.next_offset, position + header.length
            break
        except CorruptBatch:
            pass
        following = next_batch(log, position, offset)
        if following is None:
            yield Damage(offset, max(offset, end_offset or 0), position, log.size)
            return
        yield Damage(offset, following.base_offset, position, following.position)
        offset, position = following.base_offset, following.position
    missing = end_offset is not None and offset < end_offset and not log.sparse
    if end_offset is not None and missing and not _is_marked(log, offset, None):
        yield Damage(offset, end_offset, log.size, log.size)


class Whole(msgspec.Struct, frozen=True):
    """A batch behind damage: its first offset, and where it lies."""

    base_offset: int
    position: int


def _is_marked(log: "LogFile", offset: int, header: BatchHeader | None) -> bool:
    return any(
        known.offset == offset and (header is None or known.next_offset == header.base_offset)
        for known in log.damage
    )


def next_batch(log: "LogFile", position: int, offset: int) -> Whole | None:
    """The first whole batch at or behind `position` that could follow records lost from `offset` on.

    A header is believed for what the leader's checksum covers, its length among that, so that no
    batch within a batch's body (a record may hold anything) is taken for one; only where a header is
    lost too are bytes searched.
    """
    limit = min(log.size, position + _SEARCH_BYTES)
    while position < limit:
        try:
            header = batch_header.read_header(log.read(HEADER_BYTES, position))
        except CorruptBatch:
            return _search(log, position + 1, offset, limit)
        if header.base_offset >= offset and _is_whole(log, position, header.length):
            return Whole(header.base_offset, position)
        offset = max(offset, header.base_offset + 1)
        position += header.length
    return None


def _search(log: "LogFile", position: int, offset: int, limit: int) -> Whole | None:
    """Look for what could be a header: the high half of a near offset, and 36 bytes on the version."""
    high = (offset >> 32).to_bytes(4, "big")
    pattern = re.compile(b"(?s)" + re.escape(high) + rb".{32}\x01\x00\x00")
    while position < limit:
        view = log.read(_SEARCH_WINDOW_BYTES + HEADER_BYTES, position)
        found = pattern.search(view)
        while found is not None:
            at = position + found.start()
            try:
                header = batch_header.read_header(view, found.start())
                if header.base_offset > offset and _is_whole(log, at, header.length):
                    return Whole(header.base_offset, at)
            except CorruptBatch:
                pass
            found = pattern.search(view, found.start() + 1)
        position += _SEARCH_WINDOW_BYTES
    return None


def _is_whole(log: "LogFile", position: int, length: int) -> bool:
    if position + length > log.size:
        return False
    try:
        batch_header.check(log.read(length, position))
    except CorruptBatch:
        return False
    return True
