"""Schema ids on a real ZooKeeper and on its twin: no id twice, no text with two ids."""

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, repeat

import pytest

from folkmoot.coordination import paths, schema_ids
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import (
    Create,
    Delete,
    Get,
    Multi,
    Operation,
    Recipe,
    SessionLost,
    Set,
)
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.errors import InvalidSchema, InvalidSubject
from tests.coordination.sessions import Opener
from tests.memory_zookeeper import MemoryZooKeeper, Request
from tests.schemas.sessions import CountingSession, Loss
from tests.seeds import new_seed


@pytest.fixture
def session(open_session: Opener) -> Session:
    return open_session()


def test_the_first_schema_gets_id_1_and_is_found_by_everything_that_names_it(
    session: Session,
) -> None:
    assert execute(session, schema_ids.register("flights-value", "text")) == 1
    assert execute(session, schema_ids.text_of(1)) == "text"
    assert execute(session, schema_ids.id_of("text")) == 1
    assert execute(session, schema_ids.latest("flights-value")) == (1, "text")
    assert execute(session, schema_ids.versions_of("flights-value")) == [1]
    assert execute(session, schema_ids.subjects()) == ["flights-value"]


def test_what_was_never_registered_is_not_there(session: Session) -> None:
    assert execute(session, schema_ids.text_of(1)) is None
    assert execute(session, schema_ids.text_of(0)) is None
    assert execute(session, schema_ids.text_of(-1)) is None
    assert execute(session, schema_ids.id_of("text")) is None
    assert execute(session, schema_ids.latest("s")) is None
    assert execute(session, schema_ids.versions_of("s")) == []
    assert execute(session, schema_ids.subjects()) == []


def test_the_same_text_keeps_its_id_under_every_subject(session: Session) -> None:
    assert execute(session, schema_ids.register("a", "text")) == 1
    assert execute(session, schema_ids.register("b", "other")) == 2
    assert execute(session, schema_ids.register("b", "text")) == 1
    assert execute(session, schema_ids.register("b", "text")) == 1
    assert execute(session, schema_ids.versions_of("b")) == [2, 1]
    assert execute(session, schema_ids.latest("b")) == (1, "text")
    assert execute(session, schema_ids.subjects()) == ["a", "b"]


@pytest.mark.parametrize("subject", [".", "..", "a/b", "a b", "ü%2F", "zookeeper", "x" * 512])
def test_a_subject_may_have_any_printable_name(session: Session, subject: str) -> None:
    assert execute(session, schema_ids.register(subject, "text")) == 1
    assert execute(session, schema_ids.subjects()) == [subject]
    assert execute(session, schema_ids.latest(subject)) == (1, "text")


@pytest.mark.parametrize("subject", ["", "x" * 513, "a\nb", "a\0b", "\ud800"])
def test_other_subjects_are_refused(session: Session, subject: str) -> None:
    with pytest.raises(InvalidSubject, match="subject"):
        execute(session, schema_ids.register(subject, "text"))
    assert execute(session, schema_ids.subjects()) == []


