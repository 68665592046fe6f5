"""The compression codecs of a batch's body, by their number in the batch's attributes.

Every codec's output declares how large the body was. Readers compare that with the limit before they
allocate anything. A zstd or lz4 body is one frame that declares its content size (zstandard ignores
`max_output_size` for such frames). A gzip body is one member whose trailer ends with the size. A snappy
body is one raw block, which begins with it. If the declared size is wrong, at most one byte more is made.

zstd and gzip are always installed. lz4 and snappy come with an extra, and are imported when first used. A
batch that needs a missing one is refused with UnsupportedCodec; `require`, for clients that choose
a codec, raises MissingExtra.

Each codec has its own range of levels. A higher one takes more time for fewer bytes; those below zero are
faster still. Readers need not know the level.
"""

import importlib
import os
import sys
import threading
import zlib
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import zstandard

from folkmoot.protocol.errors import (
    ConfigError,
    CorruptBatch,
    MissingExtra,
    UnsupportedCodec,
    pip_command,
)

MAX_WINDOW_BYTES: Final = 8 * 1024 * 1024
"""The largest window of a zstd frame; levels above 19 would need more."""

WORTH_THREADS_BYTES: Final = 256 * 1024
THREADS: Final = min(4, len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1)

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"

_Bytes = bytes | bytearray | memoryview


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


LEVELS: Final[dict[int, range]] = {
    Codec.ZSTD: range(-7, 20),
    Codec.LZ4: range(-64, 17),
    Codec.GZIP: range(1, 10),
}
"""The levels of each codec; the other codecs have none."""
DEFAULT_LEVELS: Final[dict[int, int]] = {Codec.ZSTD: 1, Codec.LZ4: 0, Codec.GZIP: 1}
_IN_CACHE: Final = {"window_log": 18, "hash_log": 13, "min_match": 7}
"""For zstd's default level: a hash table of 32 KiB and a window of 256 stay in a processor's nearest caches.
Its own choice for bodies above 256 KiB, 64 and 512, takes a seventh more time for as many bytes."""


def check_level(codec: int, level: int | None) -> None:
    """Raise ConfigError for a level that the codec does not have. None is the codec's default."""
    levels = LEVELS.get(codec, range(0))
    if level is None or level in levels:
        return
    use = f"a whole number from {levels[0]} to {levels[-1]}, or None" if levels else "None"
    raise ConfigError(
        f"compression_level={level!r} is not allowed with compression {_name(codec)}: use {use}"
    )


class _PerThread(threading.local):
    """Compressor objects are expensive to make and must not be shared between threads."""

    def __init__(self) -> None:
        self.compressors: dict[int, Any] = {}
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)

    def compressor(self, level: int) -> Any:
        if level not in self.compressors:
            options: dict[str, Any] = {"write_content_size": True, "write_checksum": False}
            if level == DEFAULT_LEVELS[Codec.ZSTD]:
                parameters = zstandard.ZstdCompressionParameters
                options = {
                    "compression_params": parameters.from_level(level, **_IN_CACHE, **options)
                }
            else:
                options["level"] = level
            self.compressors[level] = zstandard.ZstdCompressor(**options)
        return self.compressors[level]


_zstd = _PerThread()


_NUMBERS: Final = frozenset(Codec)
# The modules of the extra `codecs`.
_EXTRA_MODULES: Final[dict[int, str]] = {Codec.LZ4: "lz4.frame", Codec.SNAPPY: "cramjam"}


def require(codec: int) -> Any:
    """Import and return the module of a codec from an extra; None for any other codec.

    Raises MissingExtra, which names the pip command, if it is not installed.
    """
    if codec not in _EXTRA_MODULES:
        return None
    module = _EXTRA_MODULES[codec]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise MissingExtra(
            f"compression {_name(codec)} needs {package}, which is not installed: "
            f"{pip_command('codecs')}"
        ) from None


def compress(codec: int, body: _Bytes, level: int | None = None) -> bytes:
    """Compress `body` as a whole, at a level that `check_level` has passed. Raises UnsupportedCodec."""
    library = _library(codec)
    if level is None:
        level = DEFAULT_LEVELS.get(codec, 0)
    match codec:
        case Codec.ZSTD:
            return bytes(_zstd.compressor(level).compress(body))
        case Codec.NONE:
            return bytes(body)
        case Codec.LZ4:
            return bytes(library.compress(body, compression_level=level, store_size=True))
        case Codec.SNAPPY:
            return bytes(library.snappy.compress_raw(body))
        case _:
            # zlib writes no time of day into the header: the same in, the same out.
            gzip = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW)
            return gzip.compress(body) + gzip.flush()


