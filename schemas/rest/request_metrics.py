"""The server's counters."""

from collections import Counter

from folkmoot.protocol.histogram import Histogram, HistogramSnapshot


class RequestMetrics:
    """Requests by method and status, and how long they took. Owner: the event loop."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds = Histogram()

    def note(self, method: str, status: int, seconds: float) -> None:
        self._requests[method, str(status)] += 1
        self._seconds.observe(seconds)

    def requests(self) -> dict[tuple[str, str], int]:
        """How many requests were answered, by method and status."""
        return dict(self._requests)

    def seconds(self) -> HistogramSnapshot:
        """From the first byte of a request to its answer."""
        return self._seconds.snapshot()
