"""How a plan lies in its node: small, and legible to older and newer members."""

import json
from uuid import uuid4

import msgspec
import pytest
import zstandard

from folkmoot.coordination.groups import plan as plans
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import Plan, StaticMember, TopicBasis, decode, encode
from folkmoot.coordination.zookeeper.operations import MAX_REQUEST_BYTES
from folkmoot.protocol.records import TopicPartition


def plan(members: int, topics: int, partitions: int) -> Plan:
    """A plan that deals out everything in turn, and leaves the first partition to nobody."""
    names = tuple(f"consumer-{uuid4().hex[:16]}-{number:010d}" for number in range(members))
    owners: list[str | None] = [names[number % members] for number in range(partitions)]
    owners[0] = None
    initial_topics = {f"t{n}": TopicBasis(uuid4().hex, partitions) for n in range(topics)}
    return Plan(
        generation=7,
        members=names,
        topics=initial_topics,
        assignment={f"t{n}": owners for n in range(topics)},
        static={names[0]: StaticMember(30.0, absent=True)},
        assignor="range",
        subscriptions=dict.fromkeys(names[1:], MemberInfo(("t0",), "", 0.0)),
        initial_topics=initial_topics,
        subscribed=("t0", "/t.*/"),
    )


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 5), (100, 2, 500)])
def test_what_was_written_is_read(shape: tuple[int, int, int]) -> None:
    written = plan(*shape)
    assert decode(encode(written)) == written


def test_a_short_plan_can_be_read_with_any_tool_and_a_long_one_is_compressed() -> None:
    assert json.loads(encode(plan(3, 1, 4)))["generation"] == 7
    data = encode(plan(100, 2, 500))
    assert json.loads(zstandard.decompress(data))["generation"] == 7
    assert len(data) < 6_000


def test_a_hundred_thousand_partitions_fit_with_room_to_spare() -> None:
    assert len(encode(plan(1000, 100, 1000))) < MAX_REQUEST_BYTES / 5


@pytest.mark.parametrize("compressed", [False, True])
def test_of_a_plan_of_a_newer_kind_the_head_is_read(compressed: bool) -> None:
    data = b'{"protocol": 9, "generation": 70, "assignment": "as nobody knows yet"}'
    found = decode(zstandard.compress(data) if compressed else data)
    assert found == Plan(generation=70, protocol=9)
    assert found.partitions_of("anybody") == {}


def test_the_share_of_a_seat_names_the_topics_ids() -> None:
    written = plan(2, 1, 4)
    topic_id = written.topics["t0"].topic_id
    assert written.partitions_of(written.members[0]) == {TopicPartition("t0", 2): topic_id}


def test_a_plan_that_claims_to_be_huge_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(plan(100, 2, 500))
    monkeypatch.setattr(plans, "_MOST_BYTES", 1000)
    assert decode(data) == Plan()


def test_a_plan_is_read_once_in_a_process() -> None:
    data = encode(plan(100, 2, 500))
    assert decode(data) is decode(bytes(data))
    assert decode(data).partitions_of("anybody") == {}


def test_owners_that_are_no_members_make_it_no_plan() -> None:
    fine = msgspec.json.decode(encode(plan(2, 1, 4)))
    for owner in ("somebody", ""):
        fine["assignment"]["t0"][3] = owner
        assert decode(msgspec.json.encode(fine)) == Plan()
