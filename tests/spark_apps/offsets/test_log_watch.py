"""Ends that are watched at brokers which the test plays."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from folkmoot.coordination.wakeup import Wakeup
from folkmoot.protocol import wire
from folkmoot.protocol.errors import FolkmootError, LogTruncated, NotLeader, OffsetOutOfRange
from folkmoot.protocol.messages import (
    Api,
    BrokerInfo,
    FetchRequest,
    FetchResponse,
    FetchResult,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.log_watch import End, LogWatch, ReadPosition
from folkmoot.spark_apps.options.config import StreamConfig
from tests.network.stub import StubBroker
from tests.spark_apps.tasks.test_reading import made
from tests.waiting import eventually

LONG = 10.0
CONFIG = StreamConfig(zookeeper="z", group="g", subscribe="flights")
P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)


class Leader:
    """Leads two partitions in an epoch; a fetch at both ends is not answered before `append`."""

    def __init__(self) -> None:
        self.epoch = 3
        self.ends = [0, 0]
        self.parts: dict[int, int] = {}
        self.refusals: list[FolkmootError] = []
        self.fetches: list[FetchRequest] = []
        self.parked: list[int] = []
        self.asked_of: list[list[str]] = []
        self.address = ""

    def answer(self, envelope: wire.RequestEnvelope, body: Any, _: Any) -> Any:
        if envelope.api == Api.METADATA:
            self.asked_of.append(list(body.topics))
            info = [BrokerInfo(1, {"client": self.address})]
            partitions = [PartitionMetadata(n, 1, self.epoch, [1], [1]) for n in range(2)]
            known = TopicMetadata("flights", 0, "id", partitions)
            return MetadataResponse(info, [known] if body.topics else [])
        assert isinstance(body, FetchRequest)
        self.fetches.append(body)
        results: list[FetchResult] = []
        chunks: list[bytes] = []
        for entry in body.entries:
            where = "flights", entry.partition
            end, parts = self.ends[entry.partition], self.parts.get(entry.partition)
            if self.refusals:
                error = self.refusals.pop()
                results.append(FetchResult(*where, error.code or 0, str(error), -1, -1))
            elif entry.offset == end:
                continue
            elif entry.offset > end:
                error = OffsetOutOfRange(f"ends at {end}")
                results.append(FetchResult(*where, error.code or 0, str(error), 2, end))
            elif entry.last_epoch >= 0 and parts is not None:
                said = *where, LogTruncated.code, "parted", 0, end
                results.append(FetchResult(*said, None, 2, parts))
            else:
                results.append(FetchResult(*where, 0, "", 0, end))
            chunks.append(b"" if chunks or self.refusals else made(entry.offset, 2))
        if not results and body.max_wait:
            self.parked.append(envelope.correlation_id)
            return None
        return [wire.encode_response(envelope.correlation_id, FetchResponse(results)), *chunks]


@pytest.fixture
def leader() -> Iterator[Leader]:
    made = Leader()
    with StubBroker(made.answer) as broker:
        made.address = broker.address
        yield made


@pytest.fixture
def logs(leader: Leader) -> Iterator[LogWatch]:
    watch = LogWatch(CONFIG, lambda: [leader.address])
    yield watch
    watch.close()


def look(
    logs: LogWatch, places: Mapping[TopicPartition, ReadPosition], wait: float = LONG
) -> dict[TopicPartition, End]:
    with closing(Wakeup()) as nobody:
        return logs.watch(places, wait, nobody)


def test_one_fetch_tells_the_ends_of_all_partitions_and_how_large_records_are(
    logs: LogWatch, leader: Leader
) -> None:
    leader.ends = [40, 50]
    found = look(logs, {P0: ReadPosition("id", 7, -1), P1: ReadPosition("id", 50, -1)})
    assert found == {P0: End("id", 40, 3), P1: End("id", 50, 3)}
    first = leader.fetches[0]
    assert [(each.offset, each.leader_epoch, each.last_epoch) for each in first.entries] == [
        (7, 3, -1),
        (50, 3, -1),
    ]
    assert logs.record_bytes("flights") == len(made(7, 2)) / 2
    assert logs.record_bytes("trains") == 0


def test_what_has_nothing_new_is_not_asked_for_again(logs: LogWatch, leader: Leader) -> None:
    leader.ends = [40, 50]
    ends = {P0: End("id", 40, 3), P1: End("id", 50, 3)}
    assert look(logs, {P0: ReadPosition("id", 7, -1), P1: ReadPosition("id", 50, -1)}) == ends
    for _ in range(20):
        assert (
            look(logs, {P0: ReadPosition("id", 40, 3), P1: ReadPosition("id", 50, 3)}, 0.005)
            == ends
        )
    eventually(lambda: len(leader.fetches) >= 2)
    assert len(leader.fetches) == 2
    assert [each.offset for each in leader.fetches[1].entries] == [40, 50]
    assert leader.fetches[1].max_wait > 0


def test_a_look_ends_though_answers_come_as_fast_as_they_are_asked_for(
    logs: LogWatch, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they do where some thousand partitions of several brokers are written all the time."""
    poll, ask = logs._cluster.poll, logs._send_fetches

    def written(places: Mapping[TopicPartition, ReadPosition]) -> None:
        leader.ends[0] += 1
        assert leader.ends[0] < 100, "it goes on for as long as somebody writes"
        ask(places)

    monkeypatch.setattr(logs, "_send_fetches", written)
    monkeypatch.setattr(logs._cluster, "poll", lambda _, *wake: poll(LONG, *wake))
    while not (ends := look(logs, {P0: ReadPosition("id", 0, -1)}, 0.0)):
        pass
    assert ends[P0].offset > 0


