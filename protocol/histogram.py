"""Counts durations by bucket, cheaply enough to be always on."""

from bisect import bisect_left
from typing import Final, NamedTuple

BOUNDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""The upper bounds of all buckets but the last one, in seconds."""


class HistogramSnapshot(NamedTuple):
    """Durations by bucket, the last one above all BOUNDS, and their sum in seconds."""

    counts: tuple[int, ...]
    total: float


class Histogram:
    """Counts durations. One thread observes."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._total += seconds

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(tuple(self._counts), self._total)
