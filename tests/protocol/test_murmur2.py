"""Kafka's murmur2: the published vectors, and numpy against one key at a time."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from folkmoot.protocol.murmur2 import (
    murmur2,
    murmur2_column,
    murmur2_even,
    partition_for,
    partitions_of,
)

# UtilsTest.testMurmur2 of apache/kafka; signed, as Java prints them.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def murmur2_many(keys: list[bytes]) -> Any:
    return murmur2_column(b"".join(keys), np.array([len(key) for key in keys], np.int64))


@pytest.mark.parametrize("key", VECTORS, ids=bytes.decode)
def test_kafkas_vectors(key: bytes) -> None:
    assert murmur2(key) == VECTORS[key] & 0xFFFFFFFF
    assert partition_for(key, 12) == (VECTORS[key] & 0x7FFFFFFF) % 12


def test_all_of_kafkas_vectors_at_once() -> None:
    hashes = murmur2_many(list(VECTORS))
    assert hashes.astype("int32").tolist() == list(VECTORS.values())


@settings(deadline=None, print_blob=True)
@given(keys=st.lists(st.binary(max_size=20) | st.binary(max_size=300), max_size=40))
@example(keys=[])
@example(keys=[b""])
@example(keys=[bytes(length) for length in range(20)])
@example(keys=[b"\xff" * length for length in range(20)])
@example(keys=[b"\x80" * length for length in range(20)])
@example(keys=[b"\x81" * length for length in (1025, 3, 0, 5000, 1024)])
@example(keys=[b"\x81" * 2000])
def test_many_keys_hash_as_each_alone(keys: list[bytes]) -> None:
    assert murmur2_many(keys).tolist() == [murmur2(key) for key in keys]
    for partitions in (1, 12, 1000):
        chosen = partitions_of(murmur2_many(keys), partitions).tolist()
        assert chosen == [partition_for(key, partitions) for key in keys]
        assert all(0 <= partition < partitions for partition in chosen)


@settings(deadline=None, print_blob=True)
@given(data=st.binary(min_size=1, max_size=300), size=st.integers(1, 40))
@example(data=b"\xff" * 2100, size=1050)
@example(data=b"\x80" * 64, size=8)
def test_keys_of_one_length_hash_as_each_alone(data: bytes, size: int) -> None:
    size = min(size, len(data))
    data = data[: len(data) // size * size]
    keys = [data[start : start + size] for start in range(0, len(data), size)]
    assert murmur2_even(data, size).tolist() == [murmur2(key) for key in keys]
