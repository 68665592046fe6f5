"""Keeps Python's garbage collector from pausing a broker that has a process of its own."""

import gc
import time
from collections.abc import Callable
from typing import Any, Final

LOOK_THROUGH_ALL_AFTER: Final = 86_400.0
THRESHOLDS: Final = 700, 10, 2
"""A full collection after some 23,000 new objects, not 85,000: fewer for one step of the event loop."""


class SurvivorsFrozen:
    """Full collections look only at objects made since the last one.

    A broker keeps some dozen objects for each partition. With ten thousand partitions a full collection
    takes a tenth of a second, and the event loop waits for it. So the survivors of a collection are
    frozen (`gc.freeze`): they still go with their last reference, and later collections skip them. Dead
    cycles among them, such as a lost session of kazoo's, are found every LOOK_THROUGH_ALL_AFTER seconds:
    then all objects are unfrozen for the next full collection.

    This holds for the whole process: for `folkmoot broker`, which runs nothing else. A Broker does not
    begin it: an application that runs one decides.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_look = clock() + LOOK_THROUGH_ALL_AFTER
        self._thresholds = gc.get_threshold()

    def begin(self) -> None:
        gc.freeze()  # without a full collection: the broker serves already
        gc.collect()  # Python derives the next full collection from the size of the last one
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
