"""Makes record batches of columns, and opens them. batch_header.py describes the bytes.

It is a file of its own because brokers read headers only, and start without numpy.
"""

from array import array
from collections.abc import Sequence

import msgspec
import numpy as np

from folkmoot.protocol import compression
from folkmoot.protocol.batch_header import (
    HEADER_BYTES,
    MAX_BODY_BYTES,
    MAX_TIMESTAMP,
    NO_PRODUCER_ID,
    BatchHeader,
    UnsealedBatch,
    seal,
)
from folkmoot.protocol.columns import Columns, check_columns, pack_parts, unpack
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import BatchTooLarge, CorruptBatch
from folkmoot.protocol.record_iterator import RecordIterator
from folkmoot.protocol.records import Record

_Bytes = bytes | bytearray | memoryview


def encode(
    columns: Columns,
    codec: int = Codec.ZSTD,
    *,
    level: int | None = None,
    schema_id: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    continues: bool = False,
    last_offset_delta: int | None = None,
) -> bytes:
    """Return a batch of `columns`, base offset 0, ready to be sent. `columns` must not be empty.

    `last_offset_delta`: the end of a batch whose last records were compacted away (`offsets`).

    Raises BatchTooLarge beyond the limits, and CorruptBatch for columns that do not fit together.
    """
    packed = pack(columns, last_offset_delta)._replace(schema_id=schema_id)
    (batch,) = compress([packed], codec, level)
    return seal(batch, producer_id, producer_epoch, base_sequence, continues=continues)


def pack(columns: Columns, last_offset_delta: int | None = None) -> UnsealedBatch:
    """Make the body: the first of three steps of `encode`. Raises as that does."""
    check_columns(columns)
    base, highest = _extremes(columns.timestamps)
    if not -MAX_TIMESTAMP <= base <= highest <= MAX_TIMESTAMP:
        raise CorruptBatch(f"timestamps from {base} to {highest} ms are outside their range")
    if base == highest:
        columns = msgspec.structs.replace(columns, timestamps=base)
    body = pack_parts(columns, base)
    size = sum(map(len, body))
    if size > MAX_BODY_BYTES:
        raise BatchTooLarge(f"a body of {size} bytes exceeds the limit of {MAX_BODY_BYTES}")
    last_delta = columns.count - 1 if columns.offsets is None else columns.offsets[-1]
    if last_offset_delta is not None:
        last_delta = max(last_delta, last_offset_delta)
    return UnsealedBatch(body, Codec.NONE, last_delta, columns.count, base, highest)


def compress(
    batches: Sequence[UnsealedBatch], codec: int, level: int | None = None
) -> list[UnsealedBatch]:
    """Compress the bodies of these batches: the second step. All in one call if the codec can."""
    if codec == Codec.NONE:
        return list(batches)
    joined = [batch.body[0] if len(batch.body) == 1 else b"".join(batch.body) for batch in batches]
    bodies = compression.compress_together(codec, joined, level)
    pairs = zip(batches, bodies, strict=True)
    return [batch._replace(body=[body], codec=codec) for batch, body in pairs]


def _extremes(stamps: Sequence[int] | int) -> tuple[int, int]:
    if isinstance(stamps, int):
        return stamps, stamps
    if isinstance(stamps, array):
        numbers = np.frombuffer(stamps, np.int64)
        return int(numbers.min()), int(numbers.max())
    return min(stamps), max(stamps)


def decompressed_bytes(header: BatchHeader, batch: _Bytes) -> int:
    """Return the size of a batch when it is open, as its body declares, if that is in its range."""
    compressed = memoryview(batch)[HEADER_BYTES : header.length]
    size = compression.declared_size(header.codec, compressed)
    return HEADER_BYTES + (size if 0 <= size <= MAX_BODY_BYTES else len(compressed))


def body_of(header: BatchHeader, batch: _Bytes) -> _Bytes:
    """Decompress the body of a batch that `check` has passed. Raises CorruptBatch, UnsupportedCodec."""
    compressed = memoryview(batch)[HEADER_BYTES : header.length]
    return compression.decompress(header.codec, compressed, MAX_BODY_BYTES)


def columns_of(header: BatchHeader, batch: _Bytes, body: _Bytes | None = None) -> Columns:
    """Return the columns of a batch that `check` has passed; `body`: its body, if it was decompressed
    before. Raises CorruptBatch, UnsupportedCodec."""
    if body is None:
        body = body_of(header, batch)
    columns = unpack(body, header.record_count, header.base_timestamp)
    offsets = columns.offsets
    if offsets is None:
        if header.record_count != header.last_offset_delta + 1:
            raise CorruptBatch("a batch with gaps has no column of offsets")
    elif offsets[-1] > header.last_offset_delta:
        raise CorruptBatch("a batch's offset deltas exceed its last one")
    if header.uses_append_time:
        return msgspec.structs.replace(columns, timestamps=header.append_time)
    return columns


def offsets_of(header: BatchHeader, columns: Columns) -> Sequence[int]:
    """Return the offset of each record."""
    base = header.base_offset
    if columns.offsets is None:
        return range(base, base + columns.count)
    return [base + delta for delta in columns.offsets]


def records_of(topic: str, partition: int, header: BatchHeader, batch: _Bytes) -> list[Record]:
    """Return the records of a batch that `check` has passed. Raises CorruptBatch, UnsupportedCodec."""
    columns = columns_of(header, batch)
    offsets = offsets_of(header, columns)
    return list(RecordIterator(topic, partition, offsets, columns, header.uses_append_time))
