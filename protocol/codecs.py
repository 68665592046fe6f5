"""The compression codecs of a batch's body, by their number in the batch's attributes.

Decompression is bounded before anything is allocated: a zstd frame must declare its content size,
and `max_output_size` alone would be ignored for frames that do (measured with zstandard 0.25).
"""

import threading
from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

import zstandard

from folkmoot.protocol.errors import ConfigError, CorruptBatch, UnsupportedCodec

ZSTD_LEVEL = 1
MAX_WINDOW_BYTES = 8 * 1024 * 1024

_Bytes = bytes | bytearray | memoryview
_F = TypeVar("_F")


class Codec(IntEnum):
    """Number of the codec in the lowest three bits of a batch's attributes."""

    NONE = 0
    ZSTD = 1

    @classmethod
    def named(cls, name: str) -> "Codec":
        try:
            return cls[name.upper()]
        except KeyError:
            known = ", ".join(codec.name.lower() for codec in cls)
            raise ConfigError(f"compression {name!r} is not known: use one of {known}") from None


class _PerThread(threading.local):
    """Compressor objects are expensive to make and must not be shared between threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(
            level=ZSTD_LEVEL, write_content_size=True, write_checksum=False
        )
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)


_zstd = _PerThread()


def _compress_none(body: bytes) -> bytes:
    return body


def _compress_zstd(body: bytes) -> bytes:
    return _zstd.compressor.compress(body)


def _decompress_none(body: _Bytes, limit: int) -> _Bytes:
    if len(body) > limit:
        raise CorruptBatch(f"a body of {len(body)} bytes exceeds the limit of {limit}")
    return body


def _decompress_zstd(body: _Bytes, limit: int) -> _Bytes:
    try:
        size = zstandard.frame_content_size(body)
        if size < 0 or size > limit:
            raise CorruptBatch(f"a zstd body declares {size} bytes, the limit is {limit}")
        return _zstd.decompressor.decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"a zstd body cannot be read: {error}") from None


_COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    Codec.NONE: _compress_none,
    Codec.ZSTD: _compress_zstd,
}
_DECOMPRESS: dict[int, Callable[[_Bytes, int], _Bytes]] = {
    Codec.NONE: _decompress_none,
    Codec.ZSTD: _decompress_zstd,
}


def compress(codec: int, body: bytes) -> bytes:
    """`body` compressed as a whole. Raises UnsupportedCodec."""
    return _lookup(_COMPRESS, codec)(body)


def decompress(codec: int, body: _Bytes, limit: int) -> _Bytes:
    """The body again; at most `limit` bytes. Raises CorruptBatch, UnsupportedCodec."""
    return _lookup(_DECOMPRESS, codec)(body, limit)


def _lookup(table: dict[int, _F], codec: int) -> _F:
    try:
        return table[codec]
    except KeyError:
        raise UnsupportedCodec(f"codec number {codec} is not known here") from None
