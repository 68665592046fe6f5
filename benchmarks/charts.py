"""Charts as SVG, written by hand: bars that lie, lines over axes; nothing but text, boxes and strokes.

A picture is 800 units wide and as high as it needs. Colours belong to systems, so that one finds them
again in every chart; shades tell one system's ways apart.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from benchmarks.results import Chart, Series

WIDTH: Final = 800
MARGIN: Final = 16
FONT: Final = "font-family='system-ui, Segoe UI, Helvetica, Arial, sans-serif'"
INK, FAINT, GRID = "#1f2933", "#616e7c", "#e4e7eb"
SMALL, TITLE = 12, 16
BAR, GAP, GROUP_GAP = 16, 3, 10
PLOT_HEIGHT: Final = 300

# The first word of a name says whose colour it has; its ways take shade after shade.
_SHADES: Final = {
    "folkmoot": ("#1b5fa8", "#4f97d9", "#9cc7ee", "#0b3c70", "#6cb3c9"),
    "kafka": ("#c2620c", "#e8954a", "#f3c192", "#7d3f08"),
    "redis": ("#b03a3a", "#d98080"),
    "nats": ("#3c8c4a", "#8cc596"),
    "": ("#52606d", "#9aa5b1", "#cbd2d9", "#323f4b"),
}


def draw(chart: Chart) -> str:
    return _bars(chart) if chart.kind == "bars" else _lines(chart)


# -- bars ---------------------------------------------------------------------------------------------


def _bars(chart: Chart) -> str:
    """A group for each name, in it a bar for each series, its value behind it."""
    left = MARGIN + max(_text_width(name) for name in ("", *chart.groups)) + 8
    right = WIDTH - MARGIN - 64
    top = 62 if len(chart.series) > 1 else 44
    most = max((y for each in chart.series for y in _values(each)), default=1.0) or 1.0
    colours = _colours(
        chart.groups if len(chart.series) == 1 else [each.name for each in chart.series]
    )
    parts = [_title(chart)]
    if len(chart.series) > 1:
        parts += _legend(chart.series, colours, 44)
    y = float(top)
    for place, group in enumerate(chart.groups):
        # Not everybody takes part in everything, and who does not needs no room.
        there = [n for n, each in enumerate(chart.series) if place in (x for x, _ in each.points)]
        height = max(1, len(there)) * (BAR + GAP) - GAP
        parts.append(_text(left - 8, y + height / 2 + 4, group, anchor="end"))
        for row, number in enumerate(there):
            colour = colours[place if len(chart.series) == 1 else number]
            at, scale = y + row * (BAR + GAP), (right - left) / most
            parts += _bar(chart.series[number], place, colour, left, at, scale)
        y += height + GROUP_GAP
    parts.append(_line(left, top - 4, left, y - GROUP_GAP + 4, FAINT))
    return _picture(chart, parts, y + MARGIN)


def _bar(
    series: Series, place: int, colour: str, left: float, y: float, scale: float
) -> Iterator[str]:
    for number, (x, value) in enumerate(series.points):
        if x != place:
            continue
        end = left + value * scale
        yield (
            f"<rect x='{left:.1f}' y='{y:.1f}' width='{max(1.0, end - left):.1f}' height='{BAR}' "
            f"fill='{colour}'/>"
        )
        if series.spread:
            low, high = (left + each * scale for each in series.spread[number])
            middle = y + BAR / 2
            yield _line(low, middle, high, middle, INK)
            yield from (_line(at, middle - 3, at, middle + 3, INK) for at in (low, high))
            end = max(end, high)
        yield _text(end + 6, y + BAR - 4, _short(value))


def _values(series: Series) -> Iterator[float]:
    yield from (y for _, y in series.points)
    yield from (high for _, high in series.spread)


# -- lines --------------------------------------------------------------------------------------------


def _lines(chart: Chart) -> str:
    """Series over two axes; `groups` may name the places on the x axis."""
    colours = _colours([each.name for each in chart.series])
    xs = [x for each in chart.series for x, _ in each.points] or [0.0]
    ys = [y for each in chart.series for y in _values(each)] or [0.0]
    left, right, top = MARGIN + 56, WIDTH - MARGIN - 24, 44 + 20 * _legend_rows(chart.series)
    bottom = top + PLOT_HEIGHT
    across = _Axis(xs, chart.log_x, left, right, from_zero=False)
    up = _Axis(ys, chart.log_y, bottom, top, from_zero=True)
    parts = [_title(chart), *_legend(chart.series, colours, 44)]
    for y in up.ticks():
        parts.append(_line(left, up.at(y), right, up.at(y), GRID))
        parts.append(_text(left - 8, up.at(y) + 4, _short(y), anchor="end"))
    named: Iterable[tuple[float, str]] = enumerate(chart.groups)
    if not chart.groups:
        named = [(x, _short(x)) for x in across.ticks()]
    for x, name in named:
        parts.append(_line(across.at(x), bottom, across.at(x), bottom + 4, FAINT))
        parts.append(_text(across.at(x), bottom + 18, name, anchor="middle"))
    parts.append(_line(left, bottom, right, bottom, FAINT))
    parts.append(_text((left + right) / 2, bottom + 38, chart.x_title, FAINT, "middle"))
    for series, colour in zip(chart.series, colours, strict=True):
        places = [(across.at(x), up.at(y)) for x, y in series.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>" for x, y in places]
    return _picture(chart, parts, bottom + 38 + MARGIN)


class _Axis:
    """Where values lie between two places, linearly or by their logarithm."""

    def __init__(
        self, values: Sequence[float], log: bool, start: float, end: float, *, from_zero: bool
    ) -> None:
        self._log = log and min(values) > 0
        self._start, self._end = start, end
        low, high = min(values), max(values)
        if self._log:
            low, high = math.log10(low), math.log10(high)
            if from_zero:
                low, high = math.floor(low), math.ceil(high)
        elif from_zero:
            low = min(0.0, low)
        self._low, self._high = low, high if high > low else low + 1

    def at(self, value: float) -> float:
        value = math.log10(value) if self._log else value
        share = (value - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        if self._log:
            return [10.0**n for n in range(math.ceil(self._low), math.floor(self._high) + 1)]
        raw = (self._high - self._low) / 5
        size = 10 ** math.floor(math.log10(raw))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
        first = math.ceil(self._low / step)
        return [n * step for n in range(first, math.floor(self._high / step) + 1)]


# -- both ---------------------------------------------------------------------------------------------


def _colours(names: Iterable[str]) -> list[str]:
    """One for each name: its system's, in the next shade that is free."""
    used: dict[str, int] = {}
    colours = []
    for name in names:
        lower = name.lower()
        system = next((each for each in _SHADES if each and each in lower.split("'")[0]), "")
        system = "kafka" if "confluent" in lower else system
        shades = _SHADES[system]
        colours.append(shades[used.get(system, 0) % len(shades)])
        used[system] = used.get(system, 0) + 1
    return colours


