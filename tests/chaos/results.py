"""What a cluster's run found, and the sum over all runs, as JSON."""

import fcntl
import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Result:
    """One cluster's run. Durations in seconds."""

    seed: int
    events: int
    seconds: float
    kinds: dict[str, int]
    slowest: dict[str, float]
    """By kind, until the last partition taken from its owner had another one; ZooKeeper was whole."""
    slowest_shaken: dict[str, float]
    """The same in rounds in which servers of ZooKeeper were killed or restarted."""
    zombies: dict[str, int]
    """Commits of zombies: how many were tried, and how many were refused, by what they met."""
    counts: dict[str, int]
    longest: dict[str, float]
    breaches: list[str] = field(default_factory=list)

    def table(self) -> str:
        lines = [f"seed {self.seed}: {self.events} events in {self.seconds:.0f} s"]
        for kind in sorted(self.kinds):
            share = self.kinds[kind] / max(1, self.events)
            calm, shaken = self.slowest.get(kind, 0.0), self.slowest_shaken.get(kind, 0.0)
            lines.append(
                f"  {kind:<16}{self.kinds[kind]:>6}{share:>7.1%}   slowest {calm:6.2f} s,"
                f" while servers restart {shaken:6.2f} s"
            )
        for title, some in (
            ("zombies", self.zombies),
            ("counts", self.counts),
            ("longest", self.longest),
        ):
            told = ", ".join(f"{name} {value:g}" for name, value in some.items())
            lines.append(f"  {title}: {told}")
        return "\n".join(lines)


class Totals:
    """The sum of all runs that a directory remembers; several processes may add theirs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def next_seed(self) -> int:
        return max((run["seed"] for run in self._runs()), default=0) + 1

    def add(self, result: Result) -> None:
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps([*self._runs(), asdict(result)], indent=1))
            os.replace(fresh, self._path)

    def _runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            json.loads(self._path.read_text()) if self._path.exists() else []
        )
        return found

    def summary(self) -> dict[str, Any]:
        runs = self._runs()
        sums = {name: Counter[str]() for name in ("kinds", "zombies", "counts")}
        worst = {name: dict[str, float]() for name in ("slowest", "slowest_shaken", "longest")}
        for run in runs:
            for name, counter in sums.items():
                counter.update(run[name])
            for name, found in worst.items():
                for key, value in run[name].items():
                    found[key] = round(max(found.get(key, 0.0), value), 2)
        return {
            "runs": len(runs),
            "failed": sum(bool(run["breaches"]) for run in runs),
            "seeds": sorted(run["seed"] for run in runs),
            "events": sum(run["events"] for run in runs),
            "seconds": round(sum(run["seconds"] for run in runs)),
            **{name: dict(counter) for name, counter in sums.items()},
            **worst,
        }
