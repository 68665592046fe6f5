"""The application's polls, as the group thread sees them."""

from collections.abc import Callable
from math import inf


class Polls:
    """When the application last polled, and when to wake it. Times are of the member's clock.

    It is woken at the time of a reminder, and after half of `max_processing_time` without a poll: that cuts
    an iteration, whose next record then counts as a poll. Each of these times wakes it once.
    """

    def __init__(self, wake: Callable[[], None], max_processing_time: float | None) -> None:
        self.wake = wake
        self.polled_at: float | None = None
        """Written by any thread of the consumer."""
        self.remind_at = inf
        """Written by the consumer's thread."""
        self._half = (max_processing_time or inf) / 2
        self._woken_for = [inf, inf]

    def wake_in_time(self, now: float) -> float:
        """Wake the application if it is time, and return when it is time again."""
        due = inf
        for kind, at in enumerate((self.remind_at, (self.polled_at or 0.0) + self._half)):
            if at == self._woken_for[kind]:
                continue
            if at <= now:
                self._woken_for[kind] = at
                self.wake()
            else:
                due = min(due, at)
        return due
