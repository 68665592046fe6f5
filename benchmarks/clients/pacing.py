"""Records at a fixed rate, and how long each took from when it was due.

The nth record is due n/rate seconds after the start, whatever happened to those before it, and carries
that moment. So a system that stalls is charged for every record that had to wait meanwhile, and not
only for the one that met the stall (no coordinated omission). The clock is CLOCK_MONOTONIC, which is
the same in all processes of a machine. Nothing but the standard library is imported here.
"""

import gc
import os
import time
from array import array
from collections.abc import Callable, Sequence
from math import ceil
from struct import Struct
from typing import Final

DUE: Final = Struct("<q")
"""A record's first bytes: when it was due, in ns since the start; negative: not one that counts."""

WARM_UP: Final = DUE.pack(-1)
KEYS: Final = 4_000
_NOISE_BYTES: Final = 1 << 20

Send = Callable[[bytes, bytes], object]


def records(count: int, rate: float, size: int) -> tuple[list[bytes], list[bytes]]:
    """Keys and values, all made before the start; values are random hexadecimal behind their time."""
    noise = os.urandom(_NOISE_BYTES // 2).hex().encode()
    keys = [b"user-%04d" % (number % KEYS) for number in range(count)]
    values, length = [], size - DUE.size
    for number in range(count):
        start = number * 37 % (_NOISE_BYTES - length)
        values.append(DUE.pack(int(number * 1e9 / rate)) + noise[start : start + length])
    return keys, values


def send_paced(send: Send, keys: Sequence[bytes], values: Sequence[bytes], rate: float) -> int:
    """Sends each record when it is due, or at once if that is over. → the start, in ns of the clock."""
    gc.collect()
    gc.freeze()  # what was made before the start is not looked through again
    now, per_ns, count = time.monotonic_ns, rate / 1e9, len(values)
    start, number = now(), 0
    while number < count:
        due = min(count, int((now() - start) * per_ns) + 1)
        while number < due:
            send(values[number], keys[number])
            number += 1
        wait = start + number / per_ns - now()
        if wait > 0:
            time.sleep(wait / 1e9)
    return start


class Arrivals:
    """When records arrived, less when they were due after a start that is known later."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lags = array("q")
        self.add = self._lags.append

    @property
    def is_complete(self) -> bool:
        return len(self._lags) >= self._count

    def percentiles(self, warm: int) -> dict[str, float]:
        """In ns, without the first `warm` to arrive; the caller takes the start off."""
        lags = sorted(self._lags[warm:])
        if not lags:
            return {}
        found = {
            f"p{percent:g}": lags[ceil(len(lags) * percent / 100) - 1] for percent in _PERCENTS
        }
        return {**found, "max": lags[-1]}


_PERCENTS: Final = (50, 95, 99, 99.9)
