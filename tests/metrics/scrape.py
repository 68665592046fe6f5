"""Reading the pages as Prometheus and a probe do."""

import json
from collections.abc import Iterable
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from folkmoot.metrics.names import MetricDeclaration

TIMEOUT = 20.0


def page(address: str, path: str) -> tuple[int, str]:
    """Status and body."""
    try:
        with urlopen(f"http://{address}/{path}", timeout=TIMEOUT) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def health(address: str, path: str) -> tuple[int, dict[str, Any]]:
    status, body = page(address, path)
    return status, json.loads(body)


class Scraped:
    """What one look at `/metrics` has found."""

    def __init__(self, address: str) -> None:
        status, text = page(address, "metrics")
        assert status == 200, text
        self.families = {
            each.name: each
            for each in text_string_to_metric_families(text)
            if each.name.startswith(("folkmoot_", "kafka_"))
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        """The value of the one series that has these labels, among others; None if there is none."""
        found = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) < 2, f"{name} {labels}: {found}"
        return found[0] if found else None

    def assert_declared(self, declared: Iterable[MetricDeclaration]) -> None:
        """All that is declared is there, with its kind, help and labels, and nothing else is."""
        shown = {
            (
                name + "_total" * (each.type == "counter"),
                each.type,
                each.documentation,
                frozenset(label for one in each.samples for label in one.labels) - {"le"},
            )
            for name, each in self.families.items()
        }
        assert shown == {
            (each.name, each.kind, each.help, frozenset(each.labels)) for each in declared
        }
