"""Replication's model, explored whole in small sizes and walked at random in larger ones.

`make model` explores larger sizes, too (some minutes); FOLKMOOT_SEED=n repeats the walks.
"""

import os
import random
from collections import Counter

import pytest

from tests.models.explore import Broken, explore, kind
from tests.models.replication_model import RULES, Budget, ReplicationModel, State
from tests.seeds import new_seed

WHOLE = "FOLKMOOT_WHOLE_MODEL" in os.environ
WALKS = 60_000 if WHOLE else 300
STEPS = 80

# Records, leader epochs, crashes, ends of sessions, writes of the controller and of ISRs.
SMALL = [(1, 2, 0, 1, 3), (1, 2, 1, 0, 3)]
LARGE = [(1, 2, 0, 1, 4), (1, 2, 1, 1, 3), (2, 2, 0, 1, 3)]

RARE = ("designate", "CRASH", "EXPIRE")
"""Taken less often in walks, so that records get somewhere."""

TAKEN = {
    *(
        "designate",
        "activate in",
        "activate in with",
        "follow of in",
        "adopt",
        "resign",
        "append",
        "fetch of",
    ),
    *("commit to", "shrink by", "expand by", "write ISR", "cut to"),
    *("CRASH", "EXPIRE", "restart", "register again"),
}

# The shortest ways that are known to a broken promise without each rule: chance alone takes long.
WAYS = {
    "clean election": "CRASH 2 → designate 0 → restart 2 → EXPIRE 0 → activate 0 in 1 with 011 → "
    "shrink 0 by 1 → "
    "follow 1 of 0 in 1 → append 0 → fetch 1 of 0 → fetch 1 of 0 → write ISR 0 → UNCLEAN 2 → "
    "commit 0 to 1",
    "durable before counted": "EXPIRE 0 → designate 2 → activate 2 in 1 → follow 1 of 2 in 1 → append 2 → "
    "fetch 1 of 2 → fetch 1 of 2 → CRASH 1 losing 1 → commit 2 to 1",
    "ISR by compare-and-set": "designate 0 → activate 0 in 1 → shrink 0 by 1 → EXPIRE 0 → designate 1 → "
    "activate 1 in 2 → follow 2 of 1 in 2 → append 1 → fetch 2 of 1 → fetch 2 of 1 → commit 1 to 1 → "
    "write ISR 0",
    "removed counts until written": "CRASH 1 → designate 2 → activate 2 in 1 → append 2 → shrink 2 by 0 → "
    "commit 2 to 1",
    "joining counts before written": "EXPIRE 0 → designate 2 → activate 2 in 1 → follow 0 of 2 in 1 → "
    "fetch 0 of 2 → follow 1 of 2 in 1 → append 2 → fetch 1 of 2 → fetch 1 of 2 → expand 2 by 0 → "
    "commit 2 to 1 → write ISR 2",
    "epoch start": "designate 1 → activate 1 in 1 → designate 0 → append 1 → resign 1 → CRASH 2 → "
    "designate 1 → activate 1 in 2 → restart 2 → follow 0 of 1 in 2 → append 1 → fetch 0 of 1 → "
    "fetch 0 of 1 → designate 0 → fetch 0 of 1 → activate 0 in 3 → follow 2 of 0 in 3 → commit 1 to 1 → "
    "commit 1 to 2 → fetch 2 of 0 → expand 0 by 2 → write ISR 0",
    "cut at the common point": "CRASH 1 → designate 2 → activate 2 in 1 → follow 0 of 2 in 1 → append 2 → "
    "fetch 0 of 2 → fetch 0 of 2 → commit 2 to 1 → CRASH 0 → restart 0 → follow 0 of 2 in 1",
    "activation": "EXPIRE 2 → designate 0 → follow 2 of 0 in 1 → follow 1 of 0 in 1 → lead 0 in 1 → "
    "fetch 2 of 0 → expand 0 by 2 → append 0 → write ISR 0 → fetch 1 of 0 → CRASH 0 → restart 0 → "
    "lead 0 in 1 → fetch 1 of 0 → commit 0 to 1",
    "fetch in the epoch": "designate 0 → activate 0 in 1 → follow 1 of 0 in 1 → designate 2 → resign 0 → "
    "activate 2 in 2 → append 2 → designate 0 → activate 0 in 3 → append 0 → fetch 1 of 0 → "
    "fetch 1 of 0 → shrink 0 by 2 → write ISR 0 → adopt 0 → commit 0 to 1 → follow 1 of 2 in 2 → "
    "cut 1 to 0",
    "persisted epoch": "designate 0 → activate 0 in 1 → EXPIRE 0 → designate 1 → activate 1 in 2 → "
    "follow 2 of 1 in 2 → append 1 → fetch 2 of 1 → fetch 2 of 1 → commit 1 to 1 → CRASH 1 → "
    "restart 1 → append 0 → follow 1 of 0 in 1 → cut 1 to 0",
    "resign, and only the ISR leads": "designate 0 → activate 0 in 1 → follow 1 of 0 in 1 → designate 2 → "
    "adopt 0 → append 0 → fetch 1 of 0 → shrink 0 by 2 → write ISR 0 → adopt 0 → fetch 1 of 0 → "
    "commit 0 to 1 → activate 2 in 2 → follow 0 of 2 in 2 → cut 0 to 0",
}


