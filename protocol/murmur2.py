"""Kafka's murmur2, so that a key lands in the partition where Kafka's Java client would put it.

One key at a time in Python, or many at once in numpy; both give the same bits (tests hold them to
Kafka's published vectors and to each other). Source: `Utils.murmur2` of apache/kafka.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_LONG_KEY_BYTES = 1024

_Bytes = bytes | bytearray | memoryview
_Hashes = npt.NDArray[np.uint32]


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


def murmur2_column(data: _Bytes, lengths: npt.NDArray[np.int64]) -> _Hashes:
    """`murmur2` of keys that lie back to back.

    All are hashed at once, word by word: numpy's uint32 arithmetic wraps as Java's does. The words
    are read through a view that has one at every byte, since keys begin anywhere. Long keys are
    hashed alone, or a single one would cost a step of numpy for each of its words.
    """
    words = np.ndarray((len(data) + 1,), "<u4", b"".join((data, bytes(4))), strides=(1,))
    starts = np.cumsum(lengths) - lengths
    (long,) = np.nonzero(lengths > _LONG_KEY_BYTES)
    sizes = np.where(lengths > _LONG_KEY_BYTES, 0, lengths) if len(long) else lengths
    at, whole = starts.copy(), sizes >> 2
    h = sizes.astype(np.uint32) ^ np.uint32(_SEED)
    fewest, most = (int(whole.min()), int(whole.max())) if len(whole) else (0, 0)
    for number in range(most):
        if number < fewest:  # every key has this word
            h = _mix(h, words[at])
            at += 4
        else:
            (rows,) = np.nonzero(whole > number)
            h[rows] = _mix(h[rows], words[at[rows]])
            at[rows] += 4
    rest = sizes & 3
    if rest.any():
        tail = words[at] & (
            (np.uint32(1) << (rest.astype(np.uint32) << np.uint32(3))) - np.uint32(1)
        )
        h = np.where(rest > 0, (tail ^ h) * np.uint32(_M), h)
    h = _finish(h)
    for row in long.tolist():
        h[row] = murmur2(bytes(data[starts[row] : starts[row] + lengths[row]]))
    return h


def murmur2_even(data: _Bytes, size: int) -> _Hashes:
    """`murmur2` of keys of one length, at least 1, that lie back to back.

    The nth word of all keys is then a column at even distances: there is nothing to look up.
    """
    count = len(data) // size
    if size > _LONG_KEY_BYTES:
        starts = range(0, count * size, size)
        return np.array([murmur2(bytes(data[at : at + size])) for at in starts], np.uint32)
    whole, rest = size & ~3, size & 3
    h = np.full(count, _SEED ^ size, np.uint32)
    for place in range(0, whole, 4):
        h = _mix(h, _words(data, place, size, count))
    if rest:
        data = b"".join((data, bytes(4)))  # the last word ends behind the last key
        h ^= _words(data, whole, size, count) & np.uint32((1 << 8 * rest) - 1)
        h *= np.uint32(_M)
    return _finish(h)


def partition_for(key: bytes, partitions: int) -> int:
    """The partition (0-based) of a topic with `partitions` partitions that `key` belongs to."""
    return (murmur2(key) & _POSITIVE) % partitions


def partitions_of(hashes: _Hashes, partitions: int) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The partitions that keys with these hashes belong to, in the smallest type that holds them."""
    return ((hashes & np.uint32(_POSITIVE)) % np.uint32(partitions)).astype(
        np.min_scalar_type(partitions)
    )


def _words(data: _Bytes, start: int, stride: int, count: int) -> _Hashes:
    return np.ndarray((count,), "<u4", data, start, (stride,)).astype(np.uint32)


def _mix(h: _Hashes, k: _Hashes) -> _Hashes:
    """One word of the keys goes into their hashes; `h` is changed in place."""
    m = np.uint32(_M)
    k *= m
    k ^= k >> np.uint32(24)
    k *= m
    h *= m
    h ^= k
    return h


def _finish(h: _Hashes) -> _Hashes:
    h ^= h >> np.uint32(13)
    h *= np.uint32(_M)
    h ^= h >> np.uint32(15)
    return h
