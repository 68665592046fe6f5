"""Groups through hostile histories: by default 300 that nobody has seen before, or what fits in 25 s.

FOLKMOOT_SEED=n replays one history and prints its end; FOLKMOOT_HISTORIES=n runs so many.
"""

import logging
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.checks import Violation
from tests.simulation.history import FAULT_NAMES, History
from tests.simulation.mutations import MUTATIONS, mutated

HISTORIES = int(os.environ.get("FOLKMOOT_HISTORIES", "300"))
BUDGET = float("inf") if "FOLKMOOT_HISTORIES" in os.environ else 25.0
ENOUGH_FOR_ALL = 250
SEEDS_FOR_MUTATIONS = 400

NOTICES = ("Assigned", "Revoking", "Lost", "Committed", "Rebalanced", "Left", "Replaced")
ANSWERS = (
    "Multi ok",
    "Multi MultiFailed",
    "Create ok",
    "claim",
    "reset",
    "deleted offset",
    "steal",
)
STAGES = (
    *("joining to member", "member to joining", "member to leaving", "leaving to left"),
    *("member to member fenced", "member fenced to joining", "member to left"),
    *("member to member late", "member late to member", "member late to joining expired"),
    "joining expired to joining",
)


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Thousands of lost sessions would be kept as thousands of warnings."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def live_through(seed: int) -> History:
    """Runs a history; tells how to run it again if it breaks a promise."""
    history = History(seed)
    try:
        history.run()
    except Exception:
        print(*history.world.lines(), sep="\n")
        print(f"replay with FOLKMOOT_SEED={seed}")
        raise
    return history


@pytest.mark.timeout(0)
def test_no_history_breaks_a_promise_and_all_end_in_peace() -> None:
    if "FOLKMOOT_SEED" in os.environ:
        history = live_through(int(os.environ["FOLKMOOT_SEED"]))
        print(*history.world.lines(), sep="\n")
        return
    first = random.randrange(2**40)
    print(f"seeds {first} to {first + HISTORIES - 1}")
    seen: Counter[str] = Counter()
    end = time.monotonic() + BUDGET
    done = 0
    while done < HISTORIES and (done < ENOUGH_FOR_ALL or time.monotonic() < end):
        seen.update(live_through(first + done).world.seen)
        done += 1
    print(f"{done} histories")
    print(", ".join(f"{what} {count}" for what, count in sorted(seen.items())))
    if done >= ENOUGH_FOR_ALL:
        expected = [f"fault {name}" for name in FAULT_NAMES]
        expected += [f"notice {name}" for name in NOTICES]
        expected += [f"stage {name}" for name in STAGES]
        never = [what for what in (*expected, *ANSWERS, "lost replies") if not seen[what]]
        assert not never, f"these never happened: {never}"


def test_the_same_seed_is_the_same_history() -> None:
    for seed in range(5):
        assert _hash(seed) == _hash(seed)
    assert _hash(1) != _hash(2)


def test_the_same_seed_is_the_same_history_in_another_process() -> None:
    """Nothing in it depends on where objects lie or on the order of a set."""
    program = f"from {__name__} import _hash; print([_hash(seed) for seed in range(3)])"
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(found) == 1


def _hash(seed: int) -> str:
    return live_through(seed).world.hash()


@pytest.mark.parametrize("name", MUTATIONS)
def test_without_this_rule_a_promise_is_broken_and_with_it_none(name: str) -> None:
    for seed in range(SEEDS_FOR_MUTATIONS):
        with mutated(name):
            try:
                History(seed).run()
                continue
            except Violation as violation:
                print(f"seed {seed}: {violation}")
        live_through(seed)
        return
    pytest.fail(f"{name}: nobody noticed")