def follow(model: ReplicationModel, way: str) -> str | None:
    """What is broken at the end of a way, None if nothing is, or if it cannot be gone to its end."""
    state = model.initial()
    broken = None
    for name in way.split(" → "):
        step = next((each for each in model.steps(state) if each.name == name), None)
        if broken or step is None:
            return None
        state = step.state
        broken = step.violation or model.violation(state)
    return broken


def walk(model: ReplicationModel, chance: random.Random, taken: Counter[str]) -> State:
    state = model.initial()
    names: list[str] = []
    for _ in range(STEPS):
        steps = list(model.steps(state))
        if not steps:
            assert state.partition.epoch == model.epochs, " → ".join(names)
            break  # the model's leaders are used up
        step = chance.choice(steps)
        if step.name.startswith(RARE) and chance.random() < 0.75:
            continue
        names.append(step.name)
        taken[kind(step.name)] += 1
        state = step.state
        if broken := step.violation or model.violation(state):
            raise Broken(f"{broken}: {' → '.join(names)}")
    return state


@pytest.mark.parametrize("size", [*SMALL, *(LARGE if WHOLE else [])], ids=str)
@pytest.mark.timeout(0 if WHOLE else 180)
def test_no_order_of_steps_loses_what_was_committed(size: tuple[int, int, int, int, int]) -> None:
    records, epochs, crashes, expiries, versions = size
    explored = explore(
        ReplicationModel(records, epochs, Budget(crashes, expiries), versions=versions)
    )
    print(f"{len(explored.ways)} states, {explored.transitions} transitions")
    print(dict(explored.steps))
    assert any(state.committed for state in explored.ways)


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_something_committed_is_lost(rule: str) -> None:
    assert follow(ReplicationModel(2, 4, Budget(2, 2), without=rule), WAYS[rule])
    assert follow(ReplicationModel(2, 4, Budget(2, 2)), WAYS[rule]) is None


@pytest.mark.timeout(0 if WHOLE else 180)
def test_walks_with_more_faults_take_every_kind_of_step_and_lose_nothing() -> None:
    chance = random.Random(new_seed(2**40))
    taken: Counter[str] = Counter()
    committed = 0
    number = 0
    while number < WALKS or (number < 20 * WALKS and set(taken) != TAKEN):  # some steps are rare
        size = (2, 5, Budget(2, 2)) if number % 2 else (3, 6, Budget(3, 3))
        committed += len(walk(ReplicationModel(*size), chance, taken).committed)
        number += 1
    print(f"{committed} records were committed in {sum(taken.values())} steps: {dict(taken)}")
    assert committed > number
    assert set(taken) == TAKEN
