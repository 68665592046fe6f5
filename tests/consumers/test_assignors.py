"""Assignors: balanced, with few moves, the same in every process."""

import random
import time
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from folkmoot.consumers.assignors.assignor import AssignmentInput, Assignor, Subscriber
from folkmoot.consumers.assignors.next_plan import KNOWN, assignors_of
from folkmoot.consumers.assignors.range_roundrobin import Range, RoundRobin
from folkmoot.consumers.assignors.sticky import Sticky
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.records import TopicPartition

Owners = dict[TopicPartition, str]

MEMBERS = [f"m-{number:010d}" for number in range(8)]
sizes_of_topics = some.dictionaries(
    some.sampled_from(["a", "b", "c"]), some.integers(1, 12), min_size=1
)
members = some.lists(some.sampled_from(MEMBERS), min_size=1, unique=True)
owners = some.lists(some.sampled_from([*MEMBERS, "gone-0000000099", None]), max_size=36)


def partitions(sizes: dict[str, int]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number) for topic in sorted(sizes) for number in range(sizes[topic])
    ]


def loads(owned: Owners, of: list[str]) -> dict[str, int]:
    return {member: sum(owner == member for owner in owned.values()) for member in of}


def fewest_moves(before: dict[str, int], total: int) -> int:
    """So many must move at least for a balance within one: the fullest keep the larger shares."""
    share, larger = divmod(total, len(before))
    fullest_first = sorted(before.values(), reverse=True)
    kept = sum(min(load, share + (rank < larger)) for rank, load in enumerate(fullest_first))
    return sum(before.values()) - kept


def sticky(sizes: dict[str, int], wishes: dict[str, frozenset[str]], previous: Owners) -> Owners:
    subscribers = {name: Subscriber(topics=topics) for name, topics in wishes.items()}
    given_input = AssignmentInput(sizes=sizes, subscribers=subscribers, previous=previous)
    return Sticky().assign(given_input)


@settings(deadline=None, max_examples=100)
@given(sizes_of_topics, members, owners)
def test_with_equal_wishes_all_is_balanced_within_one_by_the_fewest_moves(
    sizes: dict[str, int], live: list[str], held: list[str | None]
) -> None:
    everything = partitions(sizes)
    before = {p: owner for p, owner in zip(everything, held, strict=False) if owner is not None}
    after = sticky(sizes, dict.fromkeys(live, frozenset(sizes)), before)
    assert after.keys() == set(everything)
    counts = loads(after, live).values()
    assert max(counts) - min(counts) <= 1
    alive = {p: owner for p, owner in before.items() if owner in live}
    moves = sum(after[p] != owner for p, owner in alive.items())
    assert moves == fewest_moves(loads(alive, live), len(everything))


@settings(deadline=None, max_examples=100)
@given(sizes_of_topics, members, owners, some.data())
def test_with_different_wishes_nobody_gets_what_it_did_not_ask_for(
    sizes: dict[str, int], live: list[str], held: list[str | None], data: some.DataObject
) -> None:
    wishes = {each: frozenset(data.draw(some.sets(some.sampled_from("abcd")))) for each in live}
    everything = partitions(sizes)
    before = {p: owner for p, owner in zip(everything, held, strict=False) if owner is not None}
    after = sticky(sizes, wishes, before)
    wanted = {p for p in everything if any(p.topic in wish for wish in wishes.values())}
    assert after.keys() == wanted
    assert all(p.topic in wishes[owner] for p, owner in after.items())
    count = loads(after, live)
    for p, owner in after.items():
        for other in live:
            assert p.topic not in wishes[other] or count[owner] - count[other] < 2, (
                p,
                owner,
                other,
            )


@settings(deadline=None, max_examples=100)
@given(sizes_of_topics, members, owners, some.randoms(use_true_random=False))
def test_the_same_facts_give_the_same_plan_in_every_member(
    sizes: dict[str, int], live: list[str], held: list[str | None], chance: random.Random
) -> None:
    before = {
        p: owner for p, owner in zip(partitions(sizes), held, strict=False) if owner is not None
    }
    wishes = {each: frozenset(sizes) for each in live}
    shuffled = list(wishes.items()), list(before.items()), list(sizes.items())
    for items in shuffled:
        chance.shuffle(items)
    there = sticky(dict(shuffled[2]), dict(shuffled[0]), dict(shuffled[1]))
    assert there == sticky(sizes, wishes, before)


