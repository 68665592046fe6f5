"""The compression codecs of a batch's body, by their number in the batch's attributes.

Decompression is bounded before anything is allocated: every codec's output says how large the body
was, and that is compared with the limit first. zstd and lz4 bodies are one frame that declares its
content size (`max_output_size` alone would be ignored by zstandard 0.25 for frames that do), a gzip
body is one member whose trailer ends with the size, and a snappy body is one raw block, which begins
with it. Where the declared size is a lie no more than one byte beyond it is made.

zstd and gzip are always there. lz4 and snappy come with extras, and are imported when first used: a
batch that needs a missing one is refused with UnsupportedCodec, while `require`, for whoever chooses
a codec, raises MissingExtra.
"""

import importlib
import os
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, TypeVar

import zstandard

from folkmoot.protocol.errors import ConfigError, CorruptBatch, MissingExtra, UnsupportedCodec

ZSTD_LEVEL: Final = 1
GZIP_LEVEL: Final = 1
MAX_WINDOW_BYTES: Final = 8 * 1024 * 1024

TOGETHER_BYTES: Final = 4 * 1024 * 1024
WORTH_THREADS_BYTES: Final = 256 * 1024
THREADS: Final = min(4, len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1)

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_GZIP_SMALLEST: Final = 18
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK: Final = 3
_ZSTD_REPEATED: Final = 1
_ZSTD_CHECKSUM: Final = 4
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"

_Bytes = bytes | bytearray | memoryview
_F = TypeVar("_F")


class Codec(IntEnum):
    """Number of the codec in the lowest three bits of a batch's attributes."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2
    GZIP = 3
    SNAPPY = 4

    @classmethod
    def named(cls, name: str) -> "Codec":
        try:
            return cls[name.upper()]
        except (KeyError, AttributeError):
            known = ", ".join(codec.name.lower() for codec in cls)
            raise ConfigError(f"compression {name!r} is not known: use one of {known}") from None


def require(codec: int) -> None:
    """Raises MissingExtra, which names the pip command, if `codec` needs what is not installed."""
    if codec in _LIBRARIES:
        _library(codec)


def compress(codec: int, body: bytes) -> bytes:
    """`body` compressed as a whole. Raises UnsupportedCodec."""
    try:
        return _lookup(_COMPRESS, codec)(body)
    except MissingExtra as error:
        raise UnsupportedCodec(str(error)) from None


def compress_together(codec: int, bodies: Sequence[bytes]) -> Sequence[_Bytes]:
    """Each of them compressed. With zstd in one call without the GIL, by as many threads as there are
    processors if that pays: whoever gives the GIL up waits for it afterwards. Raises UnsupportedCodec."""
    if codec != Codec.ZSTD or len(bodies) < 2:
        return [compress(codec, body) for body in bodies]
    threads = THREADS if sum(map(len, bodies)) >= WORTH_THREADS_BYTES else 1
    made: Any = _zstd.compressor.multi_compress_to_buffer(list(bodies), threads=threads)
    return [memoryview(made[number]) for number in range(len(bodies))]


def decompress(codec: int, body: _Bytes, limit: int) -> _Bytes:
    """The body again; at most `limit` bytes. Raises CorruptBatch, UnsupportedCodec."""
    try:
        return _lookup(_DECOMPRESS, codec)(body, limit)
    except MissingExtra as error:
        raise UnsupportedCodec(str(error)) from None


# -- none ---------------------------------------------------------------------------------------------


def _compress_none(body: bytes) -> bytes:
    return body


def _decompress_none(body: _Bytes, limit: int) -> _Bytes:
    if len(body) > limit:
        raise CorruptBatch(f"a body of {len(body)} bytes exceeds the limit of {limit}")
    return body


# -- zstd ---------------------------------------------------------------------------------------------


class _PerThread(threading.local):
    """Compressor objects are expensive to make and must not be shared between threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(
            level=ZSTD_LEVEL, write_content_size=True, write_checksum=False
        )
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)


_zstd = _PerThread()


def _compress_zstd(body: bytes) -> bytes:
    return _zstd.compressor.compress(body)


def _decompress_zstd(body: _Bytes, limit: int) -> _Bytes:
    try:
        size = zstandard.frame_content_size(body)
        _check_size("zstd", size, limit)
        if size == 0 and _zstd_frame_end(body) != len(body):  # the library looks no further then
            raise CorruptBatch("a zstd body goes on behind an empty frame")
        return _zstd.decompressor.decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"a zstd body cannot be read: {error}") from None


def decompress_together(bodies: Sequence[_Bytes], limit: int) -> list[_Bytes]:
    """Several zstd bodies, by as many threads as there are processors, in one call without the GIL.

    Only the first of them, up to TOGETHER_BYTES in all; none where one is too large or corrupt, or
    where threads would not pay.
    """
    count = count_together(bodies, limit)
    return decompress_all(bodies[:count], THREADS) if count > 1 else []


def count_together(bodies: Sequence[_Bytes], limit: int) -> int:
    """How many of the first of these zstd bodies `decompress_all` may have; 0 where it would not pay."""
    total = count = 0
    try:
        for body in bodies:
            size = zstandard.frame_content_size(body)
            if not 0 <= size <= limit or (count and total + size > TOGETHER_BYTES):
                break
            if _zstd_frame_end(body) != len(body):
                break  # more frames, which by itself it may not have
            total += size
            count += 1
    except zstandard.ZstdError:
        pass  # what is wrong is told when that body is opened by itself
    return 0 if total < WORTH_THREADS_BYTES or THREADS < 2 else count


