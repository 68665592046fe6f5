"""The record batch, format version 1: the same bytes in memory, on the wire and on disk.

```
 leader's part, stamped on append              producer's part, never rewritten
 0  base offset            i64                 32 crc of bytes 36 … end        u32
 8  length of the batch    u32                 36 format version               u8
12  leader epoch           i32                 37 reserved, zero               u8
16  append time            i64                 38 attributes                   u16
24  flags                  u32                 40 last offset delta            u32
28  crc of bytes 0 … 27    u32                 44 record count                 u32
                                               48 base timestamp               i64
                                               56 max timestamp                i64
                                               64 producer id                  i64
                                               72 producer epoch               i16
                                               74 reserved, zero               u16
                                               76 base sequence                i32
                                               80 value schema id              u32
                                               84 body (see columns.py), compressed as a whole
```

Big-endian. Every byte is covered by exactly one CRC-32C. Attributes: bits 0–2 codec, bit 3
transactional, bit 4 control. Flags: bit 0, the append time is the timestamp of all records. All
other bits must be zero. After compaction fewer records than offsets may be left (`offsets` column).
A broker reads headers only; `check` compares the checksum without opening the body.

Limits, the same for writer and reader: 32 MiB of body before compression and a million records (the
most that a tiny hostile batch can make a reader allocate is then a few hundred MB), timestamps
within ±2^61 ms, so that no sum of header and delta leaves 64 bits.
"""

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final, NamedTuple

import msgspec
import numpy as np
from crc32c import crc32c

from folkmoot.protocol import codecs
from folkmoot.protocol.codecs import Codec
from folkmoot.protocol.columns import MAX_RECORDS as MAX_RECORDS
from folkmoot.protocol.columns import Columns, check_columns, pack_parts, unpack
from folkmoot.protocol.errors import BatchTooLarge, CorruptBatch
from folkmoot.protocol.records import Record

FORMAT_VERSION: Final = 1
MAX_BODY_BYTES: Final = 32 * 1024 * 1024
MAX_TIMESTAMP: Final = 2**61
MAX_OFFSET: Final = 2**63 - 2
NO_PRODUCER_ID: Final = -1
MAX_PRODUCER_EPOCH: Final = 2**15 - 1
MAX_SEQUENCE: Final = 2**31 - 1

_LEADER = struct.Struct(">qIiqI")
_PRODUCER = struct.Struct(">BBHIIqqqhHiI")
_CRC = struct.Struct(">I")
_LENGTH = struct.Struct(">8xI")

LEADER_BYTES: Final = _LEADER.size + _CRC.size
HEADER_BYTES: Final = LEADER_BYTES + _CRC.size + _PRODUCER.size
_CRC_START = LEADER_BYTES + _CRC.size
_IDENTITY = struct.Struct(">qhHi")
_IDENTITY_START = 64

_CODEC_BITS = 0b111
_TRANSACTIONAL = 1 << 3
_CONTROL = 1 << 4
_KNOWN_ATTRIBUTES = _CODEC_BITS | _TRANSACTIONAL | _CONTROL
_APPEND_TIME = 1 << 0

