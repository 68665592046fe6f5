"""Registering on a real ZooKeeper and on its twin: ids, versions, modes, references, sizes, losses."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.schemas import deletion, lookups, settings
from folkmoot.coordination.schemas.names import GLOBAL, SubjectName, parse, parse_subject
from folkmoot.coordination.schemas.nodes import MAX_CONTENT_BYTES, MAX_NUMBER, encode_content
from folkmoot.coordination.schemas.registering import note_seen, register
from folkmoot.coordination.schemas.versions import Reference
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
from folkmoot.protocol.errors import (
    IncompatibleSchema,
    InvalidSchema,
    InvalidSubject,
    OperationNotPermitted,
    ReferenceExists,
    RegistryError,
)
from tests.coordination.schemas.drafts import TextDraft, named
from tests.coordination.sessions import Opener
from tests.coordination.steps import going_on, step
from tests.memory_zookeeper import MemoryZooKeeper
from tests.schemas.sessions import CountingSession, Loss

S, T, U = named("s"), named("t"), named("u")


@pytest.fixture
def session(open_session: Opener) -> Session:
    return open_session()


def put(
    session: Session, name: SubjectName, text: str, *references: Reference, **more: Any
) -> tuple[int, int]:
    """Version and id of a text registered."""
    found, _ = execute(session, register(name, TextDraft(text, references, name.context), **more))
    return found.version, found.id


def live(session: Session, name: SubjectName) -> list[tuple[int, int]]:
    subject = execute(session, lookups.subject_of(name))
    return [(each.version, each.id) for each in subject.live()]


def test_the_same_text_keeps_its_id_under_every_subject(session: Session) -> None:
    assert put(session, S, "a") == (1, 1)
    assert put(session, S, "ab") == (2, 2)
    assert put(session, T, "ab") == (1, 2)
    assert put(session, S, "a") == (1, 1)
    assert live(session, S) == [(1, 1), (2, 2)]
    content = execute(session, lookups.content_of(".", 2))
    assert content is not None
    assert content.schema == "ab"
    assert execute(session, lookups.users(".", 2)) == [S, T]


def test_version_numbers_go_on_after_a_soft_deletion_and_begin_anew_after_a_permanent_one(
    session: Session,
) -> None:
    assert [put(session, S, text) for text in ("a", "ab", "abc")] == [(1, 1), (2, 2), (3, 3)]
    assert execute(session, deletion.delete_subject(S)) == [1, 2, 3]
    assert put(session, S, "a") == (4, 1)
    assert execute(session, deletion.delete_subject(S)) == [4]
    assert execute(session, deletion.delete_subject(S, permanent=True)) == [1, 2, 3, 4]
    assert put(session, S, "d") == (1, 4)
    assert put(session, T, "abc") == (1, 3)


def test_what_is_softly_deleted_is_not_judged_against(session: Session) -> None:
    put(session, S, "ab")
    with pytest.raises(IncompatibleSchema):
        put(session, S, "ac")
    execute(session, deletion.delete_version(S, 1))
    assert put(session, S, "ac") == (2, 2)


def test_contexts_have_ids_versions_and_levels_of_their_own(session: Session) -> None:
    other = parse_subject(":.c:s")
    assert put(session, S, "ab") == put(session, other, "x") == (1, 1)
    execute(session, settings.put("compatibility", "NONE", parse(":.c:")))
    assert put(session, other, "y") == (2, 2)
    with pytest.raises(IncompatibleSchema):
        put(session, S, "y")
    assert execute(session, lookups.contexts()) == [".", ".c"]
    assert execute(session, lookups.subjects(".c")) == [other]


@pytest.mark.parametrize(
    "subject", [".", "..", "a/b", "a b", "ü%2F", "zookeeper", ":x:", "x" * 512]
)
def test_a_subject_may_have_any_printable_name(session: Session, subject: str) -> None:
    name = parse_subject(subject)
    assert put(session, name, "a") == (1, 1)
    assert execute(session, lookups.subjects(".")) == [name]
    assert str(name) == subject


@pytest.mark.parametrize(
    "subject", ["", "x" * 513, "a\nb", "a\0b", "\ud800", ":.c:", ":.c", ":*:", ":*:s"]
)
def test_other_subjects_are_refused(subject: str) -> None:
    with pytest.raises(InvalidSubject, match="subject"):
        parse_subject(subject)


def test_imported_ids_and_versions_are_kept_and_later_ids_are_above_them(session: Session) -> None:
    assert put(session, T, "x") == (1, 1)
    with pytest.raises(OperationNotPermitted, match="not in mode IMPORT"):
        put(session, S, "a", number=7)
    execute(session, settings.put("mode", "IMPORT", S))
    with pytest.raises(OperationNotPermitted, match="in mode IMPORT: give"):
        put(session, S, "a")
    assert put(session, S, "b", number=50, version=9) == (9, 50)
    assert put(session, S, "b", number=50, version=9) == (9, 50)
    assert put(session, S, "c", number=40, version=3) == (3, 40)  # nobody judges these
    with pytest.raises(OperationNotPermitted, match="another schema"):
        put(session, S, "d", number=50)
    with pytest.raises(OperationNotPermitted, match="has the id 50 already"):
        put(session, S, "b", number=60)
    with pytest.raises(OperationNotPermitted, match="has a version 3 already"):
        put(session, S, "d", number=60, version=3)
    execute(session, settings.put("mode", None, S))
    assert put(session, T, "xy") == (2, 51)


def test_behind_the_highest_version_there_is_no_other(session: Session) -> None:
    execute(session, settings.put("mode", "IMPORT", S))
    assert put(session, S, "a", number=7, version=MAX_NUMBER) == (MAX_NUMBER, 7)
    execute(session, settings.put("mode", None, S))
    with pytest.raises(OperationNotPermitted, match="use another subject"):
        put(session, S, "ab")


def test_new_ids_are_above_those_that_brokers_have_seen_in_batches(session: Session) -> None:
    """A registry that was lost, or set back, would decode old records by new schemas."""
    assert put(session, S, "a") == (1, 1)
    for seen, noted in ((0, None), (7, b'{"last":7}'), (5, b'{"last":7}'), (9, b'{"last":9}')):
        execute(session, note_seen(seen))
        if noted is not None:
            assert execute(session, Get(paths.SEEN_SCHEMA_ID)).data == noted
    assert put(session, S, "ab") == (2, 10)
    assert put(session, T, "c") == (1, 11)


def test_in_mode_readonly_nothing_is_changed_and_what_is_there_is_found(session: Session) -> None:
    put(session, S, "a")
    execute(session, settings.put("mode", "READONLY", GLOBAL))
    assert put(session, S, "a") == (1, 1)
    changes: list[Recipe[Any]] = [
        register(S, TextDraft("ab")),
        deletion.delete_version(S, 1),
        deletion.delete_subject(S),
        settings.put("compatibility", "NONE", S),
    ]
    for change in changes:
        with pytest.raises(OperationNotPermitted, match="READONLY"):
            execute(session, change)
    execute(session, settings.put("mode", "READWRITE", S))
    assert put(session, S, "ab") == (2, 2)


def test_import_needs_force_where_schemas_are(session: Session) -> None:
    put(session, S, "a")
    for name in (S, GLOBAL):
        with pytest.raises(OperationNotPermitted, match="force"):
            execute(session, settings.put("mode", "IMPORT", name))
    execute(session, settings.put("mode", "IMPORT", T))
    execute(session, settings.put("mode", "IMPORT", parse(":.c:")))
    execute(session, settings.put("mode", "IMPORT", GLOBAL, force=True))
    assert execute(session, settings.get("mode", S, True)) == "IMPORT"


def test_what_live_versions_refer_to_is_not_deleted(session: Session) -> None:
    put(session, T, "x")
    to_t = Reference("r", "t", -1)
    assert put(session, S, "a", to_t) == (1, 2)
    assert put(session, S, "a") == (2, 3)  # without the reference it is another schema
    assert execute(session, lookups.referrers(T, 1)) == [2]
    for delete in (deletion.delete_version(T, 1), deletion.delete_subject(T)):
        with pytest.raises(ReferenceExists, match="id 2"):
            execute(session, delete)
    execute(session, deletion.delete_version(S, 1))
    assert execute(session, lookups.referrers(T, 1)) == []
    assert execute(session, deletion.delete_version(T, 1)) == 1
    with pytest.raises(InvalidSchema, match="does not exist"):
        put(session, S, "a", to_t)


def test_a_subject_whose_versions_refer_to_each_other_is_deleted_as_a_whole(
    session: Session,
) -> None:
    put(session, S, "a")
    put(session, S, "ab", Reference("r", "s", 1), Reference("q", "s", 1))
    with pytest.raises(ReferenceExists):
        execute(session, deletion.delete_version(S, 1))
    assert execute(session, deletion.delete_subject(S)) == [1, 2]
    assert execute(session, lookups.referrers(S, 1)) == []


def test_what_is_too_large_is_refused_and_nothing_is_done(session: Session) -> None:
    with pytest.raises(InvalidSchema, match="bytes to store"):
        put(session, S, '"' * (MAX_CONTENT_BYTES // 2))
    assert execute(session, lookups.content_of(".", 1)) is None
    assert put(session, S, "a" * (MAX_CONTENT_BYTES - 100)) == (1, 1)


def test_a_subject_with_too_much_for_one_transaction_is_deleted_version_by_version() -> None:
    session = MemoryZooKeeper().connect()
    name = named("\N{SNOWMAN WITHOUT SNOW}" * 512)  # nine bytes each in a path
    execute(session, settings.put("compatibility", "NONE", GLOBAL))
    versions = [put(session, name, f"a.{number}")[0] for number in range(230)]
    assert execute(session, deletion.delete_subject(name)) == versions
    with pytest.raises(OperationNotPermitted, match="one by one"):
        execute(session, deletion.delete_subject(name, permanent=True))
    for version in versions:
        execute(session, deletion.delete_version(name, version, permanent=True))
    assert execute(session, lookups.subject_of(name)).versions == ()


def test_metadata_is_a_json_object_of_bounded_depth() -> None:
    draft = TextDraft("a")
    content = execute(MemoryZooKeeper().connect(), draft.content(()))
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"x": deep}
    metadata: Any
    for metadata in (deep, {"x": float("nan")}, {1: 2}, {"x": object()}):
        bad = type(content)(content.schema, content.guid, (), metadata)
        with pytest.raises(InvalidSchema):
            encode_content(bad)


def test_a_subject_of_the_default_context_is_ruled_by_what_is_set_for_all_without_a_look_between(
    session: Session,
) -> None:
    execute(session, settings.put("compatibility", "FULL", GLOBAL))
    counted = CountingSession(session)
    assert execute(counted, settings.get("compatibility", S, True)) == "FULL"
    assert counted.asked == 3, "the sync, its own node, and that of all"


def test_a_registration_is_one_transaction(session: Session) -> None:
    put(session, S, "a")
    written: list[Operation] = []

    def watch(operation: Operation) -> Loss:
        if isinstance(operation, Multi | Set | Create | Delete):
            written.append(operation)
        return None

    assert put(CountingSession(session, watch), S, "ab") == (2, 2)
    (transaction,) = written
    assert isinstance(transaction, Multi)


LOSSES: dict[str, Callable[[], Recipe[Any]]] = {
    "register": lambda: register(S, TextDraft("abc", [Reference("r", "t", 1)])),
    "delete_version": lambda: deletion.delete_version(S, "latest"),
    "delete_version permanently": lambda: deletion.delete_version(S, 1, permanent=True),
    "delete_subject": lambda: deletion.delete_subject(S),
    "set a level": lambda: settings.put("compatibility", "FULL", S),
    "refer": lambda: register(S, TextDraft("abc", [Reference("r", "u", 1)])),
    "delete what is referred to": lambda: deletion.delete_subject(U),
    "take a mode back": lambda: settings.put("mode", None, S),
}


def prepare(session: Session) -> None:
    put(session, T, "x")
    put(session, U, "y")
    put(session, S, "a")
    put(session, S, "ab", Reference("r", "t", 1))
    execute(session, deletion.delete_version(S, 1))
    execute(session, settings.put("mode", "READWRITE", S))


@pytest.mark.parametrize("loss", ["request", "reply"])
@pytest.mark.parametrize("what", LOSSES)
def test_every_operation_may_lose_its_reply_and_the_answer_is_the_same(
    what: str, loss: Loss
) -> None:
    """Each n-th operation is lost in turn, until the recipe needs no more than n."""
    clean = MemoryZooKeeper()
    prepare(clean.connect())
    answer = execute(clean.connect(), LOSSES[what]())
    after = {path: node.data for path, node in clean.snapshot().items()}
    for nth in range(100):
        ensemble = MemoryZooKeeper()
        prepare(ensemble.connect())
        losses: Iterator[Loss] = chain(repeat(None, nth), [loss], repeat(None))
        session = CountingSession(ensemble.connect(), partial(lambda each, _: next(each), losses))
        found = execute(session, LOSSES[what]())
        assert found == answer or found[0] == answer[0]
        assert {path: node.data for path, node in ensemble.snapshot().items()} == after
        if session.asked <= nth:
            break
    assert nth >= 2


@pytest.mark.parametrize("first", LOSSES)
@pytest.mark.parametrize("second", LOSSES)
def test_of_two_at_once_each_has_an_answer_that_it_would_have_had_alone(
    first: str, second: str
) -> None:
    """The second runs as a whole between any two steps of the first."""
    alone = {answers(first, second), answers(second, first)[::-1]}
    for steps in range(100):
        ensemble = MemoryZooKeeper()
        session = ensemble.connect()
        prepare(session)
        recipe = LOSSES[first]()
        try:
            operation = next(recipe)
            for _ in range(steps):
                operation = step(session, recipe, operation)
        except StopIteration:
            break
        of_second = answer(session, LOSSES[second]())
        assert (answer(session, going_on(recipe, operation)), of_second) in alone
    assert steps >= 2


def answers(first: str, second: str) -> tuple[str, str]:
    session = MemoryZooKeeper().connect()
    prepare(session)
    return answer(session, LOSSES[first]()), answer(session, LOSSES[second]())


def answer(session: Session, recipe: Recipe[Any]) -> str:
    try:
        found = execute(session, recipe)
    except RegistryError as error:
        return type(error).__name__
    return repr(found[0] if isinstance(found, tuple) else found)


def test_of_two_that_fit_the_past_but_not_each_other_the_second_is_refused() -> None:
    session = MemoryZooKeeper().connect()
    put(session, S, "a")
    first, second = (register(S, TextDraft(text)) for text in ("ab", "ac"))
    operation = next(first)
    while not isinstance(operation, Multi):
        operation = step(session, first, operation)
    execute(session, second)
    with pytest.raises(IncompatibleSchema):
        execute(session, going_on(first, operation))


def test_a_registrar_whose_session_ends_midway_leaves_all_or_nothing() -> None:
    ensemble = MemoryZooKeeper()
    put(ensemble.connect(), S, "a")
    session = ensemble.connect()

    def expire(operation: Operation) -> Loss:
        if isinstance(operation, Multi):
            ensemble.expire(session)
        return None

    with pytest.raises(SessionLost):
        put(CountingSession(session, expire), S, "ab")
    assert live(ensemble.connect(), S) == [(1, 1)]


def test_a_counter_that_lags_behind_the_ids_is_an_error_and_no_endless_loop(
    session: Session,
) -> None:
    put(session, S, "a")
    execute(session, Set(paths.schema_counter("."), b'{"last":0}'))
    with pytest.raises(Malformed, match="ids/0000000001"):
        put(session, S, "ab")
    assert put(session, S, "a") == (1, 1)


@pytest.mark.parametrize("path", [paths.schema_counter("."), paths.subject(".", "s")])
def test_a_node_that_others_have_scribbled_on_is_an_error(session: Session, path: str) -> None:
    put(session, S, "a")
    execute(session, Set(path, b"\xff{"))
    with pytest.raises(Malformed, match=path):
        put(session, S, "ab")
