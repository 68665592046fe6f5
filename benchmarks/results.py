"""What a scenario found, as plain data: written as JSON, read again for the tables and charts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

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
    values: Sequence[float]
    better: Better = "higher"
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return median(self.values)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A line of the table of what must be reached: `figure` is what was measured.

    It has to reach `wanted`, or `times` what `rival` did in the same run, which is `beside`; or both.
    Whether it does is worked out from the figures each time, and never written down.
    """

    text: str
    figure: float
    unit: str
    better: Better = "higher"
    wanted: float | None = None
    spread: tuple[float, float] | None = None
    rival: str = ""
    beside: float | None = None
    times: float | None = None
    facts: Mapping[str, float] = field(default_factory=dict)
    """Of our cell: what it cost."""

    @property
    def ratio(self) -> float | None:
        """How many times the rival's figure ours is; None if there was none."""
        return self.figure / self.beside if self.beside else None

    @property
    def verdict(self) -> Verdict:
        """Open if it cannot be told, since the rival was not there."""
        pairs = ((self.figure, self.wanted), (self.ratio, self.times))
        for figure, bound in pairs:
            if figure is None or bound is None:
                continue
            if figure < bound if self.better == "higher" else figure > bound:
                return "not met"
        return "open" if self.times is not None and self.ratio is None else "met"


def compared(
    text: str,
    ours: Cell,
    theirs: Cell | None = None,
    *,
    wanted: float | None = None,
    times: float | None = None,
    better: Better = "higher",
) -> Target:
    """A target on the medians of two cells. Without the rival's it may stay open."""
    return Target(
        text=text,
        figure=ours.median,
        unit=ours.unit,
        better=better,
        wanted=wanted,
        spread=(min(ours.values), max(ours.values)),
        rival="" if theirs is None else theirs.contender,
        beside=None if theirs is None else theirs.median,
        times=times,
        facts=ours.facts,
    )


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line of a chart (x, y), or a colour of bars (x is the place of the group's name)."""

    name: str
    points: Sequence[tuple[float, float]]
    spread: Sequence[tuple[float, float]] = ()


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

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Results":
        charts = []
        for chart in plain["charts"]:
            series = [
                Series(
                    name=each["name"],
                    points=[(x, y) for x, y in each["points"]],
                    spread=[(low, high) for low, high in each["spread"]],
                )
                for each in chart["series"]
            ]
            charts.append(Chart(**{**chart, "series": series}))
        return cls(
            name=plain["name"],
            title=plain["title"],
            cells=[Cell(**cell) for cell in plain["cells"]],
            targets=[_target(target) for target in plain["targets"]],
            charts=charts,
            notes=list(plain["notes"]),
            failed=list(plain["failed"]),
            seconds=plain["seconds"],
            when=plain["when"],
            commit=plain["commit"],
        )


def _target(plain: Mapping[str, Any]) -> Target:
    spread = plain["spread"]
    return Target(**{**plain, "spread": None if spread is None else (spread[0], spread[1])})


@dataclass(kw_only=True)
class Report:
    """A whole run: what was measured where, with what. Written and read as JSON."""

    when: str
    command: str
    seed: int
    machine: Mapping[str, str]
    versions: Mapping[str, Mapping[str, str]]
    missing: Mapping[str, str] = field(default_factory=dict)
    scenarios: list[Results] = field(default_factory=list)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        plain = {**asdict(self), "scenarios": [each.plain() for each in self.scenarios]}
        path.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Report":
        plain = json.loads(path.read_text(encoding="utf-8"))
        scenarios = [Results.of(each) for each in plain.pop("scenarios")]
        return cls(**plain, scenarios=scenarios)
