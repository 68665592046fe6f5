"""Counters of requests, per request and never per record."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from folkmoot.brokers.server.purgatory import Request
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.histogram import Histogram, HistogramSnapshot
from folkmoot.protocol.messages import APIS

_NAMES: Final = {spec.request: api.name.lower() for api, spec in APIS.items()}


class ApiSnapshot(NamedTuple):
    """The requests of one api since the start."""

    received: int
    request_bytes: int
    response_bytes: int
    durations: HistogramSnapshot
    """From a request's arrival to its answer, with the time that it waited."""


class RequestCounters:
    """Requests and their bytes by api, errors by kind; all of it only grows. Owner: the event loop."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        """Errors answered, for a request or one of its entries, by the name of the error's class."""
        self.records_in = 0
        self.bytes_in = 0
        """Appended by producers; a repeated batch counts once."""
        self._received: Counter[type] = Counter()
        self._request_bytes: Counter[type] = Counter()
        self._response_bytes: Counter[type] = Counter()
        self._durations = {kind: Histogram() for kind in _NAMES}

    def count_request(self, body: Any, frames: Sequence[memoryview]) -> None:
        self._received[type(body)] += 1
        self._request_bytes[type(body)] += sum(map(len, frames))

    def count_response(
        self, request: Request, payloads: Sequence[bytes | memoryview], now: float
    ) -> None:
        self._response_bytes[type(request.body)] += sum(map(len, payloads))
        self._durations[type(request.body)].observe(now - request.began)

    def count_error(self, request: Request, error: FolkmootError, now: float) -> None:
        """Count an error. An unreadable request has no body and belongs to no api."""
        self.errors[type(error).__name__] += 1
        if request.body is not None:
            self._durations[type(request.body)].observe(now - request.began)

    def snapshot(self) -> dict[str, ApiSnapshot]:
        """The apis that were ever asked, by name."""
        return {
            _NAMES[kind]: ApiSnapshot(
                *(received, self._request_bytes[kind], self._response_bytes[kind]),
                self._durations[kind].snapshot(),
            )
            for kind, received in self._received.items()
        }
