"""Records of every size that growth is measured with."""

import pytest

from benchmarks.bench_growth import SIZES, _values


@pytest.mark.parametrize("size", SIZES)
def test_values_are_of_the_size_asked_for_and_all_different(size: int) -> None:
    count = min(50_000, 20_000_000 // size)

    values = _values(count, size)

    assert {len(value) for value in values} == {size}
    assert len(set(values)) == count
