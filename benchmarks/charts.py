"""Draws the charts of a report: `python -m benchmarks.charts latest.json` writes SVG files beside it.

It runs in the peers' environment, which has matplotlib, and so imports nothing else. Colours belong to
systems, so that a reader finds them again in every chart; shades separate the ways of one system.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib  # type: ignore[import-not-found]
from matplotlib.axes import Axes  # type: ignore[import-not-found]
from matplotlib.figure import Figure  # type: ignore[import-not-found]

WIDTH: Final = 8.0
LINES_HEIGHT: Final = 4.0
BAR: Final = 0.2
"""Inches, as above."""
GAP: Final = 0.6
"""Between two groups of bars, in bars."""
STYLE: Final = {
    "svg.fonttype": "none",
    "svg.hashsalt": "folkmoot",  # ids that are the same each time
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
}
# A word of a contender's name decides its colours.
COLOURS: Final = {
    "folkmoot": ("#1b5fa8", "#4f97d9", "#9cc7ee", "#0b3c70", "#6cb3c9"),
    "kafka": ("#c2620c", "#e8954a", "#f3c192", "#7d3f08"),
    "redis": ("#b03a3a", "#d98080"),
    "nats": ("#3c8c4a", "#8cc596"),
    "": ("#52606d", "#9aa5b1", "#cbd2d9", "#323f4b"),
}

Chart = Mapping[str, Any]
"""A `results.Chart` as it stands in JSON."""


def draw_all(report: Path) -> None:
    scenarios = json.loads(report.read_text(encoding="utf-8"))["scenarios"]
    with matplotlib.rc_context(STYLE):
        for chart in (chart for results in scenarios for chart in results["charts"]):
            target = report.with_name(f"{chart['name']}.svg")
            draw(chart).savefig(target, metadata={"Date": None}, bbox_inches="tight")


def draw(chart: Chart) -> Figure:
    is_bars = chart["kind"] == "bars"
    bars = sum(len(series["points"]) for series in chart["series"])
    height = 1.0 + BAR * (bars + GAP * len(chart["groups"])) if is_bars else LINES_HEIGHT
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_subplot()
    (draw_bars if is_bars else draw_lines)(axes, chart)
    axes.set_title(f"{chart['title']} ({chart['unit']})", loc="left")
    if len(chart["series"]) > 1:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def draw_bars(axes: Axes, chart: Chart) -> None:
    """A group for each name, in it a bar for each series that has a value there."""
    several = len(chart["series"]) > 1
    names = [each["name"] for each in chart["series"]] if several else chart["groups"]
    colours = colours_of(names)
    row, middles = 0.0, []
    for position in range(len(chart["groups"])):
        first = row
        for number, series in enumerate(chart["series"]):
            for point, (x, _) in enumerate(series["points"]):
                if x == position:
                    draw_bar(axes, row, series, point, colours[number if several else position])
                    row += 1
        middles.append((first + row - 1) / 2)
        row += GAP
    axes.set_yticks(middles, chart["groups"])
    axes.invert_yaxis()


def draw_bar(axes: Axes, row: float, series: Mapping[str, Any], point: int, colour: str) -> None:
    """One bar, its range, and its value behind it."""
    value = end = series["points"][point][1]
    axes.barh(row, value, 0.85, color=colour, label=series["name"] if point == 0 else None)
    if series["spread"]:
        low, high = series["spread"][point]
        axes.errorbar((low + high) / 2, row, xerr=(high - low) / 2, color="0.2", capsize=2)
        end = max(value, high)
    axes.annotate(
        f"{value:.3g}", (end, row), (4, 0), textcoords="offset points", verticalalignment="center"
    )


def draw_lines(axes: Axes, chart: Chart) -> None:
    """Series over two axes; groups may name the places on the x axis."""
    colours = colours_of(each["name"] for each in chart["series"])
    for series, colour in zip(chart["series"], colours, strict=True):
        positions, values = [x for x, _ in series["points"]], [y for _, y in series["points"]]
        axes.plot(positions, values, "o-", color=colour, label=series["name"])
    axes.set_xscale("log" if chart["log_x"] else "linear")
    axes.set_yscale("log" if chart["log_y"] else "linear")
    axes.grid(axis="y", color="0.9")
    axes.set_xlabel(chart["x_title"])
    if not chart["log_y"]:
        axes.set_ylim(bottom=0)
    if chart["groups"]:
        axes.set_xticks(range(len(chart["groups"])), chart["groups"], rotation=20, ha="right")


def colours_of(names: Iterable[str]) -> list[str]:
    """One for each name: its system's, in the next shade."""
    used: Counter[str] = Counter()
    colours = []
    for name in names:
        system = next(each for each in COLOURS if each in name.lower())
        shades = COLOURS[system]
        colours.append(shades[used[system] % len(shades)])
        used[system] += 1
    return colours


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]))
