"""One cluster's life: begin, so many events in rounds, end, and the checks over all of it."""

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.chaos import checks
from tests.chaos.checks import Fault
from tests.chaos.ensembles import Ensemble, children
from tests.chaos.events import ENSEMBLE, Event
from tests.chaos.results import Result
from tests.chaos.rounds import Rounds
from tests.chaos.scene import Scene
from tests.chaos.settings import MACHINE, Settings

MOST_TOLD = 60
FENCED_FROM = 10
"""Of so many zombies that were to meet the fence alone, one does."""


def run_cluster(
    directory: Path,
    settings: Settings,
    seed: int,
    events: int,
    report: Callable[[str], None],
    begin: Callable[[Path, Settings], AbstractContextManager[Ensemble]] = children,
    is_enough: Callable[[], bool] = lambda: False,
) -> Result:
    """The events of a seed on a cluster of their own; what it leaves stays only if it failed.

    They are fewer if it `is_enough` when all that was shuffled together is done.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"seed-{seed}-", dir=directory))
    begun = time.monotonic()

    def say(text: str) -> None:
        report(f"[{seed}] {text}")

    say(f"{settings.members} members, {settings.partitions} partitions in {folder}")
    with begin(folder, settings) as ensemble, Scene(folder, ensemble, settings, seed) as scene:
        rounds = Rounds(scene)
        rounds.begin()
        rounds.run(events, say, is_enough)
        if not rounds.found():
            rounds.end()
        result = _result(rounds, seed, time.monotonic() - begun)
        if result.breaches:
            say("\n    ".join((f"FAILED with seed {seed}; what was done last:", *rounds.story())))
            say("\n    ".join(("FAILED, because:", *result.breaches[:MOST_TOLD])))
    if not result.breaches:
        shutil.rmtree(folder)
    return result


def _result(rounds: Rounds, seed: int, seconds: float) -> Result:
    scene, history = rounds.scene, rounds.scene.history
    processed = checks.by_partition(list(scene.members.values()))
    breaches = rounds.found()
    if not breaches:
        breaches += checks.lost(processed, rounds.acknowledged)
        breaches += checks.committed_too_early(processed, history)
        breaches += checks.out_of_epoch(processed, history)
    gaps = checks.waits(history, [fault for event in rounds.events for fault in _faults(event)])
    settings = scene.settings
    limit = settings.limit(settings.members // 2, settings.long_session_timeout)
    limit += MACHINE + 3 * max((each.stall for each in rounds.rounds), default=0.0)
    breaches += [f"a partition had no owner for {gap:.2f} s" for gap in gaps if gap > limit]
    kinds = Counter(event.kind for event in rounds.events)
    zombies = [event for event in rounds.events if event.tried]
    by_fence = sum(event.refusal == "BadVersion" for event in zombies)
    if kinds["zombie_fenced"] >= FENCED_FROM and not by_fence:
        breaches.append("the fence has refused nobody: all zombies' sessions were over")
    members = list(scene.members.values())
    return Result(
        seed=seed,
        events=len(rounds.events),
        seconds=seconds,
        kinds=dict(kinds),
        slowest=_slowest(rounds.events, shaken=False),
        slowest_shaken=_slowest(rounds.events, shaken=True),
        zombies={
            "tried": len(zombies),
            "refused": sum(event.refusal not in ("", "done") for event in zombies),
            "refused by the fence": by_fence,
            "refused as no member": sum(event.refusal == "NoNode" for event in zombies),
            "refused with the session": sum(
                event.refusal in ("ConnectionLost", "SessionLost") for event in zombies
            ),
            "partitions": sum(len(words) for member in members for words in member.halted),
        },
        counts={
            "records sent": sum(map(len, rounds.acknowledged.values())),
            "records processed again": checks.twice(processed),
            "commits of a partition": sum(len(life.commits) for life in history.lives.values()),
            "claims": sum(len(life.claims) for life in history.lives.values()),
            "plans": history.plans,
            "transactions": history.transactions,
            "transactions refused by version": sum(history.refused.values()),
            "processes": len(members),
        },
        longest={
            "to settle": max((each.settled for each in rounds.rounds), default=0.0),
            "without owner": max((gap.until - gap.since for gap in history.unowned), default=0.0),
            "without owner after the last fault": max(gaps, default=0.0),
            "stall of the watcher": max((each.stall for each in rounds.rounds), default=0.0),
        },
        breaches=breaches,
    )


def _faults(event: Event) -> Iterator[Fault]:
    """What may put off that somebody finds a new owner for a partition (checks.waits)."""
    if event.kind in ENSEMBLE:
        yield Fault(event.begun, event.disturbed or event.ended)
    elif event.kind not in ("join", "kill_guardian"):
        for at in (event.since, event.disturbed):
            yield Fault(at, at, event.member)


def _slowest(events: list[Event], *, shaken: bool) -> dict[str, float]:
    found: dict[str, float] = {}
    for event in events:
        if event.shaken is shaken:
            found[event.kind] = max(found.get(event.kind, 0.0), event.recovered or 0.0)
    return found
