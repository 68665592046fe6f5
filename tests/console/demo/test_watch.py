"""What an onlooker tells of a group, from looks at it."""

from folkmoot.console.demo.watch import Watch, client
from folkmoot.coordination.groups.inspection import GroupState, PartitionState
from folkmoot.coordination.groups.membership import Member, MemberInfo
from folkmoot.coordination.groups.plan import Plan
from folkmoot.protocol.records import TopicPartition

INFO = MemberInfo(("flights",), "host", 2.0)


def member(client_id: str) -> Member:
    return Member(name(client_id), INFO, 0)


def name(client_id: str) -> str:
    return f"{client_id}-0123456789abcdef-0000000007"


def look(generation: int, members: str, planned: str, owned: str) -> GroupState:
    """A group of members a, b, …; a letter per partition for who shall own it and who does."""
    partitions = [
        PartitionState(
            TopicPartition("flights", number),
            name(plan),
            None if owner == "." else name(owner),
            None,
        )
        for number, (plan, owner) in enumerate(zip(planned, owned, strict=True))
    ]
    there = {name(each): member(each) for each in members}
    return GroupState("delays", Plan(generation), there, partitions)


def test_a_member_is_shown_by_its_client_id() -> None:
    assert client("plain-1-0123456789abcdef-0000000007") == "plain-1"


def test_no_group_is_nothing_to_tell() -> None:
    watch = Watch(4)
    assert watch.see(None) == []
    assert not watch.settled


def test_a_plan_is_told_when_it_is_made_and_again_when_it_is_settled() -> None:
    watch = Watch(4)
    assert watch.see(look(1, "a", "aaaa", "a...")) == ["rebalance 1: 1 members (a joined)"]
    assert watch.shares == {"a": [0]}
    assert watch.see(look(1, "a", "aaaa", "aaaa")) == ["  settled: a 4"]
    assert watch.settled
    assert watch.see(look(1, "a", "aaaa", "aaaa")) == []
    assert watch.shares == {"a": [0, 1, 2, 3]}


def test_what_moved_is_told_and_counted() -> None:
    watch = Watch(4)
    watch.see(look(1, "a", "aaaa", "aaaa"))
    assert watch.see(look(2, "ab", "aabb", "aa..")) == ["rebalance 2: 2 members (b joined)"]
    assert watch.see(look(2, "ab", "aabb", "aabb")) == ["  settled: a 2, b 2  (moved a → b: 2)"]
    assert watch.given_up == {"a": 2}
    assert watch.gained == {"a": 4, "b": 2}


def test_a_member_that_is_gone_is_told() -> None:
    watch = Watch(2)
    watch.see(look(1, "ab", "ab", "ab"))
    assert watch.see(look(2, "a", "aa", "aa")) == [
        "rebalance 2: 1 members (b left)",
        "  settled: a 2  (moved b → a: 1)",
    ]
    assert watch.generation == 2


def test_a_group_whose_plan_knows_fewer_partitions_than_there_are_is_not_settled() -> None:
    watch = Watch(4)
    watch.see(look(1, "a", "aa", "aa"))
    assert not watch.settled
