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

Big-endian. Exactly one CRC-32C covers each byte. Attributes: bits 0–2 codec, bit 3 transactional,
bit 4 control, bit 5 sequences continue from one producer epoch to the next. Flags: bit 0, the append time
is the timestamp of all records. All other bits must be zero. After compaction fewer records than offsets
may be left (`offsets` column). A broker reads headers only, with this module; `check` compares the checksum
without opening the body. record_batch.py makes and opens batches.

Writer and reader have the same limits: 32 MiB of body before compression, a million records, and
timestamps within ±2^61 ms. So a tiny hostile batch makes a reader allocate a few hundred MB at most, and
no sum of header and delta leaves 64 bits.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from folkmoot.protocol.checksum import crc32c
from folkmoot.protocol.errors import CorruptBatch

MAX_RECORDS: Final = 1_000_000
FORMAT_VERSION: Final = 1
MAX_BODY_BYTES: Final = 32 * 1024 * 1024
MAX_TIMESTAMP: Final = 2**61
MAX_OFFSET: Final = 2**63 - 2
NO_PRODUCER_ID: Final = -1
MAX_PRODUCER_EPOCH: Final = 2**15 - 1
MAX_SEQUENCE: Final = 2**31 - 1
NO_SCHEMA: Final = 0
"""The schema id of a batch with a value without one, or with values of several schemas."""
MAX_SCHEMA_ID: Final = 2**31 - 1
NO_VALUES: Final = 2**32 - 1
"""The schema id of a batch of nothing but tombstones: they go with every schema."""
MIXED: Final = 2**32 - 2
"""While a batch is made: its values have several schemas. Written as NO_SCHEMA."""

_LEADER = struct.Struct(">qIiqI")
_PRODUCER = struct.Struct(">BBHIIqqqhHiI")
_CRC = struct.Struct(">I")
_LENGTH = struct.Struct(">8xI")
_FRAME = struct.Struct(">BI")

LEADER_BYTES: Final = _LEADER.size + _CRC.size
HEADER_BYTES: Final = LEADER_BYTES + _CRC.size + _PRODUCER.size
_CRC_START = LEADER_BYTES + _CRC.size
_IDENTITY = struct.Struct(">qhHi")
_IDENTITY_START = 64

CODEC_BITS: Final = 0b111
_TRANSACTIONAL = 1 << 3
_CONTROL = 1 << 4
_CONTINUES = 1 << 5
_KNOWN_ATTRIBUTES = CODEC_BITS | _TRANSACTIONAL | _CONTROL | _CONTINUES
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
        """The sequence of the last record before compaction."""
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_BITS

    @property
    def is_ordinary(self) -> bool:
        """Return whether it is neither transactional nor a control batch."""
        return not self.attributes & (_TRANSACTIONAL | _CONTROL)

    @property
    def continues_sequences(self) -> bool:
        """Return whether sequences continue from one producer epoch to the next, in place of 0."""
        return bool(self.attributes & _CONTINUES)

    @property
    def uses_append_time(self) -> bool:
        return bool(self.flags & _APPEND_TIME)


class UnsealedBatch(NamedTuple):
    """A batch without its producer: its body in parts, and the header's fields about the records."""

    body: list[_Bytes]
    codec: int
    last_delta: int
    records: int
    base: int
    highest: int
    schema_id: int = NO_SCHEMA


def seal(
    batch: UnsealedBatch,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    *,
    continues: bool = False,
) -> bytes:
    """Return a whole batch, base offset 0: header and body, which is copied only here."""
    schema_id = NO_SCHEMA if batch.schema_id == MIXED else batch.schema_id
    attributes = batch.codec | _CONTINUES if continues else batch.codec
    fields = _PRODUCER.pack(
        *(FORMAT_VERSION, 0, attributes, batch.last_delta, batch.records),
        *(batch.base, batch.highest),
        *(producer_id, producer_epoch, 0, base_sequence, schema_id),
    )
    crc = crc32c(fields)
    for part in batch.body:
        crc = crc32c(part, crc)
    leader = leader_part(0, HEADER_BYTES + sum(map(len, batch.body)), -1, -1)
    return b"".join((leader, _CRC.pack(crc), fields, *batch.body))


def following_sequence(sequence: int, count: int) -> int:
    """Return the sequence `count` records later; 0 follows MAX_SEQUENCE."""
    return (sequence + count) & MAX_SEQUENCE


def written_schema(value: _Bytes | None) -> int:
    """Return the schema id that a value begins with, after a byte 0; NO_SCHEMA if it has none."""
    if value is None:
        return NO_VALUES
    if len(value) < _FRAME.size:
        return NO_SCHEMA
    magic, number = _FRAME.unpack_from(value)
    return number if magic == 0 and number <= MAX_SCHEMA_ID else NO_SCHEMA


def schema_of(batch: _Bytes) -> int:
    """Return the schema id in a header, without a check; NO_SCHEMA if the header is cut off."""
    if len(batch) < HEADER_BYTES:
        return NO_SCHEMA
    number: int = _CRC.unpack_from(batch, HEADER_BYTES - _CRC.size)[0]
    return number


def joined_schemas(one: int, other: int) -> int:
    """Return the schema id of two groups of values together."""
    if one == other or other == NO_VALUES:
        return one
    if one == NO_VALUES:
        return other
    return MIXED if one and other else NO_SCHEMA


def reseal(batch: _Bytes, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """Return a batch with the same records and another identity. Only for its producer, and only if no
    broker has accepted the batch."""
    data = bytearray(batch)
    _IDENTITY.pack_into(data, _IDENTITY_START, producer_id, producer_epoch, 0, base_sequence)
    _CRC.pack_into(data, LEADER_BYTES, crc32c(memoryview(data)[_CRC_START:]))
    return bytes(data)


def leader_part(
    base_offset: int, length: int, leader_epoch: int, append_time: int, *, stamps: bool = False
) -> bytes:
    """Return the first LEADER_BYTES of a batch. With `stamps` the append time counts for every record."""
    fields = _LEADER.pack(
        base_offset, length, leader_epoch, append_time, _APPEND_TIME if stamps else 0
    )
    return fields + _CRC.pack(crc32c(fields))


def batch_length(data: _Bytes, position: int = 0) -> int:
    """Return the length that the batch at `position` claims; at least 12 bytes must be there."""
    length: int = _LENGTH.unpack_from(data, position)[0]
    return length


def read_header(data: _Bytes, position: int = 0) -> BatchHeader:
    """Return the header of the batch at `position`, checked but for the body's CRC. Raises CorruptBatch."""
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
    """Return the header of the batch at `position` after both checksums. Raises CorruptBatch."""
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
    """Yield the batches of a chunk, each checked, with its bytes. Raises CorruptBatch, also if one is cut
    off."""
    view = memoryview(chunk)
    position = 0
    while position < len(view):
        header = check(view, position)
        yield header, view[position : position + header.length]
        position += header.length