def test_another_leader_is_asked_whether_it_has_what_was_read(
    logs: LogWatch, leader: Leader
) -> None:
    leader.ends, leader.parts = [12, 0], {0: 6}
    assert look(logs, {P0: ReadPosition("id", 10, 2)}) == {}
    assert logs.truncated == {P0: 6}
    assert leader.fetches[0].entries[0].last_epoch == 2


def test_a_log_that_ends_before_the_place_is_told_of_once_its_leader_has_refused_it(
    logs: LogWatch, leader: Leader
) -> None:
    leader.ends = [10, 0]
    short = {P0: End("id", 10, 3, 2, refused=12)}
    eventually(lambda: look(logs, {P0: ReadPosition("id", 12, -1)}, 0.05) == short, LONG)
    asked = len(leader.fetches)
    for _ in range(3):
        assert look(logs, {P0: ReadPosition("id", 12, -1)}, 0.05) == short
    assert len(leader.fetches) <= asked + 1  # one waits


def test_an_old_end_before_a_place_is_not_taken_for_one_that_was_lost(
    logs: LogWatch, leader: Leader
) -> None:
    leader.ends = [10, 0]
    assert look(logs, {P0: ReadPosition("id", 5, -1)}) == {P0: End("id", 10, 3)}
    leader.ends = [30, 0]  # of another member, meanwhile
    logs._in_flight.clear()  # a broker that is no stub answers it
    logs._watched = None
    while (found := look(logs, {P0: ReadPosition("id", 20, -1)}, 0.05)) != {P0: End("id", 30, 3)}:
        assert found[P0].refused == -1


def test_a_leader_that_has_nothing_of_that_epoch_but_all_before_is_believed(
    logs: LogWatch, leader: Leader
) -> None:
    """It names an earlier epoch, whose records end where reading goes on, or behind that."""
    leader.ends, leader.parts = [12, 0], {0: 11}
    found = look(logs, {P0: ReadPosition("id", 10, 2)})
    assert (found, logs.truncated) == ({P0: End("id", 12, 3)}, {})


def test_a_doubt_stays_as_long_as_there_is_nothing_to_compare(
    logs: LogWatch, leader: Leader
) -> None:
    leader.ends, leader.parts = [10, 0], {0: 6}
    doubted = {P0: End("id", 10, 3, unverified_epoch=2)}
    eventually(lambda: look(logs, {P0: ReadPosition("id", 10, 2)}, 0.05) == doubted)
    leader.ends[0] = 13
    # The fetch that waits is answered only by a broker that is no stub: it is asked anew here.
    logs._in_flight.clear()
    logs._watched = None
    look(logs, {P0: ReadPosition("id", 10, 2)})
    assert logs.truncated == {P0: 6}


def test_while_nothing_is_new_leaders_are_not_looked_for(
    logs: LogWatch, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader.ends = [40, 50]
    look(logs, {P0: ReadPosition("id", 7, -1), P1: ReadPosition("id", 50, -1)})
    places = {P0: ReadPosition("id", 40, 3), P1: ReadPosition("id", 50, 3)}
    look(logs, places, 0.005)
    asked: list[TopicPartition] = []
    find = logs._cluster.leader_address

    def counted(partition: TopicPartition) -> str | None:
        asked.append(partition)
        return find(partition)

    monkeypatch.setattr(logs._cluster, "leader_address", counted)
    for _ in range(20):
        look(logs, dict(places), 0.005)
    assert asked == []
    look(logs, {**places, P0: ReadPosition("another id", 40, 3)}, 0.005)
    assert set(asked) == {P0, P1}


def test_a_broker_that_refuses_is_not_asked_without_a_pause(logs: LogWatch, leader: Leader) -> None:
    leader.ends = [40, 0]
    leader.refusals = [NotLeader("not yet"), NotLeader("not yet")]
    assert look(logs, {P0: ReadPosition("id", 7, -1)}) == {P0: End("id", 40, 3)}
    # By then it may have been asked to tell of what comes behind the end, too.
    assert [entry.offset for each in leader.fetches for entry in each.entries].count(7) == 3


def test_a_topic_of_which_nothing_is_watched_any_more_is_not_asked_for(
    logs: LogWatch, leader: Leader
) -> None:
    """It may be deleted, and would be asked for with each second."""
    leader.ends = [40, 50]
    gone = TopicPartition("gone", 0)
    assert P0 in look(
        logs, {P0: ReadPosition("id", 7, -1), gone: ReadPosition("other", 0, -1)}, 0.1
    )
    eventually(lambda: any("gone" in each for each in leader.asked_of), LONG)
    places = {P0: ReadPosition("id", 40, -1)}
    look(logs, places, 0.1)
    leader.asked_of.clear()
    logs._cluster.refresh()
    eventually(lambda: (look(logs, places, 0.05), leader.asked_of)[1], LONG)
    assert leader.asked_of[-1] == ["flights"]