_Bytes = bytes | bytearray | memoryview


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """Both parts of a batch's header, decoded. `length` counts the whole batch, header included."""

    base_offset: int
    length: int
    leader_epoch: int
    append_time: int
    flags: int
    attributes: int
    last_offset_delta: int
    record_count: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    schema_id: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Of the last record that there was before compaction."""
        return following_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC_BITS

    @property
    def uses_append_time(self) -> bool:
        return bool(self.flags & _APPEND_TIME)


class Unsigned(NamedTuple):
    """A batch but for who sends it: its body in parts, and what the header says of the records."""

    body: list[_Bytes]
    codec: int
    last_delta: int
    records: int
    base: int
    highest: int

    @property
    def body_bytes(self) -> int:
        return sum(map(len, self.body))


def encode(
    columns: Columns,
    codec: int = Codec.ZSTD,
    *,
    schema_id: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    last_offset_delta: int | None = None,
) -> bytes:
    """A batch of `columns`, base offset 0, ready to be sent. `columns` must not be empty.

    `last_offset_delta` says where a batch ends whose last records are no more (`offsets`).

    Raises BatchTooLarge beyond the limits, and CorruptBatch for columns that do not fit together.
    """
    (batch,) = compressed([packed(columns, last_offset_delta)], codec)
    return sign(batch, producer_id, producer_epoch, base_sequence, schema_id)


def packed(columns: Columns, last_offset_delta: int | None = None) -> Unsigned:
    """The first of three steps of `encode`. Raises as that does."""
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
    return Unsigned(body, Codec.NONE, last_delta, columns.count, base, highest)


def compressed(batches: Sequence[Unsigned], codec: int) -> list[Unsigned]:
    """The second: the bodies of all these batches compressed, at one go if the codec can."""
    if codec == Codec.NONE:
        return list(batches)
    bodies = codecs.compress_together(codec, [b"".join(batch.body) for batch in batches])
    return [
        batch._replace(body=[body], codec=codec)
        for batch, body in zip(batches, bodies, strict=True)
    ]


def sign(
    batch: Unsigned,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    schema_id: int = 0,
) -> bytes:
    """The third: header and body, which is copied here and nowhere else."""
    fields = _PRODUCER.pack(
        *(FORMAT_VERSION, 0, batch.codec, batch.last_delta, batch.records),
        *(batch.base, batch.highest),
        *(producer_id, producer_epoch, 0, base_sequence, schema_id),
    )
    crc = crc32c(fields)
    for part in batch.body:
        crc = crc32c(part, crc)
    leader = leader_part(0, HEADER_BYTES + batch.body_bytes, -1, -1)
    return b"".join((leader, _CRC.pack(crc), fields, *batch.body))


def _extremes(stamps: Sequence[int] | int) -> tuple[int, int]:
    if isinstance(stamps, int):
        return stamps, stamps
    if isinstance(stamps, array):
        numbers = np.frombuffer(stamps, np.int64)
        return int(numbers.min()), int(numbers.max())
    return min(stamps), max(stamps)


def following_sequence(sequence: int, count: int) -> int:
    """The sequence `count` records behind; 0 follows MAX_SEQUENCE."""
    return (sequence + count) & MAX_SEQUENCE


def signed(batch: _Bytes, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """A batch with the same records from another producer, or another place in what it sends.

    For its producer, before anybody has accepted the batch.
    """
    data = bytearray(batch)
    _IDENTITY.pack_into(data, _IDENTITY_START, producer_id, producer_epoch, 0, base_sequence)
    _CRC.pack_into(data, LEADER_BYTES, crc32c(memoryview(data)[_CRC_START:]))
    return bytes(data)


def leader_part(
    base_offset: int, length: int, leader_epoch: int, append_time: int, *, stamps: bool = False
) -> bytes:
    """The first LEADER_BYTES of a batch. With `stamps` the append time counts for every record."""
    fields = _LEADER.pack(
        base_offset, length, leader_epoch, append_time, _APPEND_TIME if stamps else 0
    )
    return fields + _CRC.pack(crc32c(fields))


def batch_length(data: _Bytes, position: int = 0) -> int:
    """The length that the batch at `position` claims; at least 12 bytes must be there."""
    length: int = _LENGTH.unpack_from(data, position)[0]
    return length


def read_header(data: _Bytes, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`, checked except for the body's CRC.

    Raises CorruptBatch.
    """
    if len(data) - position < HEADER_BYTES:
        raise CorruptBatch(f"{len(data) - position} bytes are too few for a batch's header")
    view = memoryview(data)[position : position + HEADER_BYTES]
    (crc,) = _CRC.unpack_from(view, _LEADER.size)
    if crc32c(view[: _LEADER.size]) != crc:
        raise CorruptBatch("the leader's part of a batch's header does not match its checksum")
    base_offset, length, leader_epoch, append_time, flags = _LEADER.unpack_from(view)
    version, zero, attributes, *rest = _PRODUCER.unpack_from(view, _CRC_START)
    last_delta, count, base, highest, producer_id, epoch, zero2, sequence, schema_id = rest
    if version != FORMAT_VERSION:
        raise CorruptBatch(f"batch format version {version} is not known here")
    if zero or zero2 or attributes & ~_KNOWN_ATTRIBUTES or flags & ~_APPEND_TIME:
        raise CorruptBatch("reserved bits of a batch's header are set")
    if length < HEADER_BYTES or not 0 <= base_offset <= MAX_OFFSET - last_delta:
        raise CorruptBatch("a batch's length or offset is outside its range")
    if not -MAX_TIMESTAMP <= base <= highest <= MAX_TIMESTAMP:
        raise CorruptBatch("a batch's timestamps are outside their range")
    if not 1 <= count <= min(last_delta + 1, MAX_RECORDS):
        raise CorruptBatch(f"a batch of {count} records cannot span {last_delta + 1} offsets")
    return BatchHeader(
        *(base_offset, length, leader_epoch, append_time, flags, attributes, last_delta, count),
        *(base, highest, producer_id, epoch, sequence, schema_id),
    )


