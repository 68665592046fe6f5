"""Which segments have files open: the ones used last, and no more than a broker may have."""

from collections import OrderedDict
from typing import Final, Protocol

from folkmoot.brokers.server.scheduler import Now

DESCRIPTORS: Final = 5
"""The most that one segment holds: its log, two indexes, and a second one of each for its mapping."""

DEFAULT_LIMIT: Final = 1_000
SWEEP_INTERVAL: Final = 60.0


class Holder(Protocol):
    """Something that opens files when it needs them and can be told to close them."""

    def release(self) -> None:
        """Close the files; they are opened again when needed."""


class OpenFiles:
    """Segments with open files, in the order of their last use.

    At most `limit` of them: who comes on top makes the one used longest ago release its files. What
    was not used between two calls of `sweep` is released too, so that a partition without traffic
    holds no descriptor and no mapping. A view of a mapping that is still being sent keeps that
    mapping alive by itself.

    Owner: `Logs`, on the broker's reactor thread.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = max(1, limit)
        self._sweep = 0
        self._used: OrderedDict[Holder, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def use(self, holder: Holder) -> None:
        """This one is used now, and has or is about to open files."""
        self._used[holder] = self._sweep
        self._used.move_to_end(holder)
        if len(self._used) > self._limit:
            next(iter(self._used)).release()

    def forget(self, holder: Holder) -> None:
        """This one has released its files."""
        self._used.pop(holder, None)

    def chore(self, now: Now) -> float:
        """Sweep from time to time."""
        self.sweep()
        return SWEEP_INTERVAL

    def sweep(self) -> None:
        """Release what was not used since the last sweep."""
        while self._used:
            oldest, used = next(iter(self._used.items()))
            if used == self._sweep:
                break
            oldest.release()
        self._sweep += 1