@settings(deadline=None, max_examples=100)
@given(sizes_of_topics, members, some.data())
def test_what_was_planned_once_stays(
    sizes: dict[str, int], live: list[str], data: some.DataObject
) -> None:
    wishes = {each: frozenset(data.draw(some.sets(some.sampled_from("abc")))) for each in live}
    planned = sticky(sizes, wishes, {})
    assert sticky(sizes, wishes, planned) == planned


def test_one_that_leaves_gives_to_all_others_and_one_that_joins_takes_from_all() -> None:
    sizes = {"t": 100}
    ten = {member: frozenset({"t"}) for member in (f"m{number}" for number in range(10))}
    planned = sticky(sizes, ten, {})
    nine = {member: wish for member, wish in ten.items() if member != "m3"}
    left = sticky(sizes, nine, planned)
    assert sum(left[p] != owner for p, owner in planned.items()) == 10
    joined = sticky(sizes, ten, left)
    assert sum(joined[p] != owner for p, owner in left.items()) == 10
    assert set(loads(joined, list(ten)).values()) == {10}


# -- against all possibilities ------------------------------------------------------------------------


@some.composite
def small_inputs(draw: some.DrawFn) -> AssignmentInput:
    """Few enough partitions that every division of them can be tried."""
    sizes = draw(some.dictionaries(some.sampled_from("abc"), some.integers(1, 2), min_size=1))
    names = [f"m{number}" for number in range(draw(some.integers(1, 4)))]
    subscribers = {
        name: Subscriber(
            topics=frozenset(draw(some.sets(some.sampled_from("abc")))),
            rack=draw(some.sampled_from(("", "r1", "r2"))),
        )
        for name in names
    }
    everywhere = [TopicPartition(topic, n) for topic, size in sizes.items() for n in range(size)]
    previous = {each: draw(some.sampled_from((*names, "gone", None))) for each in everywhere}
    return AssignmentInput(
        sizes=sizes,
        subscribers=subscribers,
        previous={each: owner for each, owner in previous.items() if owner is not None},
        racks={each: draw(some.sampled_from(("r1", "r2"))) for each in everywhere},
    )


def wants(given_input: AssignmentInput, member: str | None, partition: TopicPartition) -> bool:
    return member is not None and partition.topic in given_input.subscribers[member].topics


def imbalance(owned: Owners, members: list[str]) -> int:
    return sum(load * load for load in loads(owned, members).values())


def all_divisions(given_input: AssignmentInput) -> list[Owners]:
    takers = {
        partition: [name for name in given_input.subscribers if wants(given_input, name, partition)]
        for partition in given_input.partitions()
    }
    wanted = [partition for partition, names in takers.items() if names]
    choices = product(*(takers[partition] for partition in wanted))
    return [dict(zip(wanted, choice, strict=True)) for choice in choices]


@settings(deadline=None, max_examples=150)
@given(small_inputs())
def test_no_division_is_more_balanced(given_input: AssignmentInput) -> None:
    members = list(given_input.subscribers)
    found = imbalance(Sticky().assign(given_input), members)
    assert found == min(imbalance(each, members) for each in all_divisions(given_input))


def test_a_member_passes_on_one_of_what_it_has_where_the_poorest_wants_nothing_of_the_fullest() -> (
    None
):
    wishes = {"a": frozenset("a"), "both": frozenset("ab"), "b": frozenset("b")}
    assert loads(sticky({"a": 4, "b": 8}, wishes, {}), list(wishes)) == dict.fromkeys(wishes, 4)


def test_with_racks_each_member_is_given_what_is_near_to_it_where_that_costs_no_move() -> None:
    racks = {TopicPartition("a", number): f"r{number // 3}" for number in range(6)}
    members = {name: Subscriber(topics=frozenset("a"), rack=name[-2:]) for name in ("m-r1", "n-r0")}
    given_input = AssignmentInput(sizes={"a": 6}, subscribers=members, racks=racks)
    near = Sticky().assign(given_input)
    assert {each: owner[-2:] for each, owner in near.items()} == racks
    far = {each: "n-r0" if rack == "r1" else "m-r1" for each, rack in racks.items()}
    stays = AssignmentInput(sizes={"a": 6}, subscribers=members, racks=racks, previous=far)
    assert Sticky().assign(stays) == far