def decompress_all(bodies: Sequence[_Bytes], threads: int) -> list[_Bytes]:
    """What `count_together` has allowed; nothing if one is corrupt. Any thread may call.

    Each keeps the memory of its neighbours.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    made: Any
    try:
        made = decompressor.multi_decompress_to_buffer(list(bodies), threads=threads)
    except zstandard.ZstdError:
        return []
    return [memoryview(made[number]) for number in range(len(bodies))]


def _zstd_frame_end(body: _Bytes) -> int:
    """Where a body's first frame ends, by the lengths of its blocks (RFC 8878, 3.1.1); -1: nowhere.

    Raises ZstdError.
    """
    view = memoryview(body)
    if bytes(view[:4]) != _ZSTD_MAGIC:
        return -1
    has_checksum = zstandard.get_frame_parameters(view).has_checksum
    position: int = zstandard.frame_header_size(view)
    while position + _ZSTD_BLOCK <= len(view):
        block = int.from_bytes(view[position : position + _ZSTD_BLOCK], "little")
        is_last, kind, size = block & 1, block >> 1 & 3, block >> 3
        position += _ZSTD_BLOCK + (1 if kind == _ZSTD_REPEATED else size)
        if is_last:
            return position + (_ZSTD_CHECKSUM if has_checksum else 0)
    return -1


# -- lz4 ----------------------------------------------------------------------------------------------


def _compress_lz4(body: bytes) -> bytes:
    packed: bytes = _library(Codec.LZ4).compress(body, store_size=True)
    return packed


def _decompress_lz4(body: _Bytes, limit: int) -> _Bytes:
    lz4 = _library(Codec.LZ4)
    if bytes(body[:4]) != _LZ4_MAGIC:  # skippable frames and the old format declare nothing
        raise CorruptBatch("a lz4 body is not a frame")
    try:
        # Without a declared size the library reports 0, which is then the size allowed.
        size = lz4.get_frame_info(body)["content_size"]
        _check_size("lz4", size, limit)
        decompressor = lz4.LZ4FrameDecompressor()
        made: bytes = decompressor.decompress(body, max_length=size + 1)
    except (RuntimeError, ValueError) as error:
        raise CorruptBatch(f"a lz4 body cannot be read: {error}") from None
    if len(made) != size or not decompressor.eof or decompressor.unused_data:
        raise CorruptBatch(f"a lz4 body is not one whole frame of {size} bytes")
    return made


# -- gzip ---------------------------------------------------------------------------------------------


def _compress_gzip(body: bytes) -> bytes:
    # A compressor of zlib itself writes no time of day into the header: the same in, the same out.
    compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return compressor.compress(body) + compressor.flush()


def _decompress_gzip(body: _Bytes, limit: int) -> _Bytes:
    if len(body) < _GZIP_SMALLEST:
        raise CorruptBatch(f"a gzip body of {len(body)} bytes is too short")
    size = int.from_bytes(body[-4:], "little")
    _check_size("gzip", size, limit)
    decompressor = zlib.decompressobj(_GZIP_WINDOW)
    try:
        made = decompressor.decompress(body, size + 1)
        # The trailer is looked at only when there is room for more.
        made += decompressor.decompress(decompressor.unconsumed_tail, 1)
    except zlib.error as error:
        raise CorruptBatch(f"a gzip body cannot be read: {error}") from None
    if len(made) != size or not decompressor.eof or decompressor.unused_data:
        raise CorruptBatch(f"a gzip body is not one whole member of {size} bytes")
    return made


# -- snappy -------------------------------------------------------------------------------------------


def _compress_snappy(body: bytes) -> bytes:
    return bytes(_library(Codec.SNAPPY).snappy.compress_raw(body))


def _decompress_snappy(body: _Bytes, limit: int) -> _Bytes:
    cramjam = _library(Codec.SNAPPY)
    snappy = cramjam.snappy
    try:
        size = snappy.decompress_raw_len(body)
        _check_size("snappy", size, limit)
        made = bytearray(size)
        written = snappy.decompress_raw_into(body, made)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"a snappy body cannot be read: {error}") from None
    if written != size:
        raise CorruptBatch(f"a snappy body of {size} bytes ends after {written}")
    return made


# -- tables -------------------------------------------------------------------------------------------

_COMPRESS: Final[dict[int, Callable[[bytes], bytes]]] = {
    Codec.NONE: _compress_none,
    Codec.ZSTD: _compress_zstd,
    Codec.LZ4: _compress_lz4,
    Codec.GZIP: _compress_gzip,
    Codec.SNAPPY: _compress_snappy,
}
_DECOMPRESS: Final[dict[int, Callable[[_Bytes, int], _Bytes]]] = {
    Codec.NONE: _decompress_none,
    Codec.ZSTD: _decompress_zstd,
    Codec.LZ4: _decompress_lz4,
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
}

# Module, what to install, and the extra that brings it.
_LIBRARIES: Final[dict[int, tuple[str, str, str]]] = {
    Codec.LZ4: ("lz4.frame", "lz4", "lz4"),
    Codec.SNAPPY: ("cramjam", "cramjam", "snappy"),
}


def _library(codec: int) -> Any:
    """The module behind a codec, imported when it is first needed. Raises MissingExtra."""
    module, package, extra = _LIBRARIES[codec]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise MissingExtra(
            f"compression {Codec(codec).name.lower()} needs {package}, which is not installed: "
            f"pip install 'folkmoot[{extra}]'"
        ) from None


def _check_size(codec: str, declared: int, limit: int) -> None:
    if not 0 <= declared <= limit:
        raise CorruptBatch(f"a {codec} body declares {declared} bytes, the limit is {limit}")


def _lookup(table: dict[int, _F], codec: int) -> _F:
    try:
        return table[codec]
    except KeyError:
        raise UnsupportedCodec(f"codec number {codec} is not known here") from None
