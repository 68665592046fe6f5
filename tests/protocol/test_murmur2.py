"""Kafka's murmur2: the published vectors."""

import pytest

from folkmoot.protocol.murmur2 import murmur2, partition_for

# UtilsTest.testMurmur2 of apache/kafka; signed, as Java prints them.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", VECTORS, ids=bytes.decode)
def test_kafkas_vectors(key: bytes) -> None:
    assert murmur2(key) == VECTORS[key] & 0xFFFFFFFF
    assert partition_for(key, 12) == (VECTORS[key] & 0x7FFFFFFF) % 12
