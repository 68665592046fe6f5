"""Producer ids, of which the broker always has some in memory."""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from folkmoot.brokers.jobs.jobs import Lane, Submit
from folkmoot.protocol.errors import NoProducerId

logger = logging.getLogger(__name__)

BLOCK: Final = 10_000
"""Ids taken from ZooKeeper at a time: producers can be started for a while when it is down."""

_REQUESTED: Final = "it is asking ZooKeeper for some"


class ProducerIds:
    """Hands out unique ids, each once.

    The broker takes blocks of them from ZooKeeper's counter, beside its event loop: when it starts, and
    when it has less than half a block. The counter is moved past a block first, so that a broker that dies,
    or a block whose outcome is not known, only wastes ids.

    Owner: the event loop.
    """

    def __init__(self, submit: Submit, allocate: Callable[[int], range]) -> None:
        """`allocate` takes that many ids from ZooKeeper, on any thread. Raises FolkmootError."""
        self._submit = submit
        self._allocate = allocate
        self._left: deque[int] = deque()
        self._is_refilling = False
        self._trouble = _REQUESTED

    def next(self) -> int:
        """The next id. Raises NoProducerId."""
        self.refill()
        if not self._left:
            raise NoProducerId(f"the broker has no producer id left: {self._trouble}")
        return self._left.popleft()

    def refill(self) -> None:
        """Take another block, unless there is enough or one is being taken."""
        if not self._is_refilling and len(self._left) <= BLOCK // 2:
            self._is_refilling = True
            self._submit(Lane.ZOOKEEPER, partial(self._allocate, BLOCK), self._add_block)

    def _add_block(self, result: range | Exception) -> None:
        self._is_refilling = False
        if isinstance(result, Exception):
            if self._trouble != str(result):
                self._trouble = str(result)
                logger.warning("no producer ids from ZooKeeper: %s", result)
            return
        self._trouble = _REQUESTED
        self._left.extend(result)
