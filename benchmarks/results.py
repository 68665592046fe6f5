"""What a scenario found, as plain data: written as JSON, read again for the tables and charts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

Better = Literal["higher", "lower"]


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
    """A line of the table of what must be reached: `figure` against `wanted`."""

    text: str
    figure: float
    wanted: float
    unit: str
    better: Better = "higher"

    @property
    def met(self) -> bool:
        if self.better == "higher":
            return self.figure >= self.wanted
        return self.figure <= self.wanted


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
    seconds: float = 0.0

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
            targets=[Target(**target) for target in plain["targets"]],
            charts=charts,
            notes=list(plain["notes"]),
            seconds=plain["seconds"],
        )


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
