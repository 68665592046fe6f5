"""What a scenario found, as plain data: written as JSON, read again for the tables and charts."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

Number = int | float
"""In JSON an integer stays one."""
Better = Literal["higher", "lower"]
Verdict = Literal["met", "not met", "open"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One figure, measured in several rounds: one contender's answer to one question.

    `facts` are side measures (medians over the rounds): CPU seconds, memory, compression.
    """

    case: str
    contender: str
    unit: str
    values: Sequence[Number]
    better: Better = "higher"
    facts: Mapping[str, Number] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> tuple[Number, Number]:
        return min(self.values), max(self.values)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A line of the table of what must be reached: `figure` is what was measured.

    It has to reach `wanted`, or `times` what `rival` did in the same run, which is `beside`; or both.
    Whether it does is worked out from the figures each time, and never written down.
    """

    text: str
    figure: Number
    unit: str
    better: Better = "higher"
    wanted: Number | None = None
    spread: tuple[Number, Number] | None = None
    rival: str = ""
    beside: Number | None = None
    times: float | None = None
    facts: Mapping[str, Number] = field(default_factory=dict)
    """Of our cell: what it cost."""

    @property
    def ratio(self) -> float | None:
        """How many times the rival's figure ours is; None if there was none."""
        return self.figure / self.beside if self.beside else None

    @property
    def verdict(self) -> Verdict:
        """Open where the rival was not there."""
        pairs = ((self.figure, self.wanted), (self.ratio, self.times))
        for figure, bound in pairs:
            if figure is None or bound is None:
                continue
            if figure < bound if self.better == "higher" else figure > bound:
                return "not met"
        return "open" if self.times is not None and self.ratio is None else "met"


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line of a chart (x, y), or a colour of bars (x is the place of the group's name)."""

    name: str
    points: Sequence[tuple[Number, Number]]
    spread: Sequence[tuple[Number, Number]] = ()


def median_of(cell: Cell) -> float:
    return cell.median


def series_of(
    name: str,
    cells: Iterable[Cell | None],
    value: Callable[[Cell], Number] = median_of,
    *,
    spread: bool = False,
    scale: float = 1.0,
) -> Series:
    """A value of each cell at its place; peers that were not there leave theirs empty."""
    found = [(index, cell) for index, cell in enumerate(cells) if cell is not None]
    ranges = [tuple(bound / scale for bound in cell.spread) for _, cell in found]
    return Series(
        name=name,
        points=[(index, value(cell) / scale) for index, cell in found],
        spread=[(low, high) for low, high in ranges] if spread else (),
    )


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A picture of some of the cells. `groups` names the groups of bars, or the x axis's values."""

    name: str
    title: str
    kind: Literal["bars", "lines"]
    unit: str
    series: Sequence[Series]
    groups: Sequence[str] = ()
    x_title: str = ""
    log_x: bool = False
    log_y: bool = False


@dataclass(kw_only=True)
class Results:
    """All that one scenario found. `notes` are sentences for the reader of the table."""

    name: str
    title: str
    cells: list[Cell] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """What could not be measured, and why."""
    seconds: float = 0.0
    when: str = ""
    """When it was measured, and of which commit: a report may have scenarios of several runs."""
    commit: str = ""

    def find(self, case: str, contender: str) -> Cell | None:
        """The cell of that question and contender; None if that peer was not there."""
        for cell in self.cells:
            if cell.case == case and cell.contender == contender:
                return cell
        return None

    def series(
        self,
        cases: Sequence[str],
        contenders: Iterable[str],
        value: Callable[[Cell], Number] = median_of,
        *,
        spread: bool = False,
        scale: float = 1.0,
    ) -> list[Series]:
        """One for each contender that has any of the cases."""
        found = {
            contender: [self.find(case, contender) for case in cases] for contender in contenders
        }
        return [
            series_of(contender, cells, value, spread=spread, scale=scale)
            for contender, cells in found.items()
            if any(cells)
        ]

    def judge(
        self,
        text: str,
        ours: Cell | None,
        theirs: Cell | None = None,
        *,
        fact: str = "",
        unit: str = "",
        better: Better | None = None,
        wanted: Number | None = None,
        times: float | None = None,
        worst: bool = False,
    ) -> None:
        """A target on the medians of two cells, or on a fact of them, if ours was measured.

        Without the rival's cell it may stay open. `worst`: our highest figure counts where less is better.
        """
        if ours is None:
            return
        figure: Number = ours.facts[fact] if fact else ours.median
        if worst and ours.better == "lower":
            figure = max(ours.values)
        beside = None
        if theirs is not None:
            beside = theirs.facts[fact] if fact else theirs.median
        target = Target(
            text=text,
            figure=figure,
            unit=unit or ours.unit,
            better=better or ours.better,
            wanted=wanted,
            spread=None if fact else ours.spread,
            rival="" if theirs is None else theirs.contender,
            beside=beside,
            times=times,
            facts=ours.facts,
        )
        self.targets.append(target)

    def limit(
        self,
        text: str,
        figure: Number,
        most: Number,
        unit: str = "",
        facts: Mapping[str, Number] | None = None,
    ) -> None:
        """A target that is met by no more than `most`."""
        target = Target(
            text=text, figure=figure, wanted=most, unit=unit, better="lower", facts=facts or {}
        )
        self.targets.append(target)


@dataclass(kw_only=True)
class Report:
    """A whole run: what was measured where, with what. Written and read as JSON."""

    when: str
    command: str
    machine: Mapping[str, str]
    versions: dict[str, Mapping[str, str]]
    missing: dict[str, str] = field(default_factory=dict)
    scenarios: list[Results] = field(default_factory=list)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Report":
        """Raises ValueError for the JSON of another version."""
        return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), cls)
