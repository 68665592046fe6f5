"""Compression, and how little a small hostile batch can make a reader do."""

import struct
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgpack
import pytest
import zstandard

from folkmoot.protocol.batch import (
    MAX_BODY_BYTES,
    MAX_RECORDS,
    check,
    columns_of,
    records_of,
)
from folkmoot.protocol.codecs import Codec, compress, decompress
from folkmoot.protocol.errors import ConfigError, CorruptBatch, UnsupportedCodec
from tests.protocol.forged import forged

MB = 1024 * 1024


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """What runs inside never holds more than `limit` bytes of Python's memory at once."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= limit, f"{peak / MB:.1f} MB were held"


def open_batch(batch: bytes) -> None:
    columns_of(check(batch), batch)


def column_of_nils(count: int) -> bytes:
    """Keys that declare and bring `count` rows, one byte each: before they are looked at, a list."""
    return b"\x95\x92\x01\xdd" + struct.pack(">I", count) + b"\xc0" * count


# -- codecs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("body", [b"", b"x", b"abc" * 10_000], ids=len)
def test_what_was_compressed_comes_back(codec: Codec, body: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, body), len(body))) == body


@pytest.mark.parametrize("codec", Codec)
def test_one_byte_above_the_limit_is_refused(codec: Codec) -> None:
    with pytest.raises(CorruptBatch, match="limit"):
        decompress(codec, compress(codec, bytes(101)), 100)


def test_codecs_have_names_and_numbers() -> None:
    assert {codec.name: codec.value for codec in Codec} == {"NONE": 0, "ZSTD": 1}
    assert Codec.named("zstd") is Codec.ZSTD
    with pytest.raises(ConfigError, match="none, zstd"):
        Codec.named("lzma")
    with pytest.raises(UnsupportedCodec, match="9"):
        compress(9, b"")
    with pytest.raises(UnsupportedCodec, match="9"):
        decompress(9, b"", 1)


def test_threads_compress_side_by_side() -> None:
    bodies = [bytes([n]) * 50_000 + b"%d" % n for n in range(64)]
    with ThreadPoolExecutor(4) as pool:
        packed = list(pool.map(lambda body: compress(Codec.ZSTD, body), bodies))
        back = list(pool.map(lambda body: decompress(Codec.ZSTD, body, 60_000), packed))
    assert back == bodies


FRAME = zstandard.compress(b"a body that is long enough to be cut at many places" * 3)
SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"skip"


@pytest.mark.parametrize(
    "body",
    [
        *(FRAME[:end] for end in range(len(FRAME))),
        FRAME + b"\x00",
        FRAME + FRAME,
        SKIPPABLE,
        SKIPPABLE + FRAME,
        FRAME + SKIPPABLE,
        b"not zstd at all",
        zstandard.ZstdCompressor(write_content_size=False).compress(b"size unknown"),
    ],
)
def test_a_body_that_is_not_one_whole_zstd_frame_is_corrupt(body: bytes) -> None:
    with pytest.raises(CorruptBatch):
        decompress(Codec.ZSTD, body, 1000)


# -- bombs --------------------------------------------------------------------------------------------


def huge_declaration(size: int) -> bytes:
    """The first bytes of a zstd frame (RFC 8878, 3.1.1) that declares `size`, and an empty block."""
    single_segment_8_byte_size = 0b1110_0000
    return struct.pack("<IBQ", 0xFD2FB528, single_segment_8_byte_size, size) + b"\x01\x00\x00"


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 2**40, 2**63, 2**64 - 1])
def test_a_frame_that_declares_too_much_is_refused_before_it_is_opened(size: int) -> None:
    with at_most(MB), pytest.raises(CorruptBatch):
        open_batch(forged(huge_declaration(size), {"attributes": 1}))


def test_256_mb_of_zeros_is_refused_before_it_is_made() -> None:
    bomb = zstandard.ZstdCompressor().compressobj(size=256 * MB)
    zeros = bytes(MB)
    packed = b"".join(bomb.compress(zeros) for _ in range(256)) + bomb.flush()
    assert len(packed) < 2**16
    with at_most(MB), pytest.raises(CorruptBatch, match="limit"):
        open_batch(forged(packed, {"attributes": 1}))


def test_a_run_of_nils_is_refused_before_it_is_a_list() -> None:
    """30 MB of nils are 240 MB as a list, from a batch of less than 2 kB."""
    batch = forged(column_of_nils(30 * MB), compressed=True)
    assert len(batch) < 2000
    with at_most(MAX_BODY_BYTES + MB), pytest.raises(CorruptBatch, match="length"):
        open_batch(batch)


@pytest.mark.parametrize("count", [MAX_RECORDS + 1, 2**32 - 1])
def test_a_list_that_declares_too_many_rows_is_refused_at_once(count: int) -> None:
    body = column_of_nils(0)[:4] + struct.pack(">I", count)
    with at_most(MB), pytest.raises(CorruptBatch, match="length"):
        open_batch(forged(body))


def tiny(count: int) -> bytes:
    body = msgpack.packb([[0, b"key"], [0, b"value"], [0, 0], [0, None], [0, None]])
    return forged(body, {"record_count": count, "last_offset_delta": count - 1})


def test_the_tiniest_batch_of_most_rows_costs_a_bounded_amount() -> None:
    batch = tiny(MAX_RECORDS)
    assert len(batch) <= 110
    with at_most(20 * MB):
        open_batch(batch)
    with at_most(MB), pytest.raises(CorruptBatch, match="span"):
        open_batch(tiny(MAX_RECORDS + 1))


def test_the_records_of_the_tiniest_batch_take_less_than_200_bytes_each() -> None:
    """Hence less than 200 MB for MAX_RECORDS of them, which would take too long to trace here."""
    count = MAX_RECORDS // 20
    batch = tiny(count)
    with at_most(200 * count):
        records_of("t", 0, check(batch), batch)
