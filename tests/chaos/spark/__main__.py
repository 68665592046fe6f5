"""Spark applications and plain members of one group, under faults.

    python -m tests.chaos.spark --rounds 10 --seed 7 --directory DIR

Each ten rounds have a cluster of their own, begun with a seed. `DIR/state.json` has what was done so far,
all runs together; it is written after each cluster. What a cluster that failed left is kept in DIR.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

from folkmoot.console.signals import sigterm_like_ctrl_c
from folkmoot.protocol.records import TopicPartition
from tests.chaos.spark import verdict
from tests.chaos.spark.faults import KINDS, Fault, dealt
from tests.chaos.spark.stage import READERS, ROWS, TOPIC, WRITER, Stage
from tests.chaos.spark.verdict import Output
from tests.spark_apps.sink.topics import contents

ROUNDS: Final = 10
"""Of one cluster."""
PEACE: Final = 300.0
LOOK: Final = 0.2
MOST_TOLD: Final = 20


class Unrest(Exception):
    """It did not come to rest in time."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos-spark")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=None, help="of the first cluster")
    parser.add_argument("--directory", type=Path, default=Path(".chaos-spark"))
    given = parser.parse_args()
    directory = given.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    state = directory / "state.json"
    runs: list[dict[str, Any]] = json.loads(state.read_text()) if state.exists() else []
    seed = given.seed or max((run["seed"] for run in runs), default=0) + 1
    left = given.rounds
    while left > 0:
        with sigterm_like_ctrl_c():  # what it has started is to end with it
            runs.append(run_cluster(directory, seed, min(ROUNDS, left)))
        state.write_text(json.dumps(runs, indent=1))
        print(json.dumps(runs[-1]), flush=True)
        if runs[-1]["breaches"]:
            return 1
        left, seed = left - ROUNDS, seed + 1
    sums = Counter[str]()
    for run in runs:
        sums.update(run["counts"])
    print(f"all runs: {dict(sums)}", flush=True)
    return 0


def run_cluster(directory: Path, seed: int, rounds: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix=f"seed-{seed}-", dir=directory))
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"[seed {seed}, {time.monotonic() - begun:.0f} s] {text}", flush=True)

    faults: list[Fault] = []
    with Stage(folder, seed) as stage:
        breaches: list[str] = []
        counts: Counter[str] = Counter(rounds=rounds)
        try:
            faults += _play(stage, rounds, say)
        except Unrest as unrest:
            breaches.append(str(unrest))
        else:
            breaches += _judge(stage, faults, counts)
    if breaches:
        say("\n    ".join(("FAILED, because:", *breaches[:MOST_TOLD])))
    else:
        rmtree(folder)
    kinds = Counter(f"{fault.kind} {fault.whom}".rstrip() for fault in faults)
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - begun),
        "counts": dict(counts),
        "faults": dict(kinds),
        "breaches": breaches,
    }


def _play(stage: Stage, rounds: int, say: Callable[[str], None]) -> list[Fault]:
    """The rounds, and an end in which nobody writes any more; what was done. Raises Unrest."""
    faults: list[Fault] = []
    _await_peace(stage)
    say(f"all are there: {rounds} rounds")
    for number, kinds in zip(range(rounds), dealt(stage), strict=False):
        struck = []
        for kind in kinds:
            struck.append(KINDS[kind](stage))
            fault = struck[-1].fault
            say(f"round {number + 1}: {fault.kind} {fault.whom}, for {struck[-1].lasts:g} s")
        for each in sorted(struck, key=lambda each: each.fault.begun + each.lasts):
            _watch(stage, each.fault.begun + each.lasts)
            each.undo()
        rest = time.monotonic()
        _await_peace(stage)
        say(f"round {number + 1}: peace after {time.monotonic() - rest:.1f} s")
        for each in struck:
            each.fault.ended = time.time()
            faults.append(each.fault)
    stage.end(stage.apps[WRITER])
    _await_peace(stage, writes=False)
    return faults


def _watch(stage: Stage, until: float) -> None:
    while time.time() < until:
        stage.look()
        time.sleep(LOOK)


def _await_peace(stage: Stage, *, writes: bool = True) -> None:
    """Everybody runs, what is written comes to more, and all of it is committed. Raises Unrest."""
    deadline = time.monotonic() + PEACE
    before = sum(stage.ends().values())
    ends = stage.ends()
    is_more = not writes
    while True:
        for name, each in stage.apps.items():
            if not each.is_running and (writes or name != WRITER):
                stage.end(each)
                each.start()
        if not is_more:
            ends = stage.ends()
            is_more = sum(ends.values()) >= before + ROWS
            what = f"nothing is written: {sum(ends.values())} records"
        else:
            what = stage.unsettled(ends)
            if not what:
                return
        if time.monotonic() > deadline:
            raise Unrest(f"not at peace within {PEACE:g} s: {what}")
        _watch(stage, time.time() + LOOK)


def _judge(stage: Stage, faults: list[Fault], counts: "Counter[str]") -> list[str]:
    stage.look()
    history = stage.history
    breaches = list(history.breaches)
    places = [TopicPartition(TOPIC, number) for number in range(stage.partitions)]
    records = contents(stage.cluster.zookeeper, places)
    outputs = verdict.by_place([*_of_apps(stage), *_of_members(stage)])
    for place in places:
        offsets = [each.offset for each in records if each.topic_partition == place]
        own, life = outputs.get(place, []), history.lives[place]
        if missing := verdict.lost(offsets, own):
            breaches.append(f"{place}: {missing} records were lost")
        found = list(verdict.again(own, life, faults))
        breaches += [f"{place}: {why}" for _, why in found if why]
        breaches += [f"{place}: {e}" for e in verdict.committed_too_early(offsets, own, life)]
        counts["records twice"] += sum(number for number, _ in found)
        counts["commits"] += len(life.commits)
        counts["claims"] += len(life.claims)
        counts["resets"] += len(life.resets)
    done = [
        int(e.name) for e in (stage.checkpoint(WRITER) / "commits").iterdir() if e.name.isdecimal()
    ]
    breaches += verdict.sink(records, max(done) + 1, ROWS)
    counts["faults"] += len(faults)
    counts["records"] += len(records)
    counts["records read by apps"] += sum(
        e.last - e.first + 1 for some in outputs.values() for e in some if e.is_spark
    )
    return breaches


def _of_apps(stage: Stage) -> Iterator[Output]:
    for name in READERS:
        log = stage.checkpoint(name) / "offsets"
        since = {int(e.name): e.stat().st_mtime for e in log.iterdir() if e.name.isdecimal()}
        for _, at, topic, number, batch, first, last in stage.read_by(name):
            place = TopicPartition(topic, int(number))
            numbers = int(batch), int(first), int(last)
            yield Output(float(at), place, name, *numbers, since[int(batch)], True)


def _of_members(stage: Stage) -> Iterator[Output]:
    for member in stage.members.values():
        member.take_in()
        for at, place, epoch, first, last in member.reads:
            claims = stage.history.lives[place].claims
            claimed = next((each.at for each in claims if each.epoch == epoch), at)
            yield Output(at, place, member.name, epoch, first, last, claimed, False)


if __name__ == "__main__":
    sys.exit(main())
