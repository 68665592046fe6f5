"""Compression, and how little a small hostile batch can make a reader do."""

import random
import struct
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import msgpack
import pytest
import zstandard

from folkmoot.protocol import compression
from folkmoot.protocol.batch_header import MAX_BODY_BYTES, MAX_RECORDS, check
from folkmoot.protocol.compression import Codec, compress, decompress, require
from folkmoot.protocol.errors import ConfigError, CorruptBatch, MissingExtra, UnsupportedCodec
from folkmoot.protocol.record_batch import columns_of, records_of
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
    """Headers that declare and bring `count` rows, one byte each: before they are looked at, a list."""
    before = b"\x95\x92\x00\xc0\x92\x00\xc0\x92\x00\x00\x92\x01\xdd"
    return before + struct.pack(">I", count) + b"\xc0" * count


# -- codecs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("body", [b"x", b"abc" * 10_000], ids=len)
def test_what_was_compressed_comes_back(codec: Codec, body: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, body), len(body))) == body


@pytest.mark.parametrize("codec", Codec)
def test_one_byte_above_the_limit_is_refused(codec: Codec) -> None:
    with pytest.raises(CorruptBatch, match="limit"):
        decompress(codec, compress(codec, bytes(101)), 100)


def test_codecs_have_names_and_numbers() -> None:
    numbers = {"NONE": 0, "ZSTD": 1, "LZ4": 2, "GZIP": 3, "SNAPPY": 4}
    assert {codec.name: codec.value for codec in Codec} == numbers
    assert Codec.named("zstd") is Codec.ZSTD
    with pytest.raises(ConfigError, match="none, zstd, lz4, gzip, snappy"):
        Codec.named("lzma")
    with pytest.raises(UnsupportedCodec, match="9"):
        compress(9, b"")
    with pytest.raises(UnsupportedCodec, match="9"):
        decompress(9, b"", 1)


@pytest.mark.parametrize("codec", Codec)
def test_threads_compress_side_by_side(codec: Codec) -> None:
    bodies = [bytes([n]) * 50_000 + b"%d" % n for n in range(64)]
    with ThreadPoolExecutor(4) as pool:
        packed = list(pool.map(lambda body: compress(codec, body), bodies))
        back = list(pool.map(lambda body: decompress(codec, body, 60_000), packed))
    assert back == bodies


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_compressed_body_says_its_size_and_the_same_body_gives_the_same_bytes(
    codec: Codec,
) -> None:
    body = bytes(200_000)
    packed = compress(codec, body)
    assert len(packed) < len(body) / 10
    assert compress(codec, body) == packed
    with at_most(50_000), pytest.raises(CorruptBatch, match="declares 200000 bytes"):
        decompress(codec, packed, 199_999)


