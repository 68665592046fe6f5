"""The protocol's model, explored whole in small sizes and walked at random in larger ones.

`make model` explores the larger sizes, too (some minutes); FOLKMOOT_SEED=n repeats the walks.
"""

import os
import random

import pytest

from tests.models.explore import Broken, explore, longest_way_to_rest, walk
from tests.models.group_model import RULES, GroupModel
from tests.models.group_state import Budget
from tests.seeds import new_seed

WHOLE = "FOLKMOOT_WHOLE_MODEL" in os.environ
WALKS = 4000 if WHOLE else 50

SMALL = [
    (2, 1, 1, Budget(expiries=1, lost_replies=1, steals=1)),
    (2, 1, 2, Budget(expiries=1, lost_replies=1, steals=1)),
    (2, 2, 1, Budget(expiries=1, lost_replies=0, steals=1)),
]
LARGE = [
    (2, 1, 2, Budget(expiries=2, lost_replies=1, steals=1)),
    (2, 2, 1, Budget(expiries=1, lost_replies=1, steals=1)),
    (3, 1, 1, Budget(expiries=1, lost_replies=0, steals=1)),
]

# Without these nothing false is done, but not all orders of steps end at rest.
LIVENESS = {"refresh after refusal": SMALL[0], "watch of the own node": SMALL[2]}


@pytest.mark.parametrize(
    "size",
    [*SMALL[:2], pytest.param(SMALL[2], marks=pytest.mark.slow), *(LARGE if WHOLE else [])],
    ids=str,
)
@pytest.mark.timeout(0 if WHOLE else 180)
def test_no_order_of_steps_breaks_a_promise_and_all_orders_end_at_rest(
    size: tuple[int, int, int, Budget],
) -> None:
    model = GroupModel(*size)
    explored = explore(model)
    longest = longest_way_to_rest(model, explored)
    print(f"{len(explored.ways)} states, {explored.transitions} transitions, {longest} to rest")
    print(dict(explored.steps))
    assert longest > 0


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=[pytest.mark.slow] if LIVENESS.get(rule) is SMALL[2] else [])
        for rule in RULES
    ],
)
def test_without_this_rule_a_promise_is_broken(rule: str) -> None:
    # The test above explores the same sizes with all rules and finds nothing.
    model = GroupModel(*LIVENESS.get(rule, SMALL[1]), without=rule)
    if rule in LIVENESS:
        explored = explore(model)
        with pytest.raises(Broken) as found:
            longest_way_to_rest(model, explored)
    else:
        with pytest.raises(Broken) as found:
            explore(model)
    print(found.value)


def test_walks_in_larger_groups_take_every_kind_of_step_and_end_at_rest() -> None:
    seed = new_seed(2**40)
    generator = random.Random(seed)
    sizes = (
        (4, 5, 4, Budget(expiries=6, lost_replies=3, steals=3)),
        (3, 7, 3, Budget(expiries=5, lost_replies=3, steals=3)),
    )
    expected = {
        *("EXPIRE", "join anew", "read for a plan", "plan", "plan refused", "see plan"),
        *("read offset", "claim", "claim refused", "STEAL", "process", "commit", "release"),
        *("own node is gone", "read back", "fenced", "commit refused", "release refused"),
        *("commit REPLY LOST", "release REPLY LOST"),
    }
    taken = walk(GroupModel(*SMALL[0]), generator, 50)
    walks = 0
    while walks < WALKS or (walks < 20 * WALKS and set(taken) != expected):  # some steps are rare
        for size in sizes:
            taken += walk(GroupModel(*size), generator, 250)
        walks += 1
    print(f"{walks} walks: {dict(taken)}")
    assert expected == set(taken)
