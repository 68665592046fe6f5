"""What a broker counts of requests, one by one and never record by record."""

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


class _Api:
    __slots__ = ("durations", "received", "request_bytes", "response_bytes")

    def __init__(self) -> None:
        self.received = self.request_bytes = self.response_bytes = 0
        self.durations = Histogram()


class RequestCounters:
    """Requests and their bytes by api, errors by kind; all of it only grows. Owner: the event loop."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        """Errors answered, for a request or one of its entries, by the name of the error's class."""
        self.records_in = 0
        self.bytes_in = 0
        """What producers have brought; a batch that came again counts once."""
        self._apis = {kind: _Api() for kind in _NAMES}

    def received(self, body: Any, frames: Sequence[memoryview]) -> None:
        api = self._apis[type(body)]
        api.received += 1
        api.request_bytes += sum(map(len, frames))

    def answered(
        self, request: Request, payloads: Sequence[bytes | memoryview], now: float
    ) -> None:
        api = self._apis[type(request.body)]
        api.response_bytes += sum(map(len, payloads))
        api.durations.observe(now - request.began)

    def refused(self, request: Request, error: FolkmootError, now: float) -> None:
        """One that could not be read has no body and belongs to no api."""
        self.errors[type(error).__name__] += 1
        if request.body is not None:
            self._apis[type(request.body)].durations.observe(now - request.began)

    def snapshot(self) -> dict[str, ApiSnapshot]:
        """By the api's name, those that were ever asked."""
        return {
            _NAMES[kind]: ApiSnapshot(
                each.received, each.request_bytes, each.response_bytes, each.durations.snapshot()
            )
            for kind, each in self._apis.items()
            if each.received
        }
