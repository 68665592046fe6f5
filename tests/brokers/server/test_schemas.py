"""Topics that take values of one subject only, and schemas by id: what is asked of ZooKeeper, and when."""

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from folkmoot.brokers.jobs.job_pool import JobPool
from folkmoot.brokers.jobs.jobs import Job, Now, result_of
from folkmoot.brokers.server import schemas as module
from folkmoot.brokers.server.event_loop import EventLoop
from folkmoot.brokers.server.metadata_cache import ClusterView
from folkmoot.brokers.server.purgatory import Response
from folkmoot.brokers.server.request_handlers import RequestHandlers
from folkmoot.brokers.server.schemas import MISS_PAUSE, Schemas, describe_schema
from folkmoot.consumers.broker_schemas import BrokerSchemas
from folkmoot.coordination import topics
from folkmoot.coordination.schemas.versions import Reference
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import WatchCallback
from folkmoot.network.server import ServerSocket
from folkmoot.protocol import batch_header, record_batch, wire
from folkmoot.protocol.batch_header import NO_SCHEMA, NO_VALUES
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import (
    ConfigError,
    CorruptBatch,
    FolkmootError,
    OutOfOrderSequence,
    ResponseTooLarge,
    SchemaNotFound,
    SchemaRefused,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import (
    Api,
    GetSchemaRequest,
    GetSchemaResponse,
    HelloRequest,
    MetadataRequest,
    ProduceResponse,
)
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.brokers.parts import (
    BROKERS,
    TOPIC,
    Peer,
    carried_out,
    fetch,
    into,
    make_handlers,
    make_logs,
    out_of,
    produce,
)
from tests.brokers.server.test_broker import make_broker
from tests.memory_zookeeper import MemoryZooKeeper
from tests.waiting import eventually

NOW = Now(100.0, 1_700_000_000_000)
SUBJECT = "orders-value"
ASKING = replace(TOPIC, config={"value_schema": SUBJECT})
FREE = replace(TOPIC, topic_id="id-2")
ITEM = '{"type": "record", "name": "shop.Item", "fields": [{"name": "n", "type": "int"}]}'
ORDER = '{"type": "record", "name": "shop.Order", "fields": [{"name": "i", "type": "shop.Item"}]}'


class Registry:
    """Subjects and schemas in a ZooKeeper that counts what it is asked, and the time."""

    def __init__(self) -> None:
        self.subjects: dict[str, set[int]] = {SUBJECT: {7, 8}}
        self.watches: dict[str, WatchCallback] = {}
        self.texts: dict[int | UUID, GetSchemaResponse] = {}
        self.asked: list[Any] = []
        self.trouble: Exception | None = None
        self.paused = 0.0
        self.jobs: list[Callable[[], None]] = []
        self.schemas = Schemas(self.live_ids, self.schema, self.submit, self.pause)

    def submit(self, _key: Any, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """What is done beside batches: by `turn`."""
        self.jobs.append(lambda: done(result_of(work)))

    def turn(self) -> None:
        """The periodic task, and the jobs that it submits, one after the other."""
        self.schemas.task(NOW)
        while self.jobs:
            self.jobs.pop(0)()

    def change(self, subject: str, *ids: int) -> None:
        """Write a subject, and fire its watch if there is one."""
        self.subjects[subject] = set(ids)
        self.watches.pop(subject, lambda: None)()

    def live_ids(self, subject: str, watch: WatchCallback) -> set[int]:
        self._ask(subject)
        self.watches[subject] = watch
        return set(self.subjects.get(subject, ()))

    def schema(self, key: tuple[str, int | UUID]) -> GetSchemaResponse:
        _, number = key
        self._ask(number)
        found = self.texts.get(number)
        if found is None:
            raise SchemaNotFound(f"no schema has the id {number}")
        return found

    def pause(self, seconds: float) -> None:
        self.paused += seconds

    def _ask(self, what: Any) -> None:
        self.asked.append(what)
        if self.trouble is not None:
            raise self.trouble


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def handlers(tmp_path: Path, registry: Registry) -> Iterator[RequestHandlers]:
    view = ClusterView(BROKERS, {"t": ASKING, "free": FREE})
    with make_logs(tmp_path / "data") as logs:
        yield make_handlers(logs, view, schemas=registry.schemas)


def batch(schema_id: int, *values: bytes | None, producer: int = -1, first: int = -1) -> bytes:
    """What a producer sends whose header says this id, whatever the values are."""
    given = list(values or (b"v",))
    identity: dict[str, Any] = {
        "producer_id": producer,
        "producer_epoch": 0,
        "base_sequence": first,
    }
    columns = Columns(len(given), None, given, 1000)
    return record_batch.encode(
        columns, Codec.NONE, schema_id=schema_id, **(identity if producer >= 0 else {})
    )


def sent(
    handlers: RequestHandlers, *batches: bytes, into_: Sequence[Any] | None = None
) -> list[Any]:
    """The results of a request with these batches, all of them for partition 0 unless told otherwise."""
    entries = into_ or [into(0)] * len(batches)
    outcome = carried_out(produce(*entries), batches, NOW, handlers)
    assert isinstance(outcome, Response)
    assert isinstance(outcome.body, ProduceResponse)
    return outcome.body.results


def errors_of(handlers: RequestHandlers, *batches: bytes) -> list[int]:
    return [result.error for result in sent(handlers, *batches)]


# -- which batches are taken --------------------------------------------------------------------------


def test_a_batch_of_another_schema_is_refused_and_its_neighbours_are_appended(
    handlers: RequestHandlers,
) -> None:
    ids = (7, 9, NO_SCHEMA, 8, NO_VALUES)
    results = sent(handlers, *map(batch, ids), batch(9), into_=[into(0)] * 5 + [into(1)])
    refused = SchemaRefused.code
    assert [each.error for each in results] == [0, refused, refused, 0, 0, refused]
    assert [each.base_offset for each in results if not each.error] == [0, 1, 2]
    for number, said in (1, "schema id 9 "), (2, "schema id 0"), (5, "schema id 9 "):
        assert said in results[number].message
        assert SUBJECT in results[number].message


def test_topics_that_ask_for_nothing_take_what_comes_without_a_question(
    handlers: RequestHandlers, registry: Registry
) -> None:
    free = into(0, "free", "id-2")
    results = sent(handlers, batch(9), batch(0), into_=[free, free])
    assert [each.error for each in results] == [0, 0]
    assert registry.asked == []


def test_with_acks_0_a_batch_of_another_schema_is_not_appended_either(
    handlers: RequestHandlers,
) -> None:
    for number in (9, 7):
        assert carried_out(produce(into(0), acks=0), [batch(number)], NOW, handlers) is None
    outcome = carried_out(fetch(out_of(0)), (), NOW, handlers)
    assert isinstance(outcome, Response)
    (chunk,) = outcome.payloads
    assert [header.schema_id for header, _ in batch_header.split(chunk)] == [7]


def test_a_batch_that_comes_again_is_answered_as_before_though_its_schema_is_deleted(
    handlers: RequestHandlers, registry: Registry
) -> None:
    one, two = batch(7, producer=5, first=0), batch(7, producer=5, first=1)
    assert errors_of(handlers, one) == [0]
    registry.change(SUBJECT)
    registry.turn()
    again, next_one, behind = sent(handlers, one, two, batch(8, producer=5, first=2))
    assert (again.error, again.base_offset) == (0, 0)
    assert next_one.error == SchemaRefused.code
    assert behind.error == OutOfOrderSequence.code, "a refused batch uses no sequence"
    registry.subjects[SUBJECT] = {8}
    assert errors_of(handlers, batch(8, producer=5, first=1)) == [0]


def test_a_batch_that_cannot_be_read_is_corrupt_whatever_its_id(handlers: RequestHandlers) -> None:
    torn = bytearray(batch(9))
    torn[-1] ^= 1
    for garbage in (bytes(torn), b"", b"short", bytes(83)):
        assert errors_of(handlers, garbage) == [CorruptBatch.code]


def test_what_the_broker_asks_of_all_topics_a_topic_can_take_back(
    tmp_path: Path, registry: Registry
) -> None:
    view = ClusterView(
        BROKERS, {"t": TOPIC, "free": replace(FREE, config={"value_schema": "none"})}
    )
    with make_logs(tmp_path / "data", LogConfig(value_schema=SUBJECT)) as logs:
        handlers = make_handlers(logs, view, schemas=registry.schemas)
        results = sent(handlers, batch(9), batch(9), into_=[into(0), into(0, "free", "id-2")])
    assert [each.error for each in results] == [SchemaRefused.code, 0]


@pytest.mark.parametrize("subject", ["", "a\nb", "x" * 513])
def test_what_cannot_be_a_subject_cannot_be_asked_for(subject: str) -> None:
    with pytest.raises(ConfigError, match="value_schema"):
        LogConfig(value_schema=subject)


# -- when ZooKeeper is asked --------------------------------------------------------------------------


def test_known_ids_cost_one_question(handlers: RequestHandlers, registry: Registry) -> None:
    for _ in range(10):
        assert errors_of(handlers, batch(7), batch(8)) == [0, 0]
        registry.turn()
    assert registry.asked == [SUBJECT]
    assert registry.paused == 0.0


def test_tombstones_and_batches_that_say_no_schema_cost_none(
    handlers: RequestHandlers, registry: Registry
) -> None:
    assert errors_of(handlers, batch(0), batch(NO_VALUES, None)) == [SchemaRefused.code, 0]
    assert registry.asked == []


def test_an_id_registered_a_moment_ago_is_looked_up_before_it_is_judged(
    handlers: RequestHandlers, registry: Registry
) -> None:
    assert errors_of(handlers, batch(9)) == [SchemaRefused.code]
    registry.subjects[SUBJECT].add(9)
    assert errors_of(handlers, batch(9)) == [0]


def test_a_deleted_version_is_noticed_by_its_watch(
    handlers: RequestHandlers, registry: Registry
) -> None:
    assert errors_of(handlers, batch(7)) == [0]
    for _ in range(2):
        registry.change(SUBJECT, 8)
        registry.turn()
        assert errors_of(handlers, batch(7), batch(8)) == [SchemaRefused.code, 0]
        registry.change(SUBJECT, 7, 8)
        registry.turn()
        assert errors_of(handlers, batch(7), batch(8)) == [0, 0]


def test_each_look_in_vain_is_followed_by_a_pause(
    handlers: RequestHandlers, registry: Registry
) -> None:
    for number in range(100, 110):
        errors_of(handlers, *[batch(number)] * 20)
    assert registry.asked == [SUBJECT] * 10
    assert registry.paused == pytest.approx(10 * MISS_PAUSE)


@pytest.mark.parametrize("trouble", [ZooKeeperUnreachable("away"), ValueError("a fault of ours")])
def test_without_zookeeper_known_ids_are_taken_and_others_may_come_again(
    handlers: RequestHandlers, registry: Registry, trouble: Exception
) -> None:
    assert errors_of(handlers, batch(7)) == [0]
    registry.trouble = trouble
    registry.change(SUBJECT, 9)
    for _ in range(5):
        registry.turn()
        results = sent(handlers, batch(7), batch(9), batch(0))
        unreachable = ZooKeeperUnreachable.code
        assert [each.error for each in results] == [0, unreachable, SchemaRefused.code]
        assert str(trouble) in results[1].message
    assert registry.paused == 0.0
    registry.trouble = None
    registry.turn()
    assert errors_of(handlers, batch(7), batch(9)) == [SchemaRefused.code, 0]


def test_batches_of_known_ids_wait_neither_for_a_refresh_nor_for_a_zookeeper_that_is_away(
    registry: Registry,
) -> None:
    schemas = registry.schemas
    assert judged(schemas, SUBJECT, 7) == ({}, 1)
    registry.change(SUBJECT, 8)
    schemas.task(NOW)
    assert len(registry.jobs) == 1
    assert judged(schemas, SUBJECT, 7) == ({}, 0)
    registry.trouble = ZooKeeperUnreachable("away")
    for _ in range(100):
        registry.turn()
        assert judged(schemas, SUBJECT, 7) == ({}, 0)


def test_a_subject_that_cannot_be_read_does_not_keep_later_ones_from_being_tried(
    registry: Registry,
) -> None:
    for number in range(3):
        registry.subjects[f"s{number}"] = {7}
        judged(registry.schemas, f"s{number}", 7)
    registry.asked.clear()
    registry.trouble = ZooKeeperUnreachable("away")
    for number in range(3):
        registry.change(f"s{number}", 8)
    registry.turn()
    assert len(registry.asked) == 1, "ZooKeeper does not answer the others either"
    registry.trouble = None
    registry.turn()
    assert sorted(registry.asked[1:]) == ["s0", "s1", "s2"]
    for number in range(3):
        assert judged(registry.schemas, f"s{number}", 8) == ({}, 0)


def test_subjects_that_are_remembered_are_bounded(
    monkeypatch: pytest.MonkeyPatch, registry: Registry
) -> None:
    monkeypatch.setattr(module, "MAX_SUBJECTS", 10)
    for number in range(30):
        judged(registry.schemas, f"s{number}", 1)
    assert len(registry.schemas._subjects) == 10
    registry.asked.clear()
    for number in range(30):
        registry.change(f"s{number}", 1)
    registry.turn()
    assert sorted(registry.asked) == [f"s{number}" for number in range(20, 30)]


def test_requests_that_wait_for_a_read_share_it_and_later_ones_do_not(registry: Registry) -> None:
    one = registry.schemas.refusals(SUBJECT, {0: 9})
    two = registry.schemas.refusals(SUBJECT, {0: 9})
    jobs = [next(one), next(two)]
    jobs[0].finish(jobs[0].run())
    later = next(registry.schemas.refusals(SUBJECT, {0: 9}))
    registry.subjects[SUBJECT].add(9)
    jobs[1].finish(jobs[1].run())
    assert registry.asked == [SUBJECT]
    later.finish(later.run())
    assert registry.asked == [SUBJECT] * 2
    assert judged(registry.schemas, SUBJECT, 9) == ({}, 0)


def test_what_a_thread_has_read_counts_once_the_event_loop_has_taken_it(registry: Registry) -> None:
    registry.subjects[SUBJECT].add(9)
    steps = registry.schemas.refusals(SUBJECT, {0: 9})
    job = next(steps)
    found = job.run()
    others = registry.schemas.refusals(SUBJECT, {0: 9})
    assert list(islice(others, 1)) != [], "another request has to wait, too"
    job.finish(found)
    assert judged(registry.schemas, SUBJECT, 9) == ({}, 0)


def test_requests_that_wait_for_a_schema_share_its_look_up(registry: Registry) -> None:
    registry.texts[5] = GetSchemaResponse('"long"', [])
    one, two = registry.schemas.resolve((".", 5)), registry.schemas.resolve((".", 5))
    for job in (next(one), next(two)):
        carried_out_job(job)
    assert registry.asked == [5]
    for steps in (one, two):
        with pytest.raises(StopIteration) as end:
            next(steps)
        assert end.value.value == registry.texts[5]


def judged(schemas: Schemas, subject: str, *ids: int) -> tuple[dict[int, FolkmootError], int]:
    """The refusals of batches with these ids, and how many jobs they have waited for."""
    steps, jobs = schemas.refusals(subject, dict(enumerate(ids))), 0
    while True:
        try:
            job = next(steps)
        except StopIteration as end:
            return end.value, jobs
        carried_out_job(job)
        jobs += 1


def carried_out_job(job: Job) -> None:
    job.finish(result_of(job.run))


# -- schemas by id ------------------------------------------------------------------------------------


def asked_for(handlers: RequestHandlers, number: int) -> GetSchemaResponse:
    outcome = carried_out(GetSchemaRequest(number), (), NOW, handlers)
    assert isinstance(outcome, Response)
    assert isinstance(outcome.body, GetSchemaResponse)
    return outcome.body


def test_a_schema_is_asked_for_once(handlers: RequestHandlers, registry: Registry) -> None:
    registry.texts[5] = GetSchemaResponse('"a.B"', ['{"type": "enum"}'])
    for _ in range(3):
        assert asked_for(handlers, 5) == registry.texts[5]
    assert registry.asked == [5]


def test_requests_for_unknown_ids_wait_where_others_do_not(registry: Registry) -> None:
    registry.texts[5] = GetSchemaResponse('"long"', [])
    guess, other = registry.schemas.resolve((".", 6)), registry.schemas.resolve((".", 5))
    look = next(guess)
    carried_out_job(look)
    pause, found = next(guess), next(other)
    assert len({each.lane for each in (look, pause)}) == 2  # type: ignore[attr-defined]
    assert found.lane == look.lane  # type: ignore[attr-defined]
    carried_out_job(pause)
    assert registry.paused == pytest.approx(MISS_PAUSE)
    with pytest.raises(SchemaNotFound):
        next(guess)
    carried_out_job(found)
    with pytest.raises(StopIteration):
        next(other)
    assert registry.paused == pytest.approx(MISS_PAUSE)


def test_an_id_that_was_never_given_is_not_found_until_it_is_given(
    handlers: RequestHandlers, registry: Registry
) -> None:
    with pytest.raises(SchemaNotFound, match="id 5"):
        asked_for(handlers, 5)
    registry.texts[5] = GetSchemaResponse('"long"', [])
    assert asked_for(handlers, 5).schema == '"long"'


def test_without_zookeeper_known_schemas_are_told_and_others_may_be_asked_for_again(
    handlers: RequestHandlers, registry: Registry
) -> None:
    registry.texts[5] = GetSchemaResponse('"long"', [])
    asked_for(handlers, 5)
    registry.trouble = ZooKeeperUnreachable("away")
    assert asked_for(handlers, 5).schema == '"long"'
    with pytest.raises(ZooKeeperUnreachable):
        asked_for(handlers, 6)


def test_schemas_that_are_remembered_are_bounded_and_the_one_used_last_stays(
    monkeypatch: pytest.MonkeyPatch, handlers: RequestHandlers, registry: Registry
) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_CHARACTERS", 100)
    registry.texts = {number: GetSchemaResponse("x" * 20, ["y" * 20]) for number in range(1, 5)}
    registry.texts[9] = GetSchemaResponse("z" * 101, [])
    for number in (1, 2, 1, 3, 1):
        asked_for(handlers, number)
    assert registry.asked == [1, 2, 3]
    asked_for(handlers, 2)
    assert registry.asked == [1, 2, 3, 2], "two fit"
    assert asked_for(handlers, 9).schema == "z" * 101
    assert registry.schemas._characters == 0


# -- beside the event loop ----------------------------------------------------------------------------


class Gate:
    """A registry whose answers wait until the test lets them through."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.open = threading.Event()

    def held(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*what: Any) -> Any:
            assert self.open.wait(30)
            return ask(*what)

        return wait


def test_a_look_holds_up_no_one_but_its_own_connection(tmp_path: Path, registry: Registry) -> None:
    gate = Gate(registry)
    jobs = JobPool()
    live_ids, schema = gate.held(registry.live_ids), gate.held(registry.schema)
    schemas = Schemas(live_ids, schema, jobs.submit, jobs.pause)
    socket = ServerSocket()
    address = f"127.0.0.1:{socket.bind('127.0.0.1', 0)}"
    failures: list[Exception] = []
    with make_logs(tmp_path / "data") as logs:
        view = ClusterView(BROKERS, {"t": ASKING, "free": FREE})
        handlers = make_handlers(logs, view, jobs.submit, schemas=schemas)
        loop = EventLoop(socket, handlers, failures.append)
        jobs.start(loop.post)
        loop.start()
        try:
            with Peer(address) as one, Peer(address) as two:
                first = one.ask(Api.PRODUCE, produce(into(0)), [batch(7)])
                second = one.ask(Api.PRODUCE, produce(into(0), into(0)), [batch(9), batch(8)])
                free = [batch(0)]
                answer, _ = two.call(Api.PRODUCE, produce(into(0, "free", "id-2")), free)
                assert [each.error for each in answer.results] == [0]
                two.call(Api.HELLO, HelloRequest("still there?"))
                gate.open.set()
                answers = [one.receive()[0] for _ in range(2)]
                assert [each.correlation_id for each in answers] == [first, second]
                bodies = [wire.response_body(Api.PRODUCE, each).results for each in answers]
                assert [[each.error for each in results] for results in bodies] == [
                    [0],
                    [SchemaRefused.code, 0],
                ]
        finally:
            gate.open.set()
            loop.stop()
            jobs.close()
            socket.close()
    assert failures == []


# -- a whole broker -----------------------------------------------------------------------------------


def test_a_broker_takes_what_its_registry_has_and_tells_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH_AFTER", 0.01)
    ensemble = MemoryZooKeeper()
    user = ensemble.connect()
    registry = SchemaRegistry(user)
    with (
        make_broker(ensemble, tmp_path / "b") as broker,
        Peer(broker.listeners["client"]) as peer,
    ):
        options = {"value_schema": SUBJECT}
        topic = execute(user, topics.create("t", 1, [1], options))
        eventually(lambda: peer.call(Api.METADATA, MetadataRequest(None))[0].topics)

        def errors(number: int) -> list[int]:
            entry = into(0, topic_id=topic.topic_id)
            answer, _ = peer.call(Api.PRODUCE, produce(entry), [batch(number)])
            return [each.error for each in answer.results]

        other = registry.register("other-value", ITEM).id
        assert errors(other) == [SchemaRefused.code]
        mine = registry.register(SUBJECT, '"long"').id
        assert errors(mine) == [0]
        schemas = BrokerSchemas(broker.listeners["client"], timeout=20)
        assert schemas.resolved(mine) == '"long"'
        order = registry.register(
            "orders", ORDER, references=[Reference("shop.Item", "other-value", 1)]
        ).id
        assert schemas.resolved(order) == registry.resolved(order)
        assert '"shop.Item"' in schemas.resolved(order)
        guid = UUID(registry.get(order).guid)
        assert schemas.resolved(guid) == schemas.resolved(order)
        assert schemas.resolved(guid, subject=":.other:") == schemas.resolved(order)
        with pytest.raises(SchemaNotFound):
            schemas.resolved(order + 100)
        with pytest.raises(SchemaNotFound, match="guid 00000000-0000-0000-0000-000000000007"):
            schemas.resolved(UUID(int=7))
        registry.delete_version(SUBJECT, 1)
        eventually(lambda: errors(mine) == [SchemaRefused.code])
        assert schemas.resolved(mine) == '"long"', "what is in the log can be read"


def test_a_topic_takes_ids_of_a_subject_in_another_context_and_readers_resolve_them(
    tmp_path: Path,
) -> None:
    ensemble = MemoryZooKeeper()
    user = ensemble.connect()
    registry = SchemaRegistry(user)
    registry.register("item", ITEM)  # id 1 of the default context
    item = registry.register(":.staging:item", '"int"')
    order = registry.register(
        ":.staging:orders-value", ORDER, references=[Reference("shop.Item", ":.:item", 1)]
    )
    assert (item.id, order.id) == (1, 2)
    with (
        make_broker(ensemble, tmp_path / "b") as broker,
        Peer(broker.listeners["client"]) as peer,
    ):
        options = {"value_schema": ":.staging:orders-value"}
        topic = execute(user, topics.create("t", 1, [1], options))
        eventually(lambda: peer.call(Api.METADATA, MetadataRequest(None))[0].topics)
        entry = into(0, topic_id=topic.topic_id, epoch=-1)
        for number, error in ((order.id, 0), (item.id, SchemaRefused.code)):
            answer, _ = peer.call_leader(Api.PRODUCE, produce(entry), [batch(number)])
            assert [each.error for each in answer.results] == [error]
        schemas = BrokerSchemas(broker.listeners["client"], timeout=20)
        assert schemas.resolved(1, subject=":.staging:") == '"int"'
        assert schemas.resolved(1) == registry.resolved(1) != '"int"'
        resolved = schemas.resolved(2, subject=":.staging:orders-value")
        assert resolved == registry.resolved(2, subject=":.staging:")
        assert '"shop.Item"' in resolved
        with pytest.raises(SchemaNotFound, match=r"id 2 in this"):
            schemas.resolved(2)
        with pytest.raises(SchemaNotFound, match=r"id 2 in context \.other"):
            schemas.resolved(2, subject=":.other:")


def test_a_schema_with_references_that_fit_into_no_answer_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = MemoryZooKeeper().connect()
    registry = SchemaRegistry(session)
    registry.register("items", ITEM)
    order = registry.register("orders", ORDER, references=[Reference("shop.Item", "items", 1)]).id
    assert execute(session, describe_schema(".", order)) == GetSchemaResponse(ORDER, [ITEM])
    with pytest.raises(SchemaNotFound):
        execute(session, describe_schema(".", order + 1))
    monkeypatch.setattr(module, "MAX_ENVELOPE_BYTES", len(ITEM + ORDER) - 1)
    with pytest.raises(ResponseTooLarge):
        execute(session, describe_schema(".", order))
