"""What scenarios stand on: peers and servers, records, and rounds in alternation.

A scenario is a module `bench_<name>.py` with `TITLE` and `run(context)`, which fills `context.results`. It
lists contenders, each a function that measures once; they take turns, so that other work of the machine
hits all of them alike: one round that is not counted (warm-up: JIT, caches, imports), then the counted
ones, each in another order.
"""

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, Self, TypeVar

from benchmarks.peers import Server
from benchmarks.programs import Outcome
from benchmarks.records import RecordSets
from benchmarks.results import Better, Cell, Results

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured. One measurement aims at `seconds` at the speed that is expected."""

    name: str
    rounds: int
    seconds: float
    warm_up: bool = True

    @property
    def side_rounds(self) -> int:
        """Of what takes long: a group's life, latency in all its cases."""
        return max(1, self.rounds - 1)

    @property
    def spare_rounds(self) -> int:
        """Of what no target is about."""
        return max(1, self.rounds - 2)


FULL: Final = Scale(name="full", rounds=3, seconds=2.5)
QUICK: Final = Scale(name="quick", rounds=1, seconds=1.0, warm_up=False)
SMOKE: Final = Scale(name="smoke", rounds=1, seconds=0.01, warm_up=False)


SEED: Final = 4

# Records sent and read by a server that is slow until it has compiled itself.
JIT_WARM_UP_RECORDS: Final = 300_000


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement: the figure, and what is noted beside it."""

    value: float
    facts: Mapping[str, float] = field(default_factory=dict)


class WrongCount(Exception):
    """Records are missing, or there are more than were sent: the figure would be worth nothing."""


Measure = Callable[[], Sample]
Part = tuple[str, str]
"""A case, and who was measured in it."""


def rate_of(outcome: Outcome, **more: float) -> Sample:
    """Records a second, with the client's and the servers' use beside it."""
    return Sample(value=outcome.rate, facts={**outcome.facts, **more})


class Context:
    """What a scenario is given. Used as `with`: at its end all servers are stopped, all data removed.

    Servers are started when they are first asked for and live until the end of the scenario, so that
    a JVM is warm and starting costs no round; between two measurements the idle ones wait for
    requests. The main thread uses it.
    """

    def __init__(
        self, peers: Mapping[str, type[Server]], scale: Scale, results: Results, work: Path
    ) -> None:
        self.peers = peers
        self.scale = scale
        self.results = results
        self.work = work
        self.records = RecordSets(work / "records", SEED)
        self.is_warming_up = False
        self._servers: dict[str, Server] = {}
        self._topics = 0

    def has(self, peer: str) -> bool:
        return peer in self.peers

    def server(self, peer: str) -> Server:
        """The scenario's server of a peer that is there."""
        if peer not in self._servers:
            server = self.peers[peer](self.work / peer)
            # Remembered first, so that it is stopped even if its start is interrupted.
            self._servers[peer] = server
            server.start()
            if server.compiles_as_it_runs:
                self._warm_up_jit(server, peer)
        return self._servers[peer]

    def _warm_up_jit(self, server: Server, peer: str) -> None:
        """Has a new server do what it will be measured at, besides the rounds that do not count."""
        records = self.records.get("small", JIT_WARM_UP_RECORDS)
        topic = self.new_topic(peer, 12)
        server.produce(topic, records.path, records.count)
        server.consume(topic, records.count, "consume", 0)
        server.delete_topic(topic)

    def new_topic(self, peer: str, partitions: int) -> str:
        """An empty topic of a name not used before."""
        self._topics += 1
        topic = f"bench-{self._topics}"
        self.server(peer).create_topic(topic, partitions)
        return topic

    def print_status(self, text: str) -> None:
        print(text, flush=True)

    def attempt(self, label: str, measure: Callable[[], T]) -> T | None:
        """A measurement that may fail: a long run continues without it, and reports it at its end."""
        try:
            return measure()
        except Exception as error:
            traceback.print_exc()
            lines = str(error).strip().splitlines() or [""]
            self.results.failed.append(f"{label}: {type(error).__name__}: {lines[0]}")
            return None

    def rotation(
        self, names: Sequence[str], rounds: int | None = None, *, warm_up: bool = True
    ) -> Iterator[str]:
        """The next contender, round after round, each in another order; see `is_warming_up`."""
        warm_ups = 1 if warm_up and self.scale.warm_up else 0
        for number in range(-warm_ups, rounds or self.scale.rounds):
            first = number % len(names)
            for name in (*names[first:], *names[:first]):
                settle()
                self.is_warming_up = number < 0
                yield name
        self.is_warming_up = False

    def compare(
        self,
        title: str,
        contenders: Mapping[str, Callable[[], Mapping[Part, Sample]]],
        rounds: int | None = None,
        *,
        warm_up: bool = True,
    ) -> dict[Part, list[Sample]]:
        """Measures all contenders in turn; → the samples that count, by what each is of."""
        samples_by_part: dict[Part, list[Sample]] = {}
        self.print_status(f"-- {title}")
        for name in self.rotation(list(contenders), rounds, warm_up=warm_up):
            found = self.attempt(f"{title}, {name}", contenders[name])
            for part, sample in (found or {}).items():
                mark = " (warm-up)" if self.is_warming_up else ""
                label = part[1] if part[0] == title else ", ".join(part)
                self.print_status(f"   {label}: {sample.value:,.4g}{mark}")
                if not self.is_warming_up:
                    samples_by_part.setdefault(part, []).append(sample)
        return samples_by_part

    def alternate(
        self,
        case: str,
        unit: str,
        contenders: Mapping[str, Measure],
        rounds: int | None = None,
        better: Better = "higher",
        *,
        warm_up: bool = True,
    ) -> list[Cell]:
        """Measures all contenders in turn in one case, and adds a cell of each."""

        def measure_case(name: str) -> dict[Part, Sample]:
            return {(case, name): contenders[name]()}

        measures = {name: partial(measure_case, name) for name in contenders}
        samples_by_part = self.compare(case, measures, rounds, warm_up=warm_up)
        found = [(name, samples_by_part.get((case, name))) for name in contenders]
        return [self.add(case, name, unit, each, better) for name, each in found if each]

    def add(
        self,
        case: str,
        contender: str,
        unit: str,
        samples: Sequence[Sample],
        better: Better = "higher",
    ) -> Cell:
        """What several rounds of one contender come to."""
        names = dict.fromkeys(name for sample in samples for name in sample.facts)
        facts = {
            name: median(sample.facts[name] for sample in samples if name in sample.facts)
            for name in names
        }
        values = [sample.value for sample in samples]
        cell = Cell(
            case=case, contender=contender, unit=unit, values=values, better=better, facts=facts
        )
        self.results.cells.append(cell)
        return cell

    def __enter__(self) -> Self:
        self.work.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for server in reversed(self._servers.values()):
            try:
                server.stop()
            except Exception as error:
                # The figures are taken, and all children die with this process.
                print(f"stopping {type(server).__name__}: {error}", file=sys.stderr)
        self._servers.clear()
        shutil.rmtree(self.work, ignore_errors=True)


def settle() -> None:
    """Have the disk take what earlier measurements left, so that it is not written during the next."""
    os.sync()