def test_a_thousand_members_with_different_wishes_are_divided_in_well_under_a_second() -> None:
    """Cold, then a third of them leaves: what they had moves, and hardly anything else."""
    topics = [f"t{number}" for number in range(20)]
    members = {
        f"m{number:04d}": Subscriber(
            topics=frozenset(each for rank, each in enumerate(topics) if (rank + number) % 3)
        )
        for number in range(1000)
    }
    sizes = dict.fromkeys(topics, 500)
    began = time.process_time()
    owned = Sticky().assign(AssignmentInput(sizes=sizes, subscribers=members))
    assert set(loads(owned, list(members)).values()) == {10}
    stay = dict(list(members.items())[300:])
    after = Sticky().assign(AssignmentInput(sizes=sizes, subscribers=stay, previous=owned))
    assert time.process_time() - began < 2.0
    assert sum(after[each] != owner for each, owner in owned.items()) == 3000


@pytest.mark.parametrize("assignor", KNOWN.values(), ids=KNOWN)
@settings(deadline=None, max_examples=40)
@given(given_input=small_inputs())
def test_every_assignor_gives_all_that_is_wanted_to_those_who_want_it(
    assignor: Assignor, given_input: AssignmentInput
) -> None:
    owned = assignor.assign(given_input)
    assert owned.keys() == all_divisions(given_input)[0].keys()
    assert all(wants(given_input, owner, each) for each, owner in owned.items())
    assert assignor.assign(given_input) == owned


@pytest.mark.parametrize("assignor", KNOWN.values(), ids=KNOWN)
def test_what_is_kept_for_somebody_else_is_given_to_nobody(assignor: Assignor) -> None:
    reserved = TopicPartition("a", 1)
    members = {name: Subscriber(topics=frozenset("a")) for name in ("m0", "m1")}
    given_input = AssignmentInput(
        sizes={"a": 4}, subscribers=members, reserved=frozenset({reserved})
    )
    assert assignor.assign(given_input).keys() == {TopicPartition("a", n) for n in (0, 2, 3)}


def test_a_hundred_members_with_different_wishes_are_divided_in_a_moment() -> None:
    """Cold, then one leaves: ten move. The time is that of the whole suite, nothing is measured."""
    topics = [f"t{number}" for number in range(10)]
    members = {
        f"m{number:03d}": Subscriber(
            topics=frozenset(each for rank, each in enumerate(topics) if (rank + number) % 3)
        )
        for number in range(100)
    }
    sizes = dict.fromkeys(topics, 100)
    owned = Sticky().assign(AssignmentInput(sizes=sizes, subscribers=members))
    assert set(loads(owned, list(members)).values()) == {10}
    del members["m050"]
    after = Sticky().assign(AssignmentInput(sizes=sizes, subscribers=members, previous=owned))
    assert sum(after[each] != owner for each, owner in owned.items()) == 10


# -- the plain ones -----------------------------------------------------------------------------------


def numbers(owned: Owners, topic: str, member: str) -> list[int]:
    return [
        each.partition for each, owner in owned.items() if each.topic == topic and owner == member
    ]


def test_range_gives_neighbours_and_divides_like_topics_alike() -> None:
    members = {name: Subscriber(topics=frozenset("ab")) for name in ("m1", "m0")}
    owned = Range().assign(AssignmentInput(sizes={"a": 5, "b": 5}, subscribers=members))
    for topic in "ab":
        assert numbers(owned, topic, "m0") == [0, 1, 2]
        assert numbers(owned, topic, "m1") == [3, 4]


def test_round_robin_goes_on_with_the_next_member_in_the_next_topic() -> None:
    members = {name: Subscriber(topics=frozenset("ab")) for name in ("m0", "m1")}
    owned = RoundRobin().assign(AssignmentInput(sizes={"a": 3, "b": 3}, subscribers=members))
    assert numbers(owned, "a", "m0") == [0, 2]
    assert numbers(owned, "b", "m1") == [0, 2]


# -- what settings may name -----------------------------------------------------------------------------


def test_the_default_can_be_carried_out_by_all() -> None:
    assert [each.name for each in assignors_of(["range"])] == ["range", "sticky"]
    assert [each.name for each in assignors_of([])] == ["sticky"]
    own = RoundRobin()
    assert assignors_of([own, "range"])[:1] == (own,)


def test_an_assignor_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="use one of sticky, range, round-robin"):
        assignors_of(["best"])