def test_a_text_too_long_for_zookeeper_is_refused_and_nothing_is_done(session: Session) -> None:
    # A quotation mark takes two bytes in JSON.
    with pytest.raises(InvalidSchema, match="bytes to store"):
        execute(session, schema_ids.register("s", '"' * (schema_ids.MAX_TEXT_BYTES // 2)))
    assert execute(session, schema_ids.text_of(1)) is None
    assert execute(session, schema_ids.register("s", "x" * (schema_ids.MAX_TEXT_BYTES - 100))) == 1


@pytest.mark.parametrize("loss", ["request", "reply"])
def test_every_operation_may_lose_its_reply_and_the_id_is_still_the_one(
    open_session: Opener, loss: Loss
) -> None:
    """Each n-th operation is lost in turn, until a registration needs no more than n."""
    lost = 0
    for nth in range(100):
        losses: Iterator[Loss] = chain(repeat(None, nth), [loss], repeat(None))
        session = CountingSession(open_session(), partial(lambda each, _: next(each), losses))
        text = f"text {nth}"
        number = execute(session, schema_ids.register("s", text))
        assert number == nth + 1
        assert execute(session, schema_ids.text_of(number)) == text
        if session.asked <= nth:
            break
        lost += 1
    assert lost >= 4


def test_twenty_concurrent_registrars_give_no_id_twice_and_no_text_two_ids(
    open_session: Opener,
) -> None:
    seed = new_seed()
    texts = [f"text {number}" for number in range(15)]

    def register(registrar: int) -> list[tuple[str, int]]:
        chance = random.Random(seed + registrar)

        def lose(operation: Operation) -> Loss:
            return chance.choice(("request", "reply")) if chance.random() < 0.05 else None

        session = CountingSession(open_session(), lose)
        mine = chance.sample(texts, len(texts))
        subjects = [f"subject {chance.randrange(3)}" for _ in mine]
        return [
            (text, execute(session, schema_ids.register(subject, text)))
            for subject, text in zip(subjects, mine, strict=True)
        ]

    with ThreadPoolExecutor(20) as pool:
        given = {pair for pairs in pool.map(register, range(20)) for pair in pairs}
    assert sorted(number for _, number in given) == list(range(1, len(texts) + 1))
    assert Counter(text for text, _ in given) == Counter(texts)
    session = open_session()
    for text, number in given:
        assert execute(session, schema_ids.text_of(number)) == text
        assert execute(session, schema_ids.id_of(text)) == number
    for subject in execute(session, schema_ids.subjects()):
        versions = execute(session, schema_ids.versions_of(subject))
        assert len(versions) == len(set(versions))


def test_a_registration_is_one_transaction(session: Session) -> None:
    execute(session, schema_ids.register("s", "first"))
    written: list[Operation] = []

    def watch(operation: Operation) -> Loss:
        if isinstance(operation, Multi | Set | Create | Delete):
            written.append(operation)
        return None

    execute(CountingSession(session, watch), schema_ids.register("s", "second"))
    (transaction,) = written
    assert isinstance(transaction, Multi)
    assert len(transaction.writes) == 4


def test_a_registrar_whose_session_ends_midway_leaves_all_or_nothing() -> None:
    ensemble = MemoryZooKeeper()
    execute(ensemble.connect(), schema_ids.register("s", "first"))
    session = ensemble.connect()

    def expire(operation: Operation) -> Loss:
        if isinstance(operation, Multi):
            ensemble.expire(session)
        return None

    with pytest.raises(SessionLost):
        execute(CountingSession(session, expire), schema_ids.register("s", "second"))
    fresh = ensemble.connect()
    assert execute(fresh, schema_ids.id_of("second")) is None
    assert execute(fresh, schema_ids.register("s", "second")) == 2


def test_a_counter_that_lags_behind_the_ids_is_an_error_and_no_endless_loop(
    session: Session,
) -> None:
    execute(session, schema_ids.register("s", "first"))
    execute(session, Set(paths.SCHEMA_COUNTER, b'{"last":0}'))
    with pytest.raises(Malformed, match="id 1 exists"):
        execute(session, schema_ids.register("s", "second"))
    assert execute(session, schema_ids.register("s", "first")) == 1


@pytest.mark.parametrize("path", [paths.SCHEMA_COUNTER, paths.subject("s"), paths.schema_id(1)])
def test_a_node_that_others_have_scribbled_on_is_an_error(session: Session, path: str) -> None:
    execute(session, schema_ids.register("s", "first"))
    execute(session, Set(path, b"\xff{"))
    recipe: Recipe[object]
    recipe = (
        schema_ids.text_of(1) if path == paths.schema_id(1) else schema_ids.register("s", "new")
    )
    with pytest.raises(Malformed, match=path):
        execute(session, recipe)


def test_a_name_that_no_subject_has_is_not_listed(session: Session) -> None:
    execute(session, schema_ids.register("s", "first"))
    execute(session, Create(f"{paths.SUBJECTS}/%zz"))
    execute(session, Create(f"{paths.SUBJECTS}/%73"))
    assert execute(session, schema_ids.subjects()) == ["s"]


def test_what_a_lagging_server_does_not_know_yet_is_found_by_asking_the_leader() -> None:
    ensemble = MemoryZooKeeper()
    reader, writer = ensemble.connect(), ensemble.connect()
    before = ensemble.snapshot()
    execute(writer, schema_ids.register("s", "text"))
    lagging = True

    def deliver(request: Request) -> None:
        nonlocal lagging
        if isinstance(request.operation, Get) and lagging:
            request.execute(before)
        else:
            lagging = False  # a transaction's answer comes from a server that has caught up
            request.execute()
        request.reply()

    ensemble.deliver = deliver
    assert execute(reader, schema_ids.text_of(1)) == "text"
