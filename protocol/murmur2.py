"""Kafka's murmur2, so that a key lands in the partition where Kafka's Java client would put it.

One key at a time in Python, or many at once in numpy; both give the same bits (tests hold them to
Kafka's published vectors and to each other). Source: `Utils.murmur2` of apache/kafka.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


def murmur2(key: bytes) -> int:
    """The hash as an unsigned 32-bit number."""
    length = len(key)
    h = _SEED ^ length
    body = length & ~3
    for k in memoryview(key)[:body].cast("I"):
        k = k * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if body != length:
        h = (h ^ int.from_bytes(key[body:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def murmur2_many(keys: Sequence[bytes]) -> npt.NDArray[np.uint32]:
    """`murmur2` of every key, in order."""
    lengths = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
    return murmur2_packed(np.frombuffer(b"".join(keys), dtype=np.uint8), lengths)


def murmur2_packed(
    data: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """`murmur2` of keys that lie back to back: those of one length are hashed together."""
    if len(lengths) and (lengths == lengths[0]).all():
        return _hash_matrix(data.reshape(len(lengths), int(lengths[0])))
    starts = np.cumsum(lengths) - lengths
    hashes = np.empty(len(lengths), dtype=np.uint32)
    for length in np.unique(lengths):
        (rows,) = np.nonzero(lengths == length)
        matrix = data[starts[rows, None] + np.arange(length)]
        hashes[rows] = _hash_matrix(matrix)
    return hashes


def partition_for(key: bytes, partitions: int) -> int:
    """The partition (0-based) of a topic with `partitions` partitions that `key` belongs to."""
    return (murmur2(key) & _POSITIVE) % partitions


def partitions_for(keys: Sequence[bytes], partitions: int) -> npt.NDArray[np.int64]:
    """`partition_for` of every key, in order."""
    return partitions_of(murmur2_many(keys), partitions)


def partitions_of(hashes: npt.NDArray[np.uint32], partitions: int) -> npt.NDArray[np.int64]:
    """The partitions that keys with these hashes belong to."""
    return (hashes & np.uint32(_POSITIVE)).astype(np.int64) % partitions


def _hash_matrix(matrix: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Hash rows of equal length; numpy's uint32 arithmetic wraps as Java's does."""
    count, length = matrix.shape
    body = length & ~3
    m = np.uint32(_M)
    h = np.full(count, _SEED ^ length, dtype=np.uint32)
    if body:
        words = np.ascontiguousarray(matrix[:, :body]).view("<u4")
        for column in range(words.shape[1]):
            k = words[:, column] * m
            k ^= k >> np.uint32(24)
            k *= m
            h *= m
            h ^= k
    if body != length:
        tail = np.zeros(count, dtype=np.uint32)
        for position in range(body, length):
            tail |= matrix[:, position].astype(np.uint32) << np.uint32(8 * (position - body))
        h ^= tail
        h *= m
    h ^= h >> np.uint32(13)
    h *= m
    h ^= h >> np.uint32(15)
    return h
