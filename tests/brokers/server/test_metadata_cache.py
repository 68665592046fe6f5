"""The view of the cluster: encoded once, within what one answer may hold, taken over in steps."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import msgspec
import pytest

from folkmoot.brokers.server import metadata_cache
from folkmoot.brokers.server.metadata_cache import NOTHING_READ, ClusterChange, ClusterView
from folkmoot.brokers.server.view_updates import PARTITIONS_PER_STEP, TOPICS_PER_STEP
from folkmoot.coordination.deletions import Deletion
from folkmoot.coordination.partition_states import PartitionState, TopicIdPartition, VersionedState
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol import wire
from folkmoot.protocol.errors import (
    NotLeader,
    ResponseTooLarge,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import Api, FetchEntry, MetadataResponse
from tests.brokers.hands import create
from tests.brokers.parts import BROKERS, ME, OTHER, led, make_handlers, make_logs, state_of


def metadata_of(view: ClusterView, names: list[str] | None) -> msgspec.Raw:
    return ended(view.metadata(names))


def ended(steps: Generator[None, None, msgspec.Raw]) -> msgspec.Raw:
    """What the steps come to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: msgspec.Raw = end.value
            return found


def answer(view: ClusterView, names: list[str] | None) -> MetadataResponse:
    """What a client reads of the answer."""
    envelope = wire.decode_response(wire.encode_response(7, metadata_of(view, names)))
    response: MetadataResponse = wire.response_body(Api.METADATA, envelope)
    return response


def test_a_change_has_that_topic_encoded_again_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = {f"t{number}": TopicInfo(f"id-{number}", [[ME]]) for number in range(50)}
    view = ClusterView(BROKERS, topics)
    answer(view, None)
    encoded: list[str] = []
    original = ClusterView._topic_metadata

    def counted(self: ClusterView, name: str) -> msgspec.Raw:
        encoded.append(name)
        return original(self, name)

    monkeypatch.setattr(ClusterView, "_topic_metadata", counted)
    new = TopicInfo("id-new", [[ME], [OTHER]])
    states = {
        TopicIdPartition("id-new", 0): state_of(ME),
        TopicIdPartition("id-new", 1): state_of(OTHER),
    }
    view.apply(ClusterChange(brokers=BROKERS, topics={"t7": new, "t9": None}, states=states))
    del topics["t9"]
    assert not encoded, "nobody has asked"
    told = {each.topic: each for each in answer(view, None).topics}
    assert told.keys() == topics.keys()
    assert [each.leader for each in told["t7"].partitions] == [ME, OTHER]
    for _ in range(3):
        metadata_of(view, None)
    assert encoded == ["t7"]
    assert answer(view, ["t9"]).topics[0].error == UnknownTopicOrPartition.code


def test_before_its_first_view_a_broker_calls_no_topic_missing(tmp_path: Path) -> None:
    """Consumers that are told so for seconds give the topic up."""
    with make_logs(tmp_path) as logs:
        metadata = make_handlers(logs, NOTHING_READ).metadata
        metadata.view = NOTHING_READ
        for names in (["t"], None):
            with pytest.raises(ZooKeeperUnreachable, match="not read any topic yet"):
                ended(metadata.answer(names))
        metadata.view = ClusterView(BROKERS)
        ended(metadata.answer(["t"]))


def test_who_asked_the_wrong_broker_is_told_who_leads_and_of_nobody_once_the_topic_is_gone(
    tmp_path: Path,
) -> None:
    """What waits is refused later than it was found to be led here."""
    with make_logs(tmp_path) as logs:
        view = ClusterView(BROKERS, {"t": TopicInfo("id", [[OTHER], [ME]])})
        metadata = make_handlers(logs, view).metadata
        error = NotLeader("not led here any more")
        leader = metadata.current_leader(FetchEntry("t", "id", 0, 0, 0, 1), error)
        assert leader is not None
        assert leader.broker_id == OTHER
        for topic, partition in (("t", 1), ("t", 2), ("u", 0)):
            entry = FetchEntry(topic, "id", partition, 0, 0, 1)
            assert metadata.current_leader(entry, error) is None


