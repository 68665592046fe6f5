"""What docs/operations.md and the dashboard say of metrics is what there is."""

import json
import re
from itertools import combinations
from typing import Any

from folkmoot.metrics.names import ALL
from tests.tree import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()
DASHBOARD = json.loads((ROOT / "docs" / "grafana.json").read_text())
FROM_ELSEWHERE = {"instance", "le"}
"""Labels that Prometheus adds, and those of buckets."""
NAME = r"\b(?:folkmoot|kafka)_(?!exporter)\w+"
# The README of danielqsj/kafka_exporter: names, and labels.
KAFKA_EXPORTER = {
    "kafka_brokers": (),
    **{
        f"kafka_topic_partition_{name}": ("topic", "partition")
        for name in (
            *("current_offset", "oldest_offset", "in_sync_replica", "leader"),
            *("leader_is_preferred", "replicas", "under_replicated_partition"),
        )
    },
    "kafka_consumergroup_current_offset": ("consumergroup", "topic", "partition"),
    "kafka_consumergroup_lag": ("consumergroup", "topic", "partition"),
    "kafka_consumergroup_members": ("consumergroup",),
}
SUFFIXES = ("_bucket", "_count", "_sum")


def known(names: set[str]) -> set[str]:
    """Those that are declared, among what may be a histogram's series."""
    declared = {each.name for each in ALL}
    histograms = {
        each.name + suffix for each in ALL for suffix in SUFFIXES if each.kind == "histogram"
    }
    return names & (declared | histograms)


def test_the_table_has_every_metric_with_its_kind_and_help() -> None:
    rows = re.findall(
        r"^\| `((?:folkmoot|kafka)_\w+)(?:\{(.+)\})?` \| (\w+) \| (.+) \|$", PAGE, re.MULTILINE
    )
    assert {
        name: (tuple(labels.split(", ")) if labels else (), kind, said)
        for name, labels, kind, said in rows
    } == {each.name: (each.labels, each.kind, each.help) for each in ALL}


def test_no_metric_of_the_page_is_invented() -> None:
    named = set(re.findall(NAME, PAGE))
    assert named == known(named)


def test_what_is_called_as_in_kafka_exporter_is_what_that_has_and_has_its_labels() -> None:
    ours = {each.name: each for each in ALL if not each.name.startswith("folkmoot_")}
    assert len(ours) == 9
    for name, each in ours.items():
        assert (each.labels, each.kind) == (KAFKA_EXPORTER[name], "gauge")


def test_names_have_their_units_and_are_declared_once() -> None:
    names = [each.name for each in ALL]
    assert len(set(names)) == len(names)
    for each in ALL:
        assert each.name.endswith("_total") == (each.kind == "counter")
        assert each.help.endswith(".")
        for unit in ("bytes", "seconds"):
            if unit in each.name:
                assert each.name.endswith((f"_{unit}", f"_{unit}_total", "_in_total"))


def panels() -> list[dict[str, Any]]:
    found = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
    assert len(found) > 20
    return found


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    (chosen,) = [
        each["query"]["query"]
        for each in DASHBOARD["templating"]["list"]
        if each["name"] == "instance"
    ]
    for expression in [*expressions(), chosen]:
        names = set(re.findall(NAME, expression))
        assert names == known(names), expression
        assert names or "process_resident_memory_bytes" in expression


def test_the_dashboard_tells_apart_by_labels_that_its_metrics_have() -> None:
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"]
            used = (
                set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
                if "legendFormat" in target
                else set()
            )
            used |= {
                name for group in re.findall(r"by \(([^)]+)\)", text) for name in group.split(", ")
            }
            used |= set(re.findall(r"(\w+)=~?\"", text))
            of_each = [
                set(each.labels) for each in ALL if re.search(rf"\b{each.name}(_bucket)?\b", text)
            ]
            for labels in of_each:
                assert used <= labels | FROM_ELSEWHERE, text


def test_a_counter_of_the_dashboard_is_a_rate_and_a_gauge_is_none() -> None:
    """But for offsets, which only grow while a partition has its leader."""
    for text in expressions():
        for each in ALL:
            for found in re.finditer(rf"(rate\(|increase\()?\b{each.name}(?:_bucket)?\b", text):
                is_rate = found[1] is not None
                assert is_rate == (each.kind != "gauge") or "current_offset" in each.name, text


def test_the_panels_of_the_dashboard_lie_side_by_side() -> None:
    places = [each["gridPos"] for each in DASHBOARD["panels"]]
    assert len({each["id"] for each in DASHBOARD["panels"]}) == len(places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or apart, (one, other)
    assert all(each["x"] + each["w"] <= 24 for each in places)
