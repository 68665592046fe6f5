"""What docs/operations.md and the dashboard say of metrics is what there is."""

import re

from folkmoot.metrics.names import ALL
from tests.tree import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()
SUFFIXES = ("_bucket", "_count", "_sum")


def known(names: set[str]) -> set[str]:
    """Those that are declared, among what may be a histogram's series."""
    declared = {each.name for each in ALL}
    histograms = {
        each.name + suffix for each in ALL for suffix in SUFFIXES if each.kind == "histogram"
    }
    return names & (declared | histograms)


def test_the_table_has_every_metric_with_its_kind_and_help() -> None:
    rows = re.findall(r"^\| `(folkmoot_\w+)(?:\{(.+)\})?` \| (\w+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert {
        name: (tuple(labels.split(", ")) if labels else (), kind, said)
        for name, labels, kind, said in rows
    } == {each.name: (each.labels, each.kind, each.help) for each in ALL}


def test_no_metric_of_the_page_is_invented() -> None:
    named = set(re.findall(r"\bfolkmoot_\w+", PAGE))
    assert named == known(named)


def test_names_have_their_units_and_are_declared_once() -> None:
    names = [each.name for each in ALL]
    assert len(set(names)) == len(names)
    for each in ALL:
        assert each.name.endswith("_total") == (each.kind == "counter")
        assert each.help.endswith(".")
        for unit in ("bytes", "seconds"):
            if unit in each.name:
                assert each.name.endswith((f"_{unit}", f"_{unit}_total", "_in_total"))
