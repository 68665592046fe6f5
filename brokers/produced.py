"""What a broker asks of a producer's batch before it is appended."""

from typing import Final

from folkmoot.protocol import batch
from folkmoot.protocol.batch import BatchHeader
from folkmoot.protocol.codecs import Codec
from folkmoot.protocol.errors import BatchTooLarge, CorruptBatch, InvalidRequest, UnsupportedCodec

_KNOWN_CODECS: Final = frozenset(Codec)


def check_produced(data: bytes | bytearray | memoryview, max_batch_bytes: int) -> BatchHeader:
    """The header of a producer's batch that may be appended.

    Raises CorruptBatch, BatchTooLarge, InvalidRequest, UnsupportedCodec.
    """
    if len(data) > max_batch_bytes:
        raise BatchTooLarge(f"a batch of {len(data)} bytes exceeds the limit of {max_batch_bytes}")
    header = batch.check(data)
    if header.length != len(data):
        raise CorruptBatch(f"{len(data) - header.length} bytes follow a batch of {header.length}")
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRequest(
            f"a producer's batch of {header.record_count} records spans "
            f"{header.last_offset_delta + 1} offsets: it may have no gaps"
        )
    if header.codec not in _KNOWN_CODECS:
        raise UnsupportedCodec(f"codec number {header.codec} is not known here")
    return header
