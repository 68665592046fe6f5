"""What people read: tables in the terminal, in the docs and in the README, and the JSON behind them."""

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markdown import Markdown

from benchmarks.environment import peer_python
from benchmarks.peers import Unavailable
from benchmarks.programs import ROOT
from benchmarks.results import Cell, Report, Results, Target

PAGES: Final = (
    ROOT / "docs" / "measurements.md",
    ROOT / "docs" / "performance.md",
    ROOT / "README.md",
)
HEADLINE: Final = (
    ("produce record by record, `acks=1`", "produce, Folkmoot send(), 4,000 keys"),
    ("produce record by record, `acks=all`, three replicas, page cache", "acks=all, send()"),
    ("consume record by record", "consume, Folkmoot, record by record"),
    ("consume as Arrow columns", "consume, Folkmoot arrow()"),
    ("latency, p99, 1,000 records/s, linger 5 ms", "latency, p99, 1,000 records/s, linger 5 ms"),
    ("latency, p99, 50,000 records/s, linger 5 ms", "latency, p99, 50,000 records/s, linger 5 ms"),
    ("a broker is killed, until its partitions are writable", "leader killed, until writable"),
    (
        "a group member is killed, until its partitions are read",
        "groups, SIGKILL: last partition that moved served again",
    ),
    (
        "a member joins nine others, until its partitions are read",
        "groups, a tenth joins: last partition that moved served again",
    ),
)
"""Rows of the table beside Kafka: the text, and the target that has the figures."""

WIDTH: Final = 160
"""Characters of a line in a file or a pipe."""

# Kept in the JSON, and left out of the tables.
_HIDDEN: Final = ("client memory", "ZooKeeper RSS", "ZooKeeper RssAnon")
_MARKED: Final = re.compile(r"<!-- results: (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)

# The order of the page and of a run, what is asked for most first; what is not in it comes behind.
ORDER: Final = (
    "throughput",
    "latency",
    "replication",
    "limits",
    "compression",
    "schemas",
    "restart",
    "groups",
    "growth",
    "spark",
)

Rows = Sequence[Sequence[str]]


def order_key(name: str) -> tuple[int, str]:
    """Of a scenario among the others."""
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


def show(report: Report) -> None:
    """Print what the docs would get."""
    lines = []
    for results in report.scenarios:
        lines += ["", f"## {results.title} ({duration(results.seconds)})", "", *_tables(results)]
    rows = target_rows(report.scenarios)
    if len(rows) > 1:
        lines += ["", "## What was to be reached", "", *_markdown(rows)]
    Console(width=None if sys.stdout.isatty() else WIDTH).print(Markdown("\n".join(lines)))


def target_rows(scenarios: Iterable[Results]) -> list[list[str]]:
    """A head and a row for each line of what is to be reached."""
    rows = [["", "measured", "lowest – highest", "to be", "beside", "ratio", "to be", ""]]
    for target in (target for results in scenarios for target in results.targets):
        unit, bound = target.unit, "≥" if target.better == "higher" else "≤"
        spread = "" if target.spread is None else " – ".join(map(_plain, target.spread, [unit] * 2))
        rival_text = (
            "" if target.beside is None else f"{target.rival}: {_plain(target.beside, unit)}"
        )
        rows.append(
            [
                target.text,
                format_figure(target.figure, unit),
                spread,
                "" if target.wanted is None else f"{bound} {format_figure(target.wanted, unit)}",
                rival_text,
                "" if target.ratio is None else f"{number(target.ratio)} ×",
                "" if target.times is None else f"{bound} {target.times:g} ×",
                target.verdict,
            ]
        )
    return rows


def duration(seconds: float) -> str:
    minutes, remainder = divmod(round(seconds), 60)
    return f"{minutes} min {remainder:02} s" if minutes else f"{remainder} s"


def rows_of(cells: Sequence[Cell]) -> list[list[str]]:
    """A head and a row for each contender: the median, the spread, and the facts that any has."""
    all_facts = dict.fromkeys(name for cell in cells for name in cell.facts)
    facts = [name for name in all_facts if name not in _HIDDEN]
    rows = [["", cells[0].unit, "lowest – highest", *map(_head, facts)]]
    for cell in cells:
        spread = f"{number(min(cell.values))} – {number(max(cell.values))}"
        fact_cells = [_fact(name, cell.facts[name]) if name in cell.facts else "" for name in facts]
        rows.append([cell.contender, number(cell.median), spread, *fact_cells])
    return rows


def by_case(cells: Iterable[Cell]) -> list[tuple[str, list[Cell]]]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.case, []).append(cell)
    return list(groups.items())


def number(value: float) -> str:
    """Three figures, and a word for what is large."""
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    if value >= 10_000:
        return f"{value / 1e3:.0f} k"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_figure(value: float, unit: str) -> str:
    return _plain(value, unit) if unit == "bytes" else f"{number(value)} {unit}".strip()


def _plain(value: float, unit: str) -> str:
    return f"{value / 1e6:,.0f} MB" if unit == "bytes" else number(value)


def _fact(name: str, value: float) -> str:
    if name.endswith(("RSS", "RssAnon", "memory", "growth")):
        return f"{value / 1e6:,.0f} MB"
    if name.endswith("CPU"):
        return f"{value:.2f}"
    return number(value)


def _head(fact: str) -> str:
    return f"{fact}, s/M records" if fact.endswith("CPU") else fact


