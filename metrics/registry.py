"""Metrics of the schema registry's server, for Prometheus."""

from collections.abc import Iterator
from typing import Protocol

from folkmoot.metrics import names
from folkmoot.metrics.families import (
    CollectorRegistry,
    Metric,
    PlatformCollector,
    ProcessCollector,
    choose_encoder,
    family,
    histogram,
)
from folkmoot.protocol.histogram import HistogramSnapshot


class RequestCounters(Protocol):
    """The server's counters."""

    def requests(self) -> dict[tuple[str, str], int]:
        """Requests answered, by method and status."""
        ...

    def seconds(self) -> HistogramSnapshot: ...


class RegistryMetrics:
    """The page `/metrics` of the server, which serves it itself."""

    def __init__(self, counters: RequestCounters) -> None:
        self._counters = counters
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def collect(self) -> Iterator[Metric]:
        yield family(names.REGISTRY_REQUESTS, sorted(self._counters.requests().items()))
        yield histogram(names.REGISTRY_SECONDS, [((), self._counters.seconds())])

    def page(self, accept: str) -> tuple[str, bytes]:
        """Return content type and body for a header `Accept`."""
        encode, kind = choose_encoder(accept)
        return kind, encode(self._registry)
