"""What a broker asks of a producer's batch before it is appended."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from folkmoot.brokers.storage.producer_state import Producers
from folkmoot.brokers.storage.segment import Stamped
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import LEADER_BYTES, BatchHeader
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import (
    BatchTooLarge,
    CorruptBatch,
    FolkmootError,
    InvalidRequest,
    UnsupportedCodec,
)

if TYPE_CHECKING:
    from folkmoot.brokers.storage.log import Log

_Bytes = bytes | bytearray | memoryview

_KNOWN_CODECS: Final = frozenset(Codec)


class Fresh(NamedTuple):
    """A batch that may be appended."""

    header: BatchHeader
    data: _Bytes


class Duplicate(NamedTuple):
    """A batch that is in the log already."""

    base_offset: int


Admitted = Fresh | Duplicate | FolkmootError


def admit(batches: Sequence[_Bytes], max_batch_bytes: int, producers: Producers) -> list[Admitted]:
    """What is to become of each batch, given that the fresh ones before it are appended."""
    before: dict[int, BatchHeader] = {}
    admitted: list[Admitted] = []
    for data in batches:
        try:
            header = check_produced(data, max_batch_bytes)
            original = producers.check(header, before)
        except FolkmootError as error:
            admitted.append(error)
            continue
        admitted.append(Fresh(header, data) if original is None else Duplicate(original))
    return admitted


def stamp(batches: Sequence[Fresh], offset: int, leader_epoch: int, now: int) -> list[Stamped]:
    """The batches ready to be written, the first one at `offset`."""
    stamped = []
    for header, data in batches:
        leader = batch_header.leader_part(offset, header.length, leader_epoch, now)
        rest = memoryview(data)[LEADER_BYTES:]
        stamped.append(Stamped(offset, header.max_timestamp, leader, rest))
        offset += header.record_count
    return stamped


def check_produced(data: _Bytes, max_batch_bytes: int) -> BatchHeader:
    """The header of a producer's batch that may be appended.

    Raises CorruptBatch, BatchTooLarge, InvalidRequest, UnsupportedCodec.
    """
    if len(data) > max_batch_bytes:
        raise BatchTooLarge(f"a batch of {len(data)} bytes exceeds the limit of {max_batch_bytes}")
    header = batch_header.check(data)
    if header.length != len(data):
        raise CorruptBatch(f"{len(data) - header.length} bytes follow a batch of {header.length}")
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRequest(
            f"a producer's batch of {header.record_count} records spans "
            f"{header.last_offset_delta + 1} offsets: it may have no gaps"
        )
    if header.codec not in _KNOWN_CODECS:
        raise UnsupportedCodec(f"codec number {header.codec} is not known here")
    return header


def append(log: "Log", batches: Sequence[_Bytes], *, now: int, leader_epoch: int) -> list[int]:
    """Append a producer's batches, all or none; returns the base offset of each.

    Raises what the log refuses any of them with, and as its `write` does.
    """
    fresh, offsets = [], []
    for admitted in log.admit(batches):
        if isinstance(admitted, FolkmootError):
            raise admitted
        offsets.append(admitted.base_offset if isinstance(admitted, Duplicate) else None)
        if isinstance(admitted, Fresh):
            fresh.append(admitted)
    given = iter(log.write(fresh, now=now, leader_epoch=leader_epoch))
    return [next(given) if offset is None else offset for offset in offsets]