def decompress(codec: int, body: _Bytes, limit: int) -> _Bytes:
    """Return the body, at most `limit` bytes. Raises CorruptBatch, UnsupportedCodec."""
    library = _library(codec)
    result: _Bytes | None = None
    try:
        size = _declared_size(codec, library, body)
        if not 0 <= size <= limit:
            raise CorruptBatch(f"a {_name(codec)} body declares {size} bytes, the limit is {limit}")
        match codec:
            case Codec.ZSTD:
                if size:  # after an empty frame the library would ignore what follows
                    result = _zstd.decompressor.decompress(body, allow_extra_data=False)
            case Codec.NONE:
                result = body
            case Codec.LZ4:
                lz4 = library.LZ4FrameDecompressor()
                result = _if_complete(lz4.decompress(body, max_length=size + 1), lz4)
            case Codec.SNAPPY:
                result = bytearray(size)
                size = library.snappy.decompress_raw_into(body, result)
            case _:
                gzip = zlib.decompressobj(_GZIP_WINDOW)
                head = gzip.decompress(body, size + 1)
                # zlib reads the trailer only when there is room for more output.
                result = _if_complete(head + gzip.decompress(gzip.unconsumed_tail, 1), gzip)
    except (CorruptBatch, MemoryError):
        raise
    except Exception as error:  # each library has its own for damaged bodies
        raise CorruptBatch(f"a {_name(codec)} body cannot be read: {error}") from None
    if result is None or len(result) != size:
        raise CorruptBatch(f"a {_name(codec)} body is not one whole frame of {size} bytes")
    return result


def declared_size(codec: int, body: _Bytes) -> int:
    """Return the size that the body declares; -1 if there is none, or it cannot be read here."""
    try:
        return _declared_size(codec, _library(codec), body)
    except Exception:  # each library has its own for damaged bodies
        return -1


def _declared_size(codec: int, library: Any, body: _Bytes) -> int:
    match codec:
        case Codec.ZSTD:
            return int(zstandard.frame_content_size(body))
        case Codec.NONE:
            return len(body)
        case Codec.LZ4:
            # Skippable frames and the old format declare nothing. For a frame without a size the
            # library reports 0, which is then the size allowed.
            is_frame = bytes(body[:4]) == _LZ4_MAGIC
            return int(library.get_frame_info(body)["content_size"]) if is_frame else -1
        case Codec.SNAPPY:
            return int(library.snappy.decompress_raw_len(body))
        case _:
            return int.from_bytes(body[-4:], "little")


def _if_complete(result: bytes, decompressor: Any) -> bytes | None:
    """None if the body is cut off or something follows it."""
    return result if decompressor.eof and not decompressor.unused_data else None


def _library(codec: int) -> Any:
    """The module of a codec from an extra, None for the others. Raises UnsupportedCodec."""
    if codec not in _NUMBERS:
        raise UnsupportedCodec(f"codec number {codec} is not known here")
    try:
        return require(codec)
    except MissingExtra as error:
        raise UnsupportedCodec(str(error)) from None


def _name(codec: int) -> str:
    return Codec(codec).name.lower()


def compress_together(
    codec: int, bodies: Sequence[_Bytes], level: int | None = None
) -> Sequence[_Bytes]:
    """Compress each body; zstd does so in one call without the GIL, with a thread for each processor if the
    bodies are large: getting the GIL back takes time. Raises UnsupportedCodec."""
    if codec != Codec.ZSTD or len(bodies) < 2:
        return [compress(codec, body, level) for body in bodies]
    threads = THREADS if sum(map(len, bodies)) >= WORTH_THREADS_BYTES else 1
    compressor = _zstd.compressor(DEFAULT_LEVELS[Codec.ZSTD] if level is None else level)
    results: Any = compressor.multi_compress_to_buffer(list(bodies), threads=threads)
    return [memoryview(results[number]) for number in range(len(bodies))]
