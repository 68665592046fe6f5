"""Ways of dividing: balanced, with the fewest moves there can be, the same in every process."""

import random
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from folkmoot.consumers.assignors.agreement import KNOWN, agreed, assignors_of
from folkmoot.consumers.assignors.assignor import Assignor, Question, Subscriber
from folkmoot.consumers.assignors.plain import Range, RoundRobin
from folkmoot.consumers.assignors.sticky import RackAware, Sticky
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
    question = Question(sizes=sizes, subscribers=subscribers, previous=previous)
    return Sticky().assign(question)


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
def small_questions(draw: some.DrawFn) -> Question:
    """Few enough partitions that every division of them can be tried."""
    sizes = draw(some.dictionaries(some.sampled_from("abc"), some.integers(1, 2), min_size=1))
    names = [f"m{number}" for number in range(draw(some.integers(1, 4)))]
    subscribers = {
        name: Subscriber(
            topics=frozenset(draw(some.sets(some.sampled_from("abc")))),
            weight=draw(some.sampled_from((1, 1, 2, 3))),
            rack=draw(some.sampled_from(("", "r1", "r2"))),
        )
        for name in names
    }
    everywhere = [TopicPartition(topic, n) for topic, size in sizes.items() for n in range(size)]
    previous = {each: draw(some.sampled_from((*names, "gone", None))) for each in everywhere}
    return Question(
        sizes=sizes,
        subscribers=subscribers,
        previous={each: owner for each, owner in previous.items() if owner is not None},
        racks={each: draw(some.sampled_from(("r1", "r2"))) for each in everywhere},
    )


def wants(question: Question, member: str | None, partition: TopicPartition) -> bool:
    return member is not None and partition.topic in question.subscribers[member].topics


def imbalance(question: Question, owned: Owners) -> Fraction:
    counts = loads(owned, list(question.subscribers))
    members = question.subscribers
    return sum((Fraction(n * n, members[each].weight) for each, n in counts.items()), Fraction())


def moves(question: Question, owned: Owners) -> int:
    """From members that are there and could have kept what they had."""
    could = {
        partition: owner
        for partition, owner in question.previous.items()
        if owner in question.subscribers and wants(question, owner, partition)
    }
    return sum(owned[partition] != owner for partition, owner in could.items())


def far_away(question: Question, owned: Owners) -> int:
    racks = {name: each.rack for name, each in question.subscribers.items()}
    return sum(
        bool(racks[owner]) and racks[owner] != question.racks[each] for each, owner in owned.items()
    )


def all_divisions(question: Question) -> list[Owners]:
    takers = {
        partition: [name for name in question.subscribers if wants(question, name, partition)]
        for partition in question.partitions()
    }
    wanted = [partition for partition, names in takers.items() if names]
    choices = product(*(takers[partition] for partition in wanted))
    return [dict(zip(wanted, choice, strict=True)) for choice in choices]


@settings(deadline=None, max_examples=150)
@given(small_questions())
def test_no_division_is_more_balanced_and_none_as_balanced_moves_less(question: Question) -> None:
    def worth(owned: Owners) -> tuple[Fraction, int]:
        return imbalance(question, owned), moves(question, owned)

    assert worth(Sticky().assign(question)) == min(map(worth, all_divisions(question)))


@settings(deadline=None, max_examples=150)
@given(small_questions())
def test_with_racks_none_as_balanced_reads_less_from_afar_and_of_those_none_moves_less(
    question: Question,
) -> None:
    def worth(owned: Owners) -> tuple[Fraction, int, int]:
        return imbalance(question, owned), far_away(question, owned), moves(question, owned)

    assert worth(RackAware().assign(question)) == min(map(worth, all_divisions(question)))


@pytest.mark.parametrize("assignor", KNOWN.values(), ids=KNOWN)
@settings(deadline=None, max_examples=40)
@given(question=small_questions())
def test_every_assignor_gives_all_that_is_wanted_to_those_who_want_it(
    assignor: Assignor, question: Question
) -> None:
    owned = assignor.assign(question)
    assert owned.keys() == all_divisions(question)[0].keys()
    assert all(wants(question, owner, each) for each, owner in owned.items())
    assert assignor.assign(question) == owned


