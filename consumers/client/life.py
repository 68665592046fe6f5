"""How far a consumer has come in its life."""

import os
from enum import Enum
from typing import Final

from folkmoot.protocol.errors import ClosedError


class Stage(Enum):
    """What a consumer is doing.

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
    """Reads that wait end with nothing."""
    CLOSED = "closed"


NEXT_STAGES: Final = {
    Stage.NEW: {Stage.OPEN, Stage.CLOSING, Stage.CLOSED},
    Stage.OPEN: {Stage.LEAVING, Stage.CLOSING},
    Stage.LEAVING: {Stage.OPEN, Stage.CLOSING},
    Stage.CLOSING: {Stage.CLOSED},
    Stage.CLOSED: set(),
}
"""The stages that may follow each stage."""


class Life:
    """The stage, and what any thread may read or set of it."""

    def __init__(self) -> None:
        self.stage = Stage.NEW
        self.stopped = False
        """Nothing more is handed out. Any thread sets it, or a signal handler."""
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
        """The group's thread is all that counts: brokers may be dead."""
        return self.stage in (Stage.LEAVING, Stage.CLOSING)

    @property
    def is_closed(self) -> bool:
        return self.stage is Stage.CLOSED

    @property
    def is_forked(self) -> bool:
        """This is a child of the process that opened the consumer: the threads are not here, and what the
        two have in common (sockets, the session) is the parent's."""
        return self._process is not None and self._process != os.getpid()