def test_a_broker_that_goes_leads_nothing_in_the_next_view() -> None:
    topics = {"t": TopicInfo("id", [[ME], [OTHER]])}
    view = led(ClusterView(BROKERS, topics))
    assert [each.leader for each in answer(view, ["t"]).topics[0].partitions] == [ME, OTHER]
    view.apply(ClusterChange(brokers={ME: BROKERS[ME]}))
    response = answer(view, ["t"])
    assert [each.broker_id for each in response.brokers] == [ME]
    assert [each.leader for each in response.topics[0].partitions] == [ME, -1]


def test_more_topics_than_one_answer_holds_are_refused_and_fewer_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_cache, "MAX_ENVELOPE_BYTES", wire.MAX_ENVELOPE_BYTES // 20)
    wide = [[ME]] * 500
    topics = {f"t{number}": TopicInfo(f"id-{number}", wide) for number in range(100)}
    view = ClusterView(BROKERS, topics)
    names = sorted(topics)
    for too_many in (None, names):
        with pytest.raises(ResponseTooLarge, match="less at a time"):
            answer(view, too_many)
    told = answer(view, names[:25]).topics
    assert [(each.topic, each.error) for each in told] == [(name, 0) for name in names[:25]]


def test_ten_thousand_topics_are_taken_over_in_steps_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = {f"t{number}": TopicInfo(f"id-{number}", [[OTHER]]) for number in range(10_000)}
    view = ClusterView(BROKERS, topics)
    with make_logs(tmp_path / "data") as logs:
        handlers = make_handlers(logs)
        posted: deque[Callable[[], None]] = deque()
        configured: list[str] = []
        monkeypatch.setattr(logs, "configure", lambda name, *_: configured.append(name))
        deleted = {"id-gone": Deletion("gone", 0.0, "", (ME,))}
        handlers.updates.show(ClusterChange(full_view=view, deleted=deleted), posted.append)
        largest = len(configured)
        while posted:
            before = len(configured)
            posted.popleft()()
            largest = max(largest, len(configured) - before)
    assert sorted({*configured}) == sorted(topics)
    assert 1 < largest <= TOPICS_PER_STEP


def test_a_topic_of_ten_thousand_partitions_is_taken_over_in_steps_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = TopicInfo("id-wide", [[ME, OTHER]] * 10_000)
    topics = {"wide": wide, "gone": TopicInfo("id-gone", [[ME, OTHER]] * 1_000)}
    taken: dict[str, list[int]] = {"wide": [], "gone": []}

    def update_topic(name: str, *_: object, numbers: range, settled: bool) -> None:
        assert len(numbers) <= PARTITIONS_PER_STEP
        taken[name] += numbers

    with make_logs(tmp_path / "data") as logs:
        handlers = make_handlers(logs)
        monkeypatch.setattr(handlers.partitions, "update_topic", update_topic)
        posted: deque[Callable[[], None]] = deque()
        first = ClusterChange(full_view=ClusterView(BROKERS, topics), is_registered=True)
        handlers.updates.show(first, posted.append)
        second = ClusterChange(
            brokers=BROKERS,
            topics={"gone": None},
            deleted={"id-gone": Deletion("gone", 0.0, "", (ME,))},
            is_registered=True,
        )
        handlers.updates.show(second, posted.append)
        while posted:
            before = sum(map(len, taken.values()))
            posted.popleft()()
            assert sum(map(len, taken.values())) - before <= 2 * PARTITIONS_PER_STEP
    assert taken["wide"] == list(range(10_000))
    assert taken["gone"] == list(range(PARTITIONS_PER_STEP))  # then it was deleted


def test_that_a_view_is_settled_holds_for_all_of_its_topics_though_another_comes_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = {f"t{number}": TopicInfo(f"id-{number}", [[ME, OTHER]]) for number in range(200)}
    state = VersionedState(PartitionState(OTHER, 1, (ME, OTHER), 1, active=True), 2)
    states = {TopicIdPartition(each.topic_id, 0): state for each in topics.values()}
    settled: set[str] = set()

    def update_topic(
        name: str, *_: object, numbers: range, settled: bool, into: set[str] = settled
    ) -> None:
        if settled:
            into.add(name)

    with make_logs(tmp_path / "data") as logs:
        handlers = make_handlers(logs)
        monkeypatch.setattr(handlers.partitions, "update_topic", update_topic)
        posted: deque[Callable[[], None]] = deque()
        whole = ClusterView(BROKERS, topics, states)
        first = ClusterChange(full_view=whole, is_settled=True, is_registered=True)
        handlers.updates.show(first, posted.append)
        moved = {each: VersionedState(state.state, 3) for each in states}
        handlers.updates.show(ClusterChange(brokers=BROKERS, states=moved), posted.append)
        while posted:
            posted.popleft()()
    assert settled == set(topics)


