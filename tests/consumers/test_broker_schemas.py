"""Schemas by id, asked of brokers: who is asked, how often, and what comes of wrong answers."""

import json
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from folkmoot.consumers import broker_schemas
from folkmoot.consumers.broker_schemas import BrokerSchemas
from folkmoot.network.ask_any import ask_any
from folkmoot.network.client import Reply
from folkmoot.protocol import wire
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    ConfigError,
    FolkmootError,
    InvalidRequest,
    InvalidSchema,
    RequestTimeout,
    ResponseTooLarge,
    SchemaNotFound,
    UnsupportedVersion,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import Api, ApiVersions, GetSchemaResponse, HelloResponse
from tests.consumers.test_forks import in_child
from tests.network.stub import StubBroker
from tests.network.test_client import unused_address
from tests.waiting import eventually

LONG = GetSchemaResponse('{"type": "long"}', [])
ITEM = '{"type": "record", "name": "shop.Item", "fields": [{"name": "n", "type": "int"}]}'
ORDER = '{"type": "record", "name": "shop.Order", "fields": [{"name": "i", "type": "shop.Item"}]}'


class Brokers:
    """What they answer, by id, and how often they were asked."""

    def __init__(self, **schemas: Any) -> None:
        self.answers: dict[int, Any] = {1: LONG}
        self.asked = 0

    def __call__(self, envelope: Any, body: Any, _payloads: Any) -> Any:
        assert envelope.api == Api.GET_SCHEMA
        self.asked += 1
        answer = self.answers.get(body.schema_id)
        if answer is None:
            raise SchemaNotFound(f"no schema has the id {body.schema_id}")
        if isinstance(answer, FolkmootError):
            raise answer
        if callable(answer):
            return answer(envelope)
        return answer


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker is asked a second time because it was slow."""
    monkeypatch.setattr(broker_schemas, "PATIENCE", 20.0)


@pytest.mark.usefixtures("patient")
def test_a_schema_that_is_known_is_not_asked_for_again_by_any_thread() -> None:
    brokers = Brokers()
    with StubBroker(brokers) as one:
        schemas = BrokerSchemas(one.address, timeout=20)
        found = [schemas.resolved(1)]
        threads = [
            threading.Thread(target=lambda: found.append(schemas.resolved(1))) for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert found == ['"long"'] * 6
    assert brokers.asked == 1


def test_a_child_that_is_forked_while_a_thread_asks_can_ask_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_schemas, "PATIENCE", 0.5)
    brokers = Brokers()
    brokers.answers[2] = lambda _envelope: None  # it is asked again until there is an answer
    with StubBroker(brokers) as one:
        schemas = BrokerSchemas(one.address, timeout=60)
        asking = threading.Thread(target=lambda: schemas.resolved(2))
        asking.start()
        eventually(lambda: brokers.asked)
        ended = in_child(lambda: schemas.resolved(1))
        brokers.answers[2] = LONG
        asking.join()
    assert ended == 0


def test_a_schema_comes_with_all_that_it_refers_to() -> None:
    brokers = Brokers()
    brokers.answers[2] = GetSchemaResponse(ORDER, [ITEM])
    with StubBroker(brokers) as one:
        text = BrokerSchemas([one.address], timeout=20).resolved(2)
    (field,) = json.loads(text)["fields"]
    assert field["type"]["name"] == "shop.Item"


def test_an_id_that_was_never_given_is_not_found_and_may_be_given_later() -> None:
    brokers = Brokers()
    with StubBroker(brokers) as one:
        schemas = BrokerSchemas(one.address, timeout=20)
        with pytest.raises(SchemaNotFound, match="id 7"):
            schemas.resolved(7)
        brokers.answers[7] = LONG
        assert schemas.resolved(7) == '"long"'


def test_a_broker_that_is_gone_or_cannot_say_is_passed_over() -> None:
    unable, able = Brokers(), Brokers()
    unable.answers[1] = ZooKeeperUnreachable("ZooKeeper does not answer")
    with StubBroker(unable) as one, StubBroker(able) as two:
        for _ in range(5):
            schemas = BrokerSchemas([unused_address(), one.address, two.address], timeout=20)
            assert schemas.resolved(1) == '"long"'
    assert able.asked >= 5


def test_a_broker_that_stands_still_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_schemas, "PATIENCE", 0.1)
    still, able = Brokers(), Brokers()
    still.answers[1] = lambda _envelope: None
    with StubBroker(still) as one, StubBroker(able) as two:
        for _ in range(5):
            assert BrokerSchemas([one.address, two.address], timeout=20).resolved(1) == '"long"'


def test_when_no_broker_knows_the_error_is_the_one_of_a_broker_that_was_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replies: list[Reply] = []

    def until_one_was_silent(*arguments: Any, **options: Any) -> Iterator[Reply]:
        for reply in ask_any(*arguments, patience=0.1):
            replies.append(reply)
            yield reply
            if has_refused() and isinstance(reply.error, RequestTimeout):
                return

    def has_refused() -> bool:
        return any(isinstance(each.error, ZooKeeperUnreachable) for each in replies)

    def away_then_silent(_envelope: Any) -> None:
        if not has_refused():
            raise ZooKeeperUnreachable("away")

    monkeypatch.setattr(broker_schemas, "ask_any", until_one_was_silent)
    brokers = Brokers()
    brokers.answers[1] = away_then_silent
    with StubBroker(brokers) as one, pytest.raises(ZooKeeperUnreachable, match="schema 1"):
        BrokerSchemas(one.address, timeout=60.0).resolved(1)


def test_when_nobody_answers_the_brokers_are_unreachable() -> None:
    with pytest.raises(BrokerUnreachable, match="schema 1"):
        BrokerSchemas(unused_address(), timeout=0.3).resolved(1)


def raw(body: Any) -> Any:
    """An answer that no broker gives."""
    return lambda envelope: [msgpack.packb([envelope.correlation_id, 0, "", body])]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (raw(None), InvalidRequest),
        (raw([]), InvalidRequest),
        (raw([1, []]), InvalidRequest),
        (raw(["{}", [1]]), InvalidRequest),
        (raw(["{}", [], "more"]), InvalidRequest),
        (raw({"schema": "{}"}), InvalidRequest),
        (GetSchemaResponse("{no json", []), InvalidSchema),
        (GetSchemaResponse(ORDER, []), InvalidSchema),
        (GetSchemaResponse('"a.B"', ["[]", "17"]), InvalidSchema),
        (GetSchemaResponse("x" * (wire.MAX_ENVELOPE_BYTES + 1), []), ResponseTooLarge),
    ],
)
def test_an_answer_that_is_none_is_a_typed_error_and_nothing_is_kept_of_it(
    answer: Any, error: type[Exception]
) -> None:
    brokers = Brokers()
    brokers.answers[1] = answer
    with StubBroker(brokers) as one:
        schemas = BrokerSchemas(one.address, timeout=20)
        with pytest.raises(error):
            schemas.resolved(1)
        brokers.answers[1] = LONG
        assert schemas.resolved(1) == '"long"'


def test_a_broker_that_does_not_know_the_request_is_told_by_its_name() -> None:
    with StubBroker(Brokers()) as one:
        known = [ApiVersions(api, 0, 0) for api in Api if api != Api.GET_SCHEMA]
        one.greeting = HelloResponse(1, 1_000_000, known)
        with pytest.raises(UnsupportedVersion, match="GET_SCHEMA"):
            BrokerSchemas(one.address, timeout=20).resolved(1)


def test_another_process_can_have_a_copy() -> None:
    with StubBroker(Brokers()) as one:
        schemas = BrokerSchemas(one.address, timeout=20)
        schemas.resolved(1)
        copy = pickle.loads(pickle.dumps(schemas))
        assert copy.resolved(1) == '"long"'


@pytest.mark.usefixtures("patient")
def test_schemas_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_schemas, "MAX_CACHED", 2)
    brokers = Brokers()
    brokers.answers = dict.fromkeys(range(1, 4), LONG)
    with StubBroker(brokers) as one:
        schemas = BrokerSchemas(one.address, timeout=20)
        for number in (1, 2, 3, 3, 2, 1):
            schemas.resolved(number)
    assert brokers.asked == 4


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="bootstrap"):
        BrokerSchemas("nowhere")
