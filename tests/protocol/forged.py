"""Batches with right checksums and whatever else a test wants: the layout written down once more.

It shares nothing with `protocol.batch` but the format, so each is a check on the other.
"""

import gzip
import io
import struct
from collections.abc import Callable
from typing import Any

import cramjam
import crc32c
import lz4.frame
import msgpack
import zstandard

HEADER_BYTES = 84
BODY = [[0, None], [2, b"\x01\x01\x01ab"], [0, 0], [0, None], [0, None]]


def forged(
    body: object = BODY, changes: dict[str, int] | None = None, *, compressed: bool = False
) -> bytes:
    """A batch of two records with `changes` to its header, whatever they are.

    `body` is bytes as they are, or what MessagePack makes of anything else.
    """
    packed = body if isinstance(body, bytes) else msgpack.packb(body)
    if compressed:
        packed = zstandard.compress(packed)
    h: dict[str, int] = {
        "base_offset": 10,
        "length": HEADER_BYTES + len(packed),
        "leader_epoch": 1,
        "append_time": -1,
        "flags": 0,
        "version": 1,
        "reserved": 0,
        "attributes": int(compressed),
        "last_offset_delta": 1,
        "record_count": 2,
        "base_timestamp": 0,
        "max_timestamp": 0,
        "producer_id": -1,
        "producer_epoch": -1,
        "reserved_too": 0,
        "base_sequence": -1,
        "schema_id": 0,
    }
    for name, value in (changes or {}).items():
        assert name in h
        h[name] = value
    values = list(h.values())
    leader = struct.pack(">qIiqI", *values[:5])
    producer = struct.pack(">BBHIIqqqhHiI", *values[5:]) + packed
    return (
        leader
        + struct.pack(">I", crc32c.crc32c(leader))
        + struct.pack(">I", crc32c.crc32c(producer))
        + producer
    )


def opened(batch: bytes) -> tuple[dict[str, int], Any]:
    """The header's fields of a batch and its body, without any check but the checksums."""
    for start, end, at in ((0, 28, 28), (36, len(batch), 32)):
        assert castagnoli(batch[start:end]) == int.from_bytes(batch[at : at + 4], "big")
    header = {
        name: struct.unpack_from(f">{kind}", batch, at)[0]
        for name, at, kind in (
            ("base_offset", 0, "q"),
            ("length", 8, "I"),
            ("leader_epoch", 12, "i"),
            ("append_time", 16, "q"),
            ("flags", 24, "I"),
            ("version", 36, "B"),
            ("attributes", 38, "H"),
            ("last_offset_delta", 40, "I"),
            ("record_count", 44, "I"),
            ("base_timestamp", 48, "q"),
            ("max_timestamp", 56, "q"),
            ("producer_id", 64, "q"),
            ("producer_epoch", 72, "h"),
            ("base_sequence", 76, "i"),
            ("schema_id", 80, "I"),
        )
    }
    assert batch[37] == batch[74] == batch[75] == 0
    body = batch[HEADER_BYTES:]
    return header, msgpack.unpackb(bytes(_OPEN[header["attributes"] & 7](body)))


def unpacked(column: tuple[int, Any], count: int) -> list[bytes | None]:
    """The cells of a column of keys or values, one for each row."""
    tag, cells = column
    if tag == 0:
        return [cells] * count
    assert tag == 2
    width, nils = cells[0] & 127, cells[0] & 128
    if width:
        lengths = struct.unpack_from(f"<{count}{_WIDTHS[width]}", cells, 1)
    else:
        lengths = struct.unpack_from("<I", cells, 1) * count
    rest = io.BytesIO(cells[1 + (count * width or 4) :])
    nil = 256**width - 1 if nils else -1
    return [None if length == nil else rest.read(length) for length in lengths]


def unpacked_deltas(column: tuple[int, Any], count: int) -> list[int]:
    """The deltas of a column of timestamps, one for each row."""
    tag, deltas = column
    if tag == 0:
        return [deltas] * count
    assert tag == 2
    return list(struct.unpack(f"<{count}{_WIDTHS[deltas[0]]}", deltas[1:]))


_WIDTHS = {1: "B", 2: "H", 4: "I", 8: "q"}


_OPEN: dict[int, Callable[[bytes], Any]] = {
    0: bytes,
    1: zstandard.decompress,
    2: lz4.frame.decompress,
    3: gzip.decompress,
    4: cramjam.snappy.decompress_raw,
}


def castagnoli(data: bytes) -> int:
    """CRC-32C, bit by bit (RFC 3720, B.4: the polynomial 0x1EDC6F41, here reflected)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