@pytest.mark.parametrize("assignor", KNOWN.values(), ids=KNOWN)
def test_what_is_kept_for_somebody_else_is_given_to_nobody(assignor: Assignor) -> None:
    kept = TopicPartition("a", 1)
    members = {name: Subscriber(topics=frozenset("a")) for name in ("m0", "m1")}
    question = Question(sizes={"a": 4}, subscribers=members, kept=frozenset({kept}))
    assert assignor.assign(question).keys() == {TopicPartition("a", n) for n in (0, 2, 3)}


def test_who_weighs_three_times_as_much_gets_three_times_as_much() -> None:
    members = {
        "light": Subscriber(topics=frozenset("a")),
        "heavy": Subscriber(topics=frozenset("a"), weight=3),
    }
    owned = Sticky().assign(Question(sizes={"a": 12}, subscribers=members))
    assert loads(owned, list(members)) == {"light": 3, "heavy": 9}


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
    owned = Sticky().assign(Question(sizes=sizes, subscribers=members))
    assert set(loads(owned, list(members)).values()) == {10}
    del members["m050"]
    after = Sticky().assign(Question(sizes=sizes, subscribers=members, previous=owned))
    assert sum(after[each] != owner for each, owner in owned.items()) == 10


# -- the plain ones -----------------------------------------------------------------------------------


def numbers(owned: Owners, topic: str, member: str) -> list[int]:
    return [
        each.partition for each, owner in owned.items() if each.topic == topic and owner == member
    ]


def test_range_gives_neighbours_and_divides_like_topics_alike() -> None:
    members = {name: Subscriber(topics=frozenset("ab")) for name in ("m1", "m0")}
    owned = Range().assign(Question(sizes={"a": 5, "b": 5}, subscribers=members))
    for topic in "ab":
        assert numbers(owned, topic, "m0") == [0, 1, 2]
        assert numbers(owned, topic, "m1") == [3, 4]


def test_round_robin_goes_on_with_the_next_member_in_the_next_topic() -> None:
    members = {name: Subscriber(topics=frozenset("ab")) for name in ("m0", "m1")}
    owned = RoundRobin().assign(Question(sizes={"a": 3, "b": 3}, subscribers=members))
    assert numbers(owned, "a", "m0") == [0, 2]
    assert numbers(owned, "b", "m1") == [0, 2]


# -- agreement ----------------------------------------------------------------------------------------


def test_members_agree_on_what_all_support_and_most_prefer() -> None:
    mine = assignors_of(["range", "round-robin"])
    ballots = [("range", "round-robin"), ("round-robin", "range"), ("round-robin", "range")]
    assert agreed(ballots, mine).name == "round-robin"
    assert agreed([*ballots, ("range",)], mine).name == "range"


def test_members_that_have_nothing_in_common_agree_on_the_default() -> None:
    assert agreed([("range",), ("round-robin",)], assignors_of(["range"])).name == "sticky"
    assert agreed([("their own",)], assignors_of([])).name == "sticky"
    assert agreed([], ()).name == "sticky"


def test_an_assignor_of_ones_own_counts_when_all_have_it() -> None:
    class ToTheFirst:
        name = "to-the-first"

        def assign(self, question: Question) -> Owners:
            return dict.fromkeys(question.partitions(), min(question.subscribers))

    mine = assignors_of([ToTheFirst(), "range"])
    assert [each.name for each in mine] == ["to-the-first", "range", "sticky"]
    assert agreed([("to-the-first",), ("to-the-first", "range")], mine).name == "to-the-first"
    assert agreed([("to-the-first", "range"), ("range",)], mine).name == "range"


def test_an_assignor_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="use one of sticky, rack, range, round-robin"):
        assignors_of(["best"])