@pytest.mark.parametrize(("codec", "module"), [(Codec.LZ4, "lz4.frame"), (Codec.SNAPPY, "cramjam")])
def test_a_codec_that_is_not_installed_names_the_pip_command(
    codec: Codec, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = compress(codec, b"body")
    monkeypatch.setitem(sys.modules, module, None)
    command = r"pip install .*\[codecs\]'"
    with pytest.raises(MissingExtra, match=command):
        require(codec)
    with pytest.raises(UnsupportedCodec, match=command):
        compress(codec, b"body")
    with pytest.raises(UnsupportedCodec, match=command):
        decompress(codec, packed, 100)
    for other in Codec:
        if other != codec:
            require(other)


# -- levels -------------------------------------------------------------------------------------------

LEVELS = [
    (Codec(codec), level)
    for codec, levels in compression.LEVELS.items()
    for level in dict.fromkeys((levels[0], -7, -1, 0, *range(1, 20), levels[-1]))
    if level in levels
]
TEXT = b"".join(b'{"row": %d, "of": "a body"}' % (number * number) for number in range(4_000))


@pytest.mark.parametrize(("codec", "level"), LEVELS)
def test_every_level_that_may_be_chosen_is_read_by_everybody(codec: Codec, level: int) -> None:
    compression.check_level(codec, level)
    packed = compress(codec, TEXT, level)
    assert bytes(decompress(codec, packed, len(TEXT))) == TEXT
    assert list(map(bytes, compression.compress_together(codec, [TEXT, b"x"], level))) == [
        packed,
        compress(codec, b"x", level),
    ]


@pytest.mark.parametrize("codec", compression.LEVELS)
def test_levels_differ_and_without_one_it_is_the_codecs_own(codec: Codec) -> None:
    levels = compression.LEVELS[codec]
    assert len(compress(codec, TEXT, levels[0])) > len(compress(codec, TEXT, levels[-1]))
    usual = compression.DEFAULT_LEVELS[codec]
    assert compress(codec, TEXT) == compress(codec, TEXT, usual)
    assert usual in levels
    compression.check_level(Codec(codec), None)


def test_no_level_makes_a_frame_that_readers_have_no_room_for() -> None:
    body = bytes(9 * MB)
    packed = compress(Codec.ZSTD, body, compression.LEVELS[Codec.ZSTD][-1])
    assert zstandard.get_frame_parameters(packed).window_size == compression.MAX_WINDOW_BYTES


def test_the_default_level_of_zstd_looks_back_256_kib_and_makes_no_more_bytes_than_level_1() -> (
    None
):
    noise = random.Random(13)
    body = b"".join(
        b'{"id":"%032x","action":"view","price":%d}' % (noise.getrandbits(128), number * 7)
        for number in range(10_000)
    )
    packed = compress(Codec.ZSTD, body)
    assert zstandard.get_frame_parameters(packed).window_size == 256 * 1024
    assert len(packed) < 1.01 * len(zstandard.ZstdCompressor(level=1).compress(body))
    assert decompress(Codec.ZSTD, packed, len(body)) == body
    assert decompress(Codec.ZSTD, packed, MAX_BODY_BYTES) == body


@pytest.mark.parametrize(
    ("codec", "level", "told"),
    [
        (Codec.ZSTD, 20, "compression_level=20 .* zstd: use a whole number from -7 to 19, or None"),
        (Codec.ZSTD, -8, "-7 to 19"),
        (Codec.ZSTD, 1.5, "-7 to 19"),
        (Codec.LZ4, 17, "lz4: use a whole number from -64 to 16"),
        (Codec.GZIP, 0, "gzip: use a whole number from 1 to 9"),
        (Codec.SNAPPY, 1, "snappy: use None"),
        (Codec.NONE, 0, "none: use None"),
    ],
)
def test_a_level_that_the_codec_has_not_is_refused(codec: Codec, level: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        compression.check_level(codec, level)


# Long enough to be compressed at all, and different enough to be cut at many places.
BODY = b"".join(b"row %d of a body, " % (number * number) for number in range(40))


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.GZIP, Codec.SNAPPY])
def test_a_body_cut_off_anywhere_or_followed_by_more_is_corrupt(codec: Codec) -> None:
    whole = compress(codec, BODY)
    assert bytes(decompress(codec, memoryview(whole), len(BODY))) == BODY
    wrong = [whole[:end] for end in range(len(whole))]
    wrong += [whole + b"\0", whole + whole, b"\0" + whole, b"", bytes(100), BODY]
    for body in wrong:
        with pytest.raises(CorruptBatch):
            decompress(codec, body, 10_000)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.GZIP, Codec.SNAPPY])
def test_flipped_bits_give_the_declared_size_or_are_corrupt(codec: Codec) -> None:
    whole = compress(codec, BODY)
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with suppress(CorruptBatch):
            assert len(decompress(codec, damaged, 10_000)) <= 10_000


def lying(codec: Codec, body: bytes, declared: int) -> bytes:
    """`body` compressed with another size than its own in the place where it is declared."""
    packed = bytearray(compress(codec, body))
    if codec == Codec.GZIP:
        packed[-4:] = struct.pack("<I", declared)
    elif codec == Codec.LZ4:
        packed[6:14] = struct.pack("<Q", declared)
        packed[14] = xxhash32_of_descriptor(bytes(packed[4:14]))
    return bytes(packed)


