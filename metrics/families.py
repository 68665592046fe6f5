"""From values to what Prometheus' client library writes out."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from folkmoot.metrics.names import MetricDeclaration
from folkmoot.protocol.errors import MissingExtra, pip_command
from folkmoot.protocol.histogram import BOUNDS, HistogramSnapshot

try:
    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
    from prometheus_client.core import Metric
    from prometheus_client.exposition import choose_encoder
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"metrics need prometheus_client, which is not installed: {pip_command('server')}"
    ) from error

__all__ = [
    "CollectorRegistry",
    "Metric",
    "PlatformCollector",
    "ProcessCollector",
    "choose_encoder",
    "family",
    "histogram",
    "singles",
]

_BOUNDS: Final = (*map(str, BOUNDS), "+Inf")

Labelled = Iterable[tuple[Sequence[str], float]]


def family(declared: MetricDeclaration, samples: Labelled) -> Metric:
    """A metric with a sample for each series: the values of its labels, and the series' value."""
    metric = Metric(declared.name.removesuffix("_total"), declared.help, declared.kind)
    for labels, value in samples:
        metric.add_sample(declared.name, dict(zip(declared.labels, labels, strict=True)), value)
    return metric


def singles(
    table: Iterable[MetricDeclaration], values: Mapping[str, Any], labels: Sequence[str] = ()
) -> list[Metric]:
    """The metrics of a table that have one value each, which a snapshot calls by their keys."""
    return [family(each, [(labels, float(values[each.key]))]) for each in table]


def histogram(
    declared: MetricDeclaration, series: Iterable[tuple[Sequence[str], HistogramSnapshot]]
) -> Metric:
    metric = Metric(declared.name, declared.help, declared.kind)
    for values, durations in series:
        labels = dict(zip(declared.labels, values, strict=True))
        counts = list(accumulate(durations.counts))
        for bound, count in zip(_BOUNDS, counts, strict=True):
            metric.add_sample(f"{declared.name}_bucket", {**labels, "le": bound}, count)
        metric.add_sample(f"{declared.name}_count", labels, counts[-1])
        metric.add_sample(f"{declared.name}_sum", labels, durations.total)
    return metric
