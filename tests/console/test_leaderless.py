"""A partition whose broker is dead, seen by every client: nothing hangs, spins, or passes it over."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.console.main import main
from folkmoot.console.options.cluster import Cluster
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.groups import offset_admin
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.producers.producer import Producer
from folkmoot.protocol import wire
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    DeliveryTimeout,
    NotAssigned,
    RecordsNotDeleted,
)
from folkmoot.protocol.messages import (
    EARLIEST,
    Api,
    BrokerInfo,
    FetchResponse,
    FetchResult,
    InitProducerIdResponse,
    ListOffsetsResponse,
    ListOffsetsResult,
    LogSize,
    LogSizesResponse,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from folkmoot.protocol.records import TopicPartition
from tests.memory_zookeeper import MemoryZooKeeper
from tests.network.stub import StubBroker
from tests.waiting import eventually

ALIVE, DEAD = TopicPartition("t", 0), TopicPartition("t", 1)
SAID = "t-1 has no leader: it waits for broker 2"
END = 4


class HalfDead:
    """Broker 1 leads t-0, which had END records; of broker 2 and t-1 only the names are left."""

    def __init__(self) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.stub = StubBroker(self._answer)
        self.has_both = False
        self.start = END
        self.fetched = False

    def __enter__(self) -> "HalfDead":
        self.stub.__enter__()
        session = self.zookeeper.connect()
        there = Registration({"client": self.stub.address}, "n", "d")
        execute(session, brokers.register(1, there))
        self.topic_id = execute(session, topics.create("t", 2, [1, 2])).topic_id
        for partition in (ALIVE, DEAD):
            execute(session, offset_admin.reset("g", partition, self.topic_id, END, "mark"))
        return self

    def __exit__(self, *raised: object) -> None:
        self.stub.stop()

    def _answer(self, envelope: Any, body: Any, _: list[bytes]) -> Any:
        match Api(envelope.api):
            case Api.METADATA:
                partitions = [
                    PartitionMetadata(0, 1, 0, [1]),
                    PartitionMetadata(1, 1 if self.has_both else -1, 0, [2]),
                ]
                topic = TopicMetadata("t", 0, self.topic_id, partitions)
                alive = BrokerInfo(1, {"client": self.stub.address})
                return MetadataResponse([alive], [topic] if body.topics else [])
            case Api.INIT_PRODUCER_ID:
                return InitProducerIdResponse(1)
            case Api.LIST_OFFSETS:
                found = [
                    ListOffsetsResult(
                        "t",
                        each.partition,
                        0,
                        "",
                        self.start if each.timestamp == EARLIEST else END,
                    )
                    for each in body.entries
                ]
                return ListOffsetsResponse(found)
            case Api.LOG_SIZES:
                return LogSizesResponse([LogSize("t", self.topic_id, 0, 100, 0, END)])
            case Api.FETCH if not self.fetched:
                self.fetched = True
                results = [
                    FetchResult("t", each.partition, 0, "", END, END) for each in body.entries
                ]
                answer = wire.encode_response(envelope.correlation_id, FetchResponse(results))
                return [answer, *[b""] * len(results)]
        return None


@pytest.fixture
def half_dead() -> Iterator[HalfDead]:
    with HalfDead() as cluster:
        yield cluster


@pytest.fixture
def admin(half_dead: HalfDead) -> Iterator[Admin]:
    with Admin(zookeeper=half_dead.zookeeper.connect) as admin:
        yield admin


def test_a_consumer_names_it_in_its_health_and_knows_no_lag_of_it(half_dead: HalfDead) -> None:
    with Consumer(bootstrap=half_dead.stub.address) as consumer:
        consumer.assign([ALIVE, DEAD])

        def lag_of(partition: TopicPartition) -> int | None:
            assert consumer.poll(0.05) == []
            return consumer.health().lag[partition]

        eventually(lambda: lag_of(ALIVE) == 0)
        health = consumer.health()
        assert health.lag == {ALIVE: 0, DEAD: None}
        assert health.leaderless == {DEAD: (2,)}
        assert health.alarms == (SAID,)

        def is_told() -> bool:
            with pytest.raises(BrokerUnreachable) as raised:
                consumer.end_offsets([DEAD], timeout=0.3)
            return SAID in str(raised.value)  # once it knows who leads

        eventually(is_told)
        half_dead.has_both, half_dead.fetched = True, False
        eventually(lambda: lag_of(DEAD) == 0)
        health = consumer.health()
        assert (health.leaderless, health.alarms) == ({}, ())


def test_consume_ends_with_a_code_of_its_own(
    half_dead: HalfDead, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["consume", "t", "--bootstrap", half_dead.stub.address, "--timeout", "1"]

    def code(*more: str) -> int:
        half_dead.fetched = False
        capsys.readouterr()
        began = time.monotonic()
        try:
            return main([*words, *more])
        finally:
            assert time.monotonic() - began < 10

    eventually(lambda: code() == 7)  # and 3 where nobody has said within a second who leads
    assert capsys.readouterr().err == f"folkmoot: not everything was read: {SAID}\n"
    eventually(lambda: code("--partition", "0") == 0)


def test_a_record_for_it_fails_in_time_and_says_why(
    half_dead: HalfDead, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"not acknowledged within 0.5 s: {SAID}"
    with Producer(bootstrap=half_dead.stub.address, delivery_timeout=0.5) as producer:

        def is_told() -> bool:
            delivery = producer.send("t", b"x", partition=1)
            with pytest.raises(DeliveryTimeout) as raised:
                delivery.result(20)
            return said in str(raised.value)  # once it has a producer id

        eventually(is_told)
    (tmp_path / "lines").write_text("x\n")
    words = ["produce", "t", "--partition", "1", "--file", str(tmp_path / "lines")]

    def is_said() -> bool:
        assert main([*words, "--bootstrap", half_dead.stub.address, "--timeout", "0.5"]) == 3
        return said in capsys.readouterr().err

    eventually(is_said)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda admin: admin.plan_reset("g", "earliest", timeout=1.0), BrokerUnreachable),
        (lambda admin: admin.offsets("t", "latest", timeout=1.0), BrokerUnreachable),
        (lambda admin: admin.offsets([DEAD], "latest", timeout=1.0), BrokerUnreachable),
        (lambda admin: admin.plan_delete_records({DEAD: 1}, timeout=1.0), BrokerUnreachable),
    ],
)
def test_who_waits_for_its_offsets_does_not_spin_and_is_told_why(
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Admin], object],
    error: type[Exception],
) -> None:
    looks = 0
    poll = Fetcher.poll

    def count(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        return poll(*given)

    monkeypatch.setattr(Fetcher, "poll", count)

    def is_told() -> bool:
        nonlocal looks
        looks, began = 0, time.monotonic()
        with pytest.raises(error) as raised:
            call(admin)
        assert time.monotonic() - began < 10
        return SAID in str(raised.value)  # once it knows who leads

    eventually(is_told)
    assert looks < 50  # a tenth of a second, or an answer, lies between two


def test_the_offsets_of_the_others_are_shown_without_waiting(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Cluster, "admin", lambda _: nullcontext(admin))
    began = time.monotonic()
    assert main(["topic", "offsets", "t", "-o", "json", "--zookeeper", "z:1"]) == 3
    assert time.monotonic() - began < 10
    said = capsys.readouterr()
    rows = [tuple(row.values()) for row in json.loads(said.out)]
    assert rows == [(0, END, END, 0, 100), (1, None, None, None, None)]
    assert said.err.startswith(f"folkmoot: {SAID}")


def test_records_of_the_others_can_be_deleted(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Cluster, "admin", lambda _: nullcontext(admin))
    began = time.monotonic()
    words = ["topic", "delete-records", "t", "--before", "0=1", "--zookeeper", "z:1"]
    assert main([*words, "-o", "json"]) == 0
    assert time.monotonic() - began < 10
    assert [row["partition"] for row in json.loads(capsys.readouterr().out)] == [0]


def test_records_that_it_keeps_from_deletion_are_named(
    admin: Admin, half_dead: HalfDead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_deletion_offsets", lambda ids, before, timeout: dict(before))
    with pytest.raises(RecordsNotDeleted, match=SAID):
        admin.delete_records({DEAD: 1}, timeout=0.5)


def test_a_group_s_description_has_it_without_waiting_and_says_what_is_not_known(
    admin: Admin,
) -> None:
    began = time.monotonic()
    view = admin.describe_group("g", timeout=20.0)
    assert time.monotonic() - began < 10
    rows = {each.partition: (each.committed, each.latest, each.lag) for each in view.partitions}
    assert rows == {ALIVE: (END, END, 0), DEAD: (END, None, None)}
    assert view.notes == (f"{SAID}; what is unread there is not known",)


def test_partitions_of_a_deleted_topic_are_called_so(admin: Admin) -> None:
    admin.delete_topic("t")
    view = admin.describe_group("g")
    assert [(each.partition, each.state) for each in view.partitions] == [
        (ALIVE, "deleted"),
        (DEAD, "deleted"),
    ]
    assert view.notes == ("offsets are left of topics that do not exist any more: t",)


def test_what_a_group_that_commits_nothing_has_not_read_is_said_to_be_unknown(
    admin: Admin, half_dead: HalfDead
) -> None:
    half_dead.has_both, half_dead.start = True, 0
    session = half_dead.zookeeper.connect()
    execute(session, offset_admin.reset("other", ALIVE, "another topic's id", 3, "mark"))
    view = admin.describe_group("other")
    (row,) = view.partitions
    assert (row.committed, row.latest, row.lag, row.behind) == (None, END, None, None)
    (note,) = view.notes
    assert note.startswith("nothing is committed in 1 partition with records: its lag is not known")


def test_a_consumer_that_was_given_nothing_to_read_says_so_at_once(half_dead: HalfDead) -> None:
    for options in ({}, {"group": "g"}):
        with Consumer(zookeeper=half_dead.zookeeper.connect, **options) as consumer:  # type: ignore[arg-type]
            for read in (consumer.poll, consumer.poll_batch, lambda: next(iter(consumer))):
                with pytest.raises(NotAssigned, match="this consumer reads nothing: give group="):
                    read()