def xxhash32_of_descriptor(descriptor: bytes) -> int:
    """The header's check byte of an lz4 frame: the second byte of XXH32 of fewer than 16 bytes."""
    p1, p2, p3, p4, p5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 2**32 - 1

    def rotated(number: int, by: int) -> int:
        return (number << by | number >> 32 - by) & mask

    h = (p5 + len(descriptor)) & mask
    rest = len(descriptor) // 4 * 4
    for start in range(0, rest, 4):
        (lane,) = struct.unpack_from("<I", descriptor, start)
        h = rotated((h + lane * p3) & mask, 17) * p4 & mask
    for byte in descriptor[rest:]:
        h = rotated((h + byte * p5) & mask, 11) * p1 & mask
    h = (h ^ h >> 15) * p2 & mask
    h = (h ^ h >> 13) * p3 & mask
    return (h ^ h >> 16) >> 8 & 0xFF


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.GZIP])
@pytest.mark.parametrize("declared", [0, 1, 1000, 20 * MB - 1, 20 * MB + 1])
def test_a_body_that_lies_about_its_size_is_corrupt_and_costs_no_more_than_it_said(
    codec: Codec, declared: int
) -> None:
    assert lying(codec, BODY, len(BODY)) == compress(codec, BODY)
    bomb = lying(codec, bytes(20 * MB), declared)
    with at_most(declared + 2 * MB + len(bomb)), pytest.raises(CorruptBatch):
        decompress(codec, bomb, MAX_BODY_BYTES)


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
    body = column_of_nils(0)[:-4] + struct.pack(">I", count)
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


# -- several at once --------------------------------------------------------------------------------


SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"extra"
EMPTY = zstandard.ZstdCompressor(write_content_size=True).compress(b"")


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "THREADS", 2)


@pytest.mark.parametrize("extra", [SKIPPABLE_FRAME, EMPTY, b"x"])
@pytest.mark.parametrize("is_behind", [True, False])
def test_a_zstd_body_of_several_frames_is_refused(extra: bytes, is_behind: bool) -> None:
    frame = compress(Codec.ZSTD, BODY)
    with pytest.raises(CorruptBatch):
        decompress(Codec.ZSTD, frame + extra if is_behind else extra + frame, 2**20)


@pytest.mark.parametrize("body", [EMPTY, SKIPPABLE_FRAME, EMPTY + EMPTY])
def test_an_empty_zstd_body_is_refused_since_no_batch_has_one(body: bytes) -> None:
    with pytest.raises(CorruptBatch):
        decompress(Codec.ZSTD, body, 2**20)


@pytest.mark.parametrize("codec", Codec)
def test_a_body_tells_its_size_or_that_it_has_none(codec: Codec) -> None:
    assert compression.declared_size(codec, compress(codec, BODY)) == len(BODY)
    if codec not in (Codec.NONE, Codec.GZIP):  # these have a size whatever their bytes are
        assert compression.declared_size(codec, b"\xff" * 30) == -1


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("sizes", [[], [5], [1000, 0, 200_000], [262_144, 262_144]])
def test_bodies_compressed_together_are_those_of_each_by_itself(
    codec: Codec, sizes: list[int]
) -> None:
    bodies = [random.Random(size).randbytes(size // 2) + bytes(size // 2) for size in sizes]
    made = compression.compress_together(codec, bodies)
    assert [bytes(each) for each in made] == [compress(codec, body) for body in bodies]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("size", "threads"), [(131_071, 1), (131_072, 2)])
def test_threads_compress_only_what_is_worth_them(
    size: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Compressor:
        def multi_compress_to_buffer(self, bodies: list[bytes], *, threads: int) -> list[bytes]:
            asked.append(threads)
            return bodies

    monkeypatch.setattr(compression._zstd, "compressors", {1: Compressor()})
    compression.compress_together(Codec.ZSTD, [bytes(size), bytes(size)])
    assert asked == [threads]