def check(data: _Bytes, position: int = 0) -> BatchHeader:
    """The header of the batch at `position` after comparing both checksums. Raises CorruptBatch."""
    header = read_header(data, position)
    end = position + header.length
    if end > len(data):
        raise CorruptBatch(f"a batch of {header.length} bytes is cut off at {len(data) - position}")
    view = memoryview(data)
    (crc,) = _CRC.unpack_from(view, position + LEADER_BYTES)
    if crc32c(view[position + _CRC_START : end]) != crc:
        raise CorruptBatch(f"the batch at offset {header.base_offset} does not match its checksum")
    return header


def split(chunk: _Bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches of a chunk, each checked, with its bytes.

    Raises CorruptBatch, also if one is cut off.
    """
    view = memoryview(chunk)
    position = 0
    while position < len(view):
        header = check(view, position)
        yield header, view[position : position + header.length]
        position += header.length


def bodies_of(batches: Sequence[tuple[BatchHeader, _Bytes]]) -> list[_Bytes]:
    """The bodies of the first of these zstd batches, which `check` has passed, opened together.

    What cannot be opened is not among them: `columns_of` says why.
    """
    compressed = [memoryview(data)[HEADER_BYTES : header.length] for header, data in batches]
    return codecs.decompress_together(compressed, MAX_BODY_BYTES)


def columns_of(header: BatchHeader, batch: _Bytes, body: _Bytes | None = None) -> Columns:
    """The columns of a batch that `check` has passed; `body` if it was opened before.

    Raises CorruptBatch, UnsupportedCodec.
    """
    if body is None:
        compressed = memoryview(batch)[HEADER_BYTES : header.length]
        body = codecs.decompress(header.codec, compressed, MAX_BODY_BYTES)
    columns = unpack(body, header.record_count, header.base_timestamp)
    offsets = columns.offsets
    if offsets is None:
        if header.record_count != header.last_offset_delta + 1:
            raise CorruptBatch("a batch with gaps does not say which offsets are left")
    elif offsets[-1] > header.last_offset_delta:
        raise CorruptBatch("a batch's offset deltas go on behind its last one")
    if header.uses_append_time:
        return msgspec.structs.replace(columns, timestamps=header.append_time)
    return columns


def offsets_of(header: BatchHeader, columns: Columns) -> Sequence[int]:
    """The offset of each record."""
    base = header.base_offset
    if columns.offsets is None:
        return range(base, base + columns.count)
    return [base + delta for delta in columns.offsets]


def records_of(topic: str, partition: int, header: BatchHeader, batch: _Bytes) -> list[Record]:
    """The records of a batch that `check` has passed. Raises CorruptBatch, UnsupportedCodec."""
    columns = columns_of(header, batch)
    offsets = offsets_of(header, columns)
    topics = repeat(topic, columns.count)
    return list(records_from(topics, partition, offsets, columns, header.uses_append_time))


def records_from(
    topics: Iterable[str],
    partition: int,
    offsets: Iterable[int],
    columns: Columns,
    append_time: bool,
) -> Iterator[Record]:
    """Records as long as there are topics; nothing but C runs for each of them.

    Each is made when it is asked for, so that it and its cells take the memory, still in the cache,
    of the one that was let go before. `topics` is asked first: when it has ended, no offset is taken.
    """
    stamps = columns.timestamps
    return map(
        Record,
        topics,
        repeat(partition),
        offsets,
        repeat(stamps) if isinstance(stamps, int) else stamps,
        repeat(None) if columns.keys is None else columns.keys,
        columns.values,
        repeat(()) if columns.headers is None else columns.headers,
        repeat(append_time),
    )
