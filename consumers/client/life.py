"""The stages of a consumer's life."""

import os
from enum import Enum
from typing import Final

from folkmoot.protocol.errors import ClosedError


class Stage(Enum):
    """A consumer's stage.

    ```
    NEW ─► OPEN ─► LEAVING ─► OPEN
            └─────────┴─► CLOSING ─► CLOSED
    NEW ─► CLOSING, CLOSED
    ```
    """

    NEW = "new"
    OPEN = "open"
    LEAVING = "leaving"
    """It leaves its group, and stays open."""
    CLOSING = "closing"
    """Waiting reads end with nothing."""
    CLOSED = "closed"


NEXT_STAGES: Final = {
    Stage.NEW: {Stage.OPEN, Stage.CLOSING, Stage.CLOSED},
    Stage.OPEN: {Stage.LEAVING, Stage.CLOSING},
    Stage.LEAVING: {Stage.OPEN, Stage.CLOSING},
    Stage.CLOSING: {Stage.CLOSED},
    Stage.CLOSED: set(),
}


class Life:
    """A consumer's stage; any thread may read it."""

    def __init__(self) -> None:
        self.stage = Stage.NEW
        self.stopped = False
        """No more records are handed out. Set by any thread, or a signal handler."""
        self._process: int | None = None

    def enter(self, stage: Stage) -> None:
        if stage is not self.stage:
            assert stage in NEXT_STAGES[self.stage], f"{self.stage} to {stage}"
            self.stage = stage
        if stage is Stage.OPEN:
            self._process = os.getpid()

    def check_process(self) -> None:
        """Raises ClosedError in a forked child."""
        if self._process is not None and self._process != os.getpid():
            raise ClosedError("the consumer was made before a fork: make one in each process")

    def check_open(self) -> None:
        """Raises ClosedError."""
        self.check_process()
        if self.stage in (Stage.NEW, Stage.CLOSED):
            raise ClosedError("the consumer is not open: use it in a with block, or call start()")

    @property
    def is_new(self) -> bool:
        return self.stage is Stage.NEW

    @property
    def is_ending(self) -> bool:
        return self.stage in (Stage.CLOSING, Stage.CLOSED)

    @property
    def is_leaving(self) -> bool:
        """Return whether only the group's thread matters: brokers may be dead."""
        return self.stage in (Stage.LEAVING, Stage.CLOSING)

    @property
    def is_closed(self) -> bool:
        return self.stage is Stage.CLOSED

    @property
    def is_forked(self) -> bool:
        """Return whether this is a child of the process that opened the consumer. It has none of its
        threads, and
        must not touch the shared sockets."""
        return self._process is not None and self._process != os.getpid()