def _legend_rows(series: Sequence[Series]) -> int:
    return sum(1 for _ in _rows([each.name for each in series]))


def _rows(names: Sequence[str]) -> Iterator[list[tuple[int, float]]]:
    """Which names stand in which row of the legend, and where each begins."""
    row: list[tuple[int, float]] = []
    x = float(MARGIN)
    for number, name in enumerate(names):
        width = _text_width(name) + 34
        if row and x + width > WIDTH - MARGIN:
            yield row
            row, x = [], float(MARGIN)
        row.append((number, x))
        x += width
    if row:
        yield row


def _legend(series: Sequence[Series], colours: Sequence[str], top: float) -> Iterator[str]:
    for line, row in enumerate(_rows([each.name for each in series])):
        y = top + 20 * line
        for number, x in row:
            yield f"<rect x='{x:.1f}' y='{y - 10:.1f}' width='12' height='12' fill='{colours[number]}'/>"
            yield _text(x + 18, y, series[number].name)


def _title(chart: Chart) -> str:
    unit = f" <tspan font-weight='normal' font-size='{SMALL}' fill='{FAINT}'>{escape(chart.unit)}</tspan>"
    return (
        f"<text x='{MARGIN}' y='22' font-size='{TITLE}' font-weight='600' fill='{INK}'>"
        f"{escape(chart.title)}{unit}</text>"
    )


def _picture(chart: Chart, parts: Iterable[str], height: float) -> str:
    body = "\n".join(part for part in parts if part)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}' "
        f"width='{WIDTH}' height='{height:.0f}' role='img' {FONT} font-size='{SMALL}'>\n"
        f"<title>{escape(chart.title)} ({escape(chart.unit)})</title>\n"
        f"<rect width='100%' height='100%' fill='#ffffff'/>\n{body}\n</svg>\n"
    )


def _text(x: float, y: float, text: str, fill: str = INK, anchor: str = "start") -> str:
    if not text:
        return ""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{fill}'>{escape(text)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}'/>"


def _text_width(text: str) -> float:
    return len(text) * SMALL * 0.54


def _short(value: float) -> str:
    for size, mark in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= size:
            return f"{value / (1e3 if mark == ' k' else size):.3g}{mark}"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