def load_earlier(path: Path) -> Report | None:
    """What an earlier run left; nothing if it is of another version, since a long run is worth more."""
    try:
        return Report.read(path) if path.exists() else None
    except ValueError as error:
        print(f"{path} is not read, and replaced: {error!r}", file=sys.stderr)
        return None


def save(report: Report, path: Path) -> None:
    """The JSON, with what it had of other scenarios kept.

    What is kept was measured beside the peers of its time: their versions stay, too.
    """
    merged, earlier = report, load_earlier(path)
    if earlier is not None:
        names = [results.name for results in report.scenarios]
        others = [each for each in earlier.scenarios if each.name not in names]
        everything = sorted([*others, *report.scenarios], key=lambda each: order_key(each.name))
        versions = {**earlier.versions, **report.versions}
        merged = replace(report, versions=versions, scenarios=everything)
    merged.write(path)
    print(f"written: {path}")


def draw(path: Path) -> None:
    """The charts of what the JSON has, beside it. The peers' environment has the library that draws."""
    try:
        python = peer_python()
    except Unavailable as reason:
        print(f"no charts: {reason}", file=sys.stderr)
        return
    subprocess.run([python, "-m", "benchmarks.charts", str(path.resolve())], cwd=ROOT, check=True)
    print(f"written: charts beside {path}")


# -- the docs' pages ----------------------------------------------------------------------------------


def write_docs(path: Path, pages: Sequence[Path] = PAGES) -> int:
    """Write what the JSON has between the marks of the pages; the text around them is written by hand."""
    if not path.exists():
        print(f"{path} is not there: run `make bench` first", file=sys.stderr)
        return 1
    report = Report.read(path)
    sections = {
        "machine": _machine(report),
        "headline": _headline(report),
        "targets": _targets(report),
    }
    for results in report.scenarios:
        sections[results.name] = _scenario(results)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        page.write_text(
            _MARKED.sub(lambda found: _fill_section(found, sections), text), encoding="utf-8"
        )
        print(f"written into {page}")
    return 0


def _fill_section(found: re.Match[str], sections: Mapping[str, Sequence[str]]) -> str:
    lines = sections.get(found["name"])
    if lines is None:
        return found[0]
    body = "\n".join(lines).strip()
    return f"<!-- results: {found['name']} -->\n{body}\n<!-- end -->"


def _machine(report: Report) -> list[str]:
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    lines = [
        f"Last measured {report.when} by `{report.command}`; each part says when it was.",
        f"{machine}.",
        "",
    ]
    for peer, versions in report.versions.items():
        version_list = ", ".join(f"{name} {version}" for name, version in versions.items())
        lines.append(f"- {peer}: {version_list}")
    lines += [f"- not there: {reason}" for reason in report.missing.values()]
    return lines


def _headline(report: Report) -> list[str]:
    """The figures that a newcomer asks for, beside Kafka's, as far as they were measured."""
    targets = {target.text: target for results in report.scenarios for target in results.targets}
    rows = [["", "Folkmoot", "Kafka", "better by"]]
    for text, name in HEADLINE:
        target = targets.get(name)
        if target is not None and target.beside is not None and target.ratio is not None:
            times = target.ratio if target.better == "higher" else 1 / target.ratio
            figures = [
                format_figure(figure, target.unit) for figure in (target.figure, target.beside)
            ]
            rows.append([text, *figures, f"{number(times)} ×"])
    return _markdown(rows)


def _targets(report: Report) -> list[str]:
    """The table of the terminal, and what our side cost."""
    targets = [target for results in report.scenarios for target in results.targets]
    rows = target_rows(report.scenarios)
    for row in rows[1:]:
        row[-1] = row[-1] if row[-1] == "met" else f"**{row[-1]}**"
    costs = ["CPU, memory, compression", *map(cost, targets)]
    wide = [[*row, used] for row, used in zip(rows, costs, strict=True)]
    met = sum(target.verdict == "met" for target in targets)
    return [f"{met} of {len(targets)} lines are met.", "", *_markdown(wide)]


def cost(target: Target) -> str:
    """CPU seconds per million records, peak memory, and compression, as far as they were measured."""
    facts = target.facts
    parts = []
    cpu = [f"{facts[f'{side} CPU']:.2f}" for side in ("client", "server") if f"{side} CPU" in facts]
    if cpu:
        parts.append(f"CPU {' + '.join(cpu)} s/M")
    for name, label in (("client growth", "client +"), ("broker RssAnon", "broker ")):
        if name in facts:
            parts.append(f"{label}{_plain(facts[name], 'bytes')}")
    if "compression" in facts:
        parts.append(f"{facts['compression']:.2f}:1")
    return ", ".join(parts)


def _scenario(results: Results) -> list[str]:
    took = duration(results.seconds)
    lines = [f"Measured {results.when}, commit {results.commit}, in {took}.", ""]
    for chart in results.charts:
        lines += [f"![{chart.title}](../benchmarks/results/{chart.name}.svg)", ""]
    return lines + _tables(results)


def _tables(results: Results) -> list[str]:
    lines = []
    for case, cells in by_case(results.cells):
        lines += [f"**{case}**", "", *_markdown(rows_of(cells)), ""]
    lines += [f"- {note}" for note in results.notes]
    lines += [f"- **failed**: {failure}" for failure in results.failed]
    return lines


def _markdown(rows: Rows) -> list[str]:
    head, *others = [
        "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows
    ]
    return [head, "|" + "---|" * len(rows[0]), *others]
