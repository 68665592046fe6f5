"""A partition's batches on their way: which one goes next, and when."""

from collections import deque
from math import inf

from folkmoot.producers.batches import Batch


class Queue:
    """A partition's batches in order; the last one grows until it is large enough or sealed.

    `under_way` is the batch whose answer is awaited; it may have expired, and is not in `batches`
    then. Until `retry_at` nothing is sent. Owner: the sender.
    """

    __slots__ = ("batches", "retry_at", "under_way")

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.under_way: Batch | None = None
        self.retry_at = -inf

    def ready_at(self, linger: float, full: int, *, hurry: bool) -> float:
        """When the first batch may be sent, as far as time decides it."""
        head = self.batches[0]
        if hurry or len(self.batches) > 1 or head.is_sealed or head.size >= full:
            return self.retry_at
        return max(self.retry_at, head.opened_at + linger)
