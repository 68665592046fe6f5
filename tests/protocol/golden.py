"""Batches of format version 1, and what is in them.

Each file `tests/testdata/batch-v1-*.bin` was made by
`leader_part(...) + encode(columns, codec, ...)[LEADER_BYTES:]` with the arguments that stand here
(`stamped` below is that expression). Nothing is released yet: a change of the format makes anew the
files that it concerns, and only these. From the first release on no file is ever made anew: a reader
of any later version must still read them to the same records.
"""

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from folkmoot.protocol.batch_header import LEADER_BYTES, leader_part
from folkmoot.protocol.columns import BinaryColumn, Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.record_batch import encode

TESTDATA = Path(__file__).parent.parent / "testdata"
T = 1_385_000_000_000  # a day in November 2013, in milliseconds

NO_KEYS = Columns(
    count=3,
    keys=None,
    values=[b"first", None, b""],
    timestamps=[T + 40, T, T + 65_536],
)
ALL = Columns(
    count=4,
    keys=[b"N14228", None, b"", b"N24211"],
    values=[b"\x00\x00\x00\x00\x07flight", None, b"\xff" * 300, b"x"],
    timestamps=[T, T + 1, T + 300, T + 70_000],
    headers=[
        (("trace", b"\x01\x02"), ("trace", None)),
        (),
        (("", b""),),
        (("sch\u00f6n \u2713", b"\xc3\x28"),),
    ],
)
SPARSE = Columns(
    count=3,
    keys=[b"a", b"b", b"c"],
    values=[b"1", b"2", b"3"],
    timestamps=[T, T, T + 9],
    offsets=[2, 70_000, 4_000_000_000],
)
ONE_FOR_ALL = Columns(count=5, keys=[b"k"] * 5, values=[b"v"] * 5, timestamps=T)
PACKED = Columns(
    count=4,
    keys=BinaryColumn.of([b"a", b"", b"ccc", b"dd"]),
    values=BinaryColumn.of([b"x" * 300, None, b"", b"schluss"]),
    timestamps=array("q", [T + 700, T, T + 1, T + 2]),
)
PACKED_ALIKE = Columns(
    count=3,
    keys=BinaryColumn.of([b"k1", b"k2", b"k3"]),
    values=BinaryColumn.of([b"one", b"two", b"six"]),
    timestamps=array("q", [T, T + 1, T + 256]),
)


@dataclass(frozen=True, kw_only=True)
class Golden:
    """One file: how it was made. With `stamps` the append time counts for all its records."""

    name: str
    columns: Columns
    codec: Codec
    base_offset: int = 0
    leader_epoch: int = -1
    append_time: int = -1
    stamps: bool = False
    producer: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return TESTDATA / f"batch-v1-{self.name}.bin"

    def stamped(self) -> bytes:
        batch = encode(self.columns, self.codec, **self.producer)
        leader = leader_part(
            *(self.base_offset, len(batch), self.leader_epoch, self.append_time),
            stamps=self.stamps,
        )
        return leader + batch[LEADER_BYTES:]


PRODUCER = {
    "schema_id": 7,
    "producer_id": 2**40 + 5,
    "producer_epoch": 3,
    "base_sequence": 2**31 - 1,
}

GOLDEN = [
    Golden(name="none-no-keys", columns=NO_KEYS, codec=Codec.NONE),
    Golden(name="zstd-no-keys", columns=NO_KEYS, codec=Codec.ZSTD),
    Golden(
        name="none-keys-headers",
        columns=ALL,
        codec=Codec.NONE,
        base_offset=2**33,
        leader_epoch=12,
        append_time=T + 99,
        producer=PRODUCER,
    ),
    Golden(
        name="zstd-keys-headers",
        columns=ALL,
        codec=Codec.ZSTD,
        base_offset=2**33,
        leader_epoch=12,
        append_time=T + 99,
        producer=PRODUCER,
    ),
    Golden(name="none-sparse", columns=SPARSE, codec=Codec.NONE, base_offset=100),
    Golden(
        name="none-append-time",
        columns=NO_KEYS,
        codec=Codec.NONE,
        base_offset=1,
        leader_epoch=0,
        append_time=T + 5_000,
        stamps=True,
    ),
    Golden(name="none-one-for-all", columns=ONE_FOR_ALL, codec=Codec.NONE, base_offset=8),
    Golden(name="none-packed", columns=PACKED, codec=Codec.NONE),
    Golden(name="zstd-packed", columns=PACKED, codec=Codec.ZSTD, base_offset=5),
    Golden(name="none-packed-alike", columns=PACKED_ALIKE, codec=Codec.NONE),
    Golden(name="lz4-keys-headers", columns=ALL, codec=Codec.LZ4, producer=PRODUCER),
    Golden(name="gzip-keys-headers", columns=ALL, codec=Codec.GZIP, producer=PRODUCER),
    Golden(name="snappy-keys-headers", columns=ALL, codec=Codec.SNAPPY, producer=PRODUCER),
]
