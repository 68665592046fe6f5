"""Kafka's murmur2, so that a key lands in the partition where Kafka's Java client would put it.

Source: `Utils.murmur2` of apache/kafka. `producers/_speedups.pyx` has the same in C.
"""

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


def partition_for(key: bytes, partitions: int) -> int:
    """The partition (0-based) of a topic with `partitions` partitions that `key` belongs to."""
    return (murmur2(key) & _POSITIVE) % partitions
