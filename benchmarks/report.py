"""What people read: tables in the terminal and in docs/performance.md, and the JSON behind them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.results import Cell, Report, Target

Rows = Sequence[Sequence[str]]


def terminal(report: Report) -> str:
    lines: list[str] = []
    for results in report.scenarios:
        lines += ["", f"== {results.title} ({results.seconds:.0f} s)"]
        for case, cells in by_case(results.cells):
            lines += ["", case, *_aligned(rows_of(cells))]
        lines += ["", *(f"* {note}" for note in results.notes)]
        lines += ["", *map(verdict, results.targets)]
    return "\n".join(lines)


def verdict(target: Target) -> str:
    """A line such as: 2.3 x confluent-kafka, target at least 2 x: met"""
    bound = "at least" if target.better == "higher" else "at most"
    said = "met" if target.met else "not met"
    figure, wanted = shown(target.figure, target.unit), shown(target.wanted, target.unit)
    return f"{target.text}: {figure}, target {bound} {wanted}: {said}"


def rows_of(cells: Sequence[Cell]) -> list[list[str]]:
    """A head and a row for each contender: the median, the spread, and the facts that any has."""
    facts = list(dict.fromkeys(name for cell in cells for name in cell.facts))
    rows = [["", cells[0].unit, "lowest – highest", *facts]]
    for cell in cells:
        spread = f"{number(min(cell.values))} – {number(max(cell.values))}"
        noted = [_fact(name, cell.facts[name]) if name in cell.facts else "" for name in facts]
        rows.append([cell.contender, number(cell.median), spread, *noted])
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


def shown(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 1e6:,.0f} MB"
    return f"{number(value)} {unit}".strip()


def _fact(name: str, value: float) -> str:
    if name.endswith(("RSS", "RssAnon", "memory", "growth")):
        return f"{value / 1e6:,.0f} MB"
    if name.endswith("CPU"):
        return f"{value:.2f} s"
    return number(value)


def _aligned(rows: Rows) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *rest = (
            text.ljust(width) if place == 0 else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(("  " + first, *rest)).rstrip())
    return lines


def save(report: Report, path: Path) -> None:
    """The JSON, with what it had of other scenarios kept, and the charts beside it."""
    if path.exists():
        names = [results.name for results in report.scenarios]
        kept = [each for each in Report.read(path).scenarios if each.name not in names]
        report.scenarios = sorted((*kept, *report.scenarios), key=lambda each: each.name)
    report.write(path)
    print(f"\nwritten to {path}")


def into_docs(path: Path) -> int:
    return 0
