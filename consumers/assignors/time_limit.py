"""An assignor that is given so much time and no more.

The eldest member's assignor divides for the whole group, and nobody else plans while that member lives: one
that never returned would leave the group without plans.
"""

from concurrent.futures import Future
from threading import Thread
from typing import Final

from folkmoot.consumers.assignors.assignor import AssignmentInput, Assignor
from folkmoot.protocol.records import TopicPartition

LIMIT: Final = 8.0
"""Seconds. After a little more others would step in for the eldest member."""


class TakesTooLong(Exception):
    """An assignor has not answered in time."""


class TimeLimited:
    """Asks another assignor on a thread of its own, since a thread cannot be ended.

    One that is late keeps its thread; its answer is ignored, and it is not asked again before it has
    returned.
    """

    def __init__(self, assignor: Assignor, limit: float = LIMIT) -> None:
        self.name = assignor.name
        self._assignor = assignor
        self._limit = limit
        self._overdue: Thread | None = None

    def assign(self, given: AssignmentInput) -> dict[TopicPartition, str]:
        """As the other one does. Raises what it raises, or TakesTooLong after `limit` seconds."""
        if self._overdue is not None and self._overdue.is_alive():
            raise TakesTooLong(f"assignor {self.name} has not returned since it was asked before")
        answer: Future[dict[TopicPartition, str]] = Future()

        def work() -> None:
            try:
                answer.set_result(self._assignor.assign(given))
            except Exception as error:
                answer.set_exception(error)

        thread = Thread(target=work, name="folkmoot-group-assignor", daemon=True)
        thread.start()
        thread.join(self._limit)
        if not thread.is_alive():
            return answer.result(0.0)  # not waited for: an exit of the thread sets nothing
        self._overdue = thread
        raise TakesTooLong(f"assignor {self.name} gives no answer within {self._limit:g} s")