def test_what_cannot_be_taken_over_of_one_topic_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topics = {name: TopicInfo(f"id-{name}", [[ME, OTHER]] * 1_000) for name in ("a", "b", "c")}
    taken: dict[str, list[int]] = {name: [] for name in topics}

    def update_topic(name: str, *_: object, numbers: range, settled: bool) -> None:
        if name == "b":
            raise RuntimeError("a fault")
        taken[name] += numbers

    with make_logs(tmp_path / "data") as logs:
        handlers = make_handlers(logs)
        monkeypatch.setattr(handlers.partitions, "update_topic", update_topic)
        posted: deque[Callable[[], None]] = deque()
        whole = ClusterView(BROKERS, topics)
        handlers.updates.show(ClusterChange(full_view=whole, is_registered=True), posted.append)
        while posted:
            posted.popleft()()
    assert taken == {"a": list(range(1_000)), "b": [], "c": list(range(1_000))}
    assert [each.getMessage()[:2] for each in caplog.records if each.exc_info] == ["b:"]


def test_a_topic_that_is_set_back_between_two_steps_is_taken_out_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ZooKeeper knows fewer partitions of it by then, and perhaps other replicas."""
    wide = TopicInfo("id-wide", [[ME, OTHER]] * 1_000, revision=2)
    taken: list[int] = []

    def update_topic(name: str, *_: object, numbers: range, settled: bool) -> None:
        taken.extend(numbers)

    with make_logs(tmp_path / "data") as logs:
        create(logs, "wide", "id-wide", 0)
        handlers = make_handlers(logs)
        monkeypatch.setattr(handlers.partitions, "update_topic", update_topic)
        posted: deque[Callable[[], None]] = deque()
        first = ClusterChange(full_view=ClusterView(BROKERS, {"wide": wide}), is_registered=True)
        handlers.updates.show(first, posted.append)
        narrow = msgspec.structs.replace(wide, partitions=[[OTHER]] * 700, revision=1)
        back = ClusterChange(brokers=BROKERS, topics={"wide": narrow}, is_registered=True)
        handlers.updates.show(back, posted.append)
        while posted:
            posted.popleft()()
        assert handlers.metadata.out_of_use == {"id-wide"}
    assert taken == list(range(PARTITIONS_PER_STEP))
    assert not [each for each in caplog.records if each.exc_info]


class CountedStates(dict[TopicIdPartition, VersionedState]):
    """States that count how often they are looked at."""

    looked_at = 0

    def get(self, key: TopicIdPartition, default: object = None, /) -> VersionedState | None:  # type: ignore[override]
        self.looked_at += 1
        return super().get(key)


def test_a_changed_state_costs_that_one_partition_however_many_its_topic_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a failover, whose thousands of states change one after the other."""
    count, changes = 5_000, 1_000
    topics = {"wide": TopicInfo("id-wide", [[ME, OTHER]] * count)}
    taken: list[int] = []

    def update_topic(name: str, *_: object, numbers: Sequence[int], settled: bool) -> None:
        taken.extend(numbers)

    with make_logs(tmp_path / "data") as logs:
        handlers = make_handlers(logs)
        monkeypatch.setattr(handlers.partitions, "update_topic", update_topic)
        posted: deque[Callable[[], None]] = deque()
        whole = ClusterView(BROKERS, topics)
        handlers.updates.show(ClusterChange(full_view=whole, is_registered=True), posted.append)
        while posted:
            posted.popleft()()
        taken.clear()
        whole.states = states = CountedStates()
        for number in range(changes):
            key = TopicIdPartition("id-wide", number)
            change = ClusterChange(
                brokers=BROKERS, states={key: state_of(OTHER)}, is_registered=True
            )
            handlers.updates.show(change, posted.append)
            assert not posted
    assert taken == list(range(changes))
    assert states.looked_at <= 2 * changes
    found = answer(whole, ["wide"]).topics[0].partitions
    assert [each.leader for each in found] == [OTHER] * changes + [-1] * (count - changes)
