"""Keeping Python's garbage collector from standing in the way of a broker that has a process of its own."""

import gc
import time
from collections.abc import Callable
from typing import Any, Final

LOOK_THROUGH_ALL_AFTER: Final = 86_400.0
THRESHOLDS: Final = 700, 10, 2
"""A full collection after some 23,000 objects, not 85,000: it looks at those alone, within one step of the
event loop. A request that makes something for each of thousands of partitions makes as many."""


class SurvivorsFrozen:
    """A full collection looks at what was made since the last one, not at all that there is.

    A broker keeps some dozen objects for each partition for ever: at ten thousand partitions a full
    collection stands for a tenth of a second, and the event loop with it. So whatever has survived one
    is frozen (`gc.freeze`): it still goes as soon as nobody refers to it, which is how a broker's own
    objects go, and no collection looks at it again. What dies in a circle all the same, such as a lost
    session of kazoo's, is found once in LOOK_THROUGH_ALL_AFTER seconds, when all is unfrozen for the
    next full collection.

    It is the collector of the whole process: for `folkmoot broker`, which has no other tenant. A Broker
    never begins this by itself; who runs one within an application decides for that.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_look = clock() + LOOK_THROUGH_ALL_AFTER
        self._thresholds = gc.get_threshold()

    def begin(self) -> None:
        gc.freeze()  # without a look through all of it: the broker serves already
        gc.collect()  # it is the size of the last one that tells when the next is due
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._collected)

    def end(self) -> None:
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase != "stop" or info["generation"] < 2:
            return
        if self._clock() >= self._next_look:
            self._next_look = self._clock() + LOOK_THROUGH_ALL_AFTER
            gc.unfreeze()
        else:
            gc.freeze()
