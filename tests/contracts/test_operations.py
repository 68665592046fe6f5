"""What every session does: operations, their errors, transactions, watches, order."""

import time

import pytest

from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.operations import (
    MAX_REQUEST_BYTES,
    BadVersion,
    Check,
    Children,
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    MultiFailed,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Recipe,
    Set,
    Stat,
    Sync,
    TooLarge,
    Write,
    ZooKeeperError,
)
from folkmoot.coordination.zookeeper.recipes import ensure
from folkmoot.coordination.zookeeper.session import Outcome, Session, SessionState
from tests.contracts.backends import Backend
from tests.waiting import eventually


def exists(session: Session, path: str) -> bool:
    return execute(session, Exists(path)) is not None


def get(session: Session, path: str) -> Node:
    node: Node = execute(session, Get(path))
    return node


def failure(session: Session, *writes: Write) -> tuple[int, type[ZooKeeperError]]:
    with pytest.raises(MultiFailed) as raised:
        execute(session, Multi(writes))
    return raised.value.failed, type(raised.value.cause)


# -- single operations ------------------------------------------------------------------------------


def test_a_sync_has_no_answer_but_that_it_is_done(session: Session) -> None:
    assert execute(session, Sync()) is None
    assert execute(session, Sync("/nowhere")) is None


def test_a_node_is_created_read_written_and_deleted(session: Session) -> None:
    assert execute(session, Create("/a", b"1")) == "/a"
    assert get(session, "/a").data == b"1"
    assert execute(session, Set("/a", b"2")) == 1
    assert get(session, "/a").data == b"2"
    assert execute(session, Delete("/a")) is None
    assert not exists(session, "/a")


def test_a_node_without_data_reads_as_no_bytes(session: Session) -> None:
    execute(session, Create("/a"))
    assert get(session, "/a").data == b""


def test_data_may_be_any_bytes(session: Session) -> None:
    data = bytes(range(256)) * 40
    execute(session, Create("/a", data))
    assert get(session, "/a").data == data


def test_a_stat_tells_version_creation_and_owner(session: Session, backend: Backend) -> None:
    execute(session, Create("/first"))
    execute(session, Create("/second", ephemeral=True))
    first: Stat = execute(session, Exists("/first"))
    second = get(session, "/second").stat
    assert (first.version, first.ephemeral_owner) == (0, 0)
    assert second.ephemeral_owner != 0
    assert first.czxid < second.czxid
    assert first.ctime <= second.ctime
    execute(session, Set("/first", b"x"))
    written: Stat = execute(session, Exists("/first"))
    assert written == Stat(1, first.czxid, first.ctime, 0, written.mtime)
    assert first.mtime == first.ctime <= written.mtime
    execute(backend.open(), Create("/third", ephemeral=True))
    assert get(session, "/third").stat.ephemeral_owner != second.ephemeral_owner


def test_a_node_created_again_is_another_one_with_the_same_version(session: Session) -> None:
    execute(session, Create("/a"))
    before = get(session, "/a").stat
    execute(session, Delete("/a"))
    execute(session, Create("/a"))
    after = get(session, "/a").stat
    assert (after.version, before.version) == (0, 0)
    assert after.czxid > before.czxid


@pytest.mark.parametrize(
    "operation", [Get("/no"), Children("/no"), Set("/no", b""), Delete("/no"), Create("/no/a")]
)
def test_what_needs_a_node_that_is_not_there_fails(session: Session, operation: Operation) -> None:
    with pytest.raises(NoNode, match="/no"):
        execute(session, operation)


def test_an_absent_node_has_no_stat(session: Session) -> None:
    assert execute(session, Exists("/no")) is None


def test_a_node_is_created_once(session: Session) -> None:
    execute(session, Create("/a", b"1"))
    with pytest.raises(NodeExists, match="/a"):
        execute(session, Create("/a", b"2"))
    assert get(session, "/a").data == b"1"


def test_a_write_under_an_old_version_changes_nothing(session: Session) -> None:
    execute(session, Create("/a", b"1"))
    assert execute(session, Set("/a", b"2", 0)) == 1
    with pytest.raises(BadVersion, match="/a"):
        execute(session, Set("/a", b"3", 0))
    with pytest.raises(BadVersion, match="/a"):
        execute(session, Delete("/a", 0))
    assert get(session, "/a").data == b"2"
    execute(session, Delete("/a", 1))


def test_a_node_with_children_is_not_deleted(session: Session) -> None:
    execute(session, Create("/a"))
    execute(session, Create("/a/b"))
    with pytest.raises(NotEmpty, match="/a"):
        execute(session, Delete("/a"))
    execute(session, Delete("/a/b"))
    execute(session, Delete("/a"))


def test_an_ephemeral_node_has_no_children(session: Session) -> None:
    execute(session, Create("/a", ephemeral=True))
    with pytest.raises(ZooKeeperError, match="/a/b"):
        execute(session, Create("/a/b"))


def test_children_are_names_not_paths(session: Session) -> None:
    for path in ("/a", "/a/b", "/a/c", "/a/b/d"):
        execute(session, Create(path))
    assert sorted(execute(session, Children("/a"))) == ["b", "c"]
    assert execute(session, Children("/a/c")) == []
    assert execute(session, Children("/")) == ["a"]


def test_a_sequence_counts_all_children_ever_created(session: Session) -> None:
    execute(session, Create("/a"))
    assert execute(session, Create("/a/m-", sequence=True)) == "/a/m-0000000000"
    execute(session, Create("/a/plain"))
    execute(session, Delete("/a/plain"))
    assert execute(session, Create("/a/m-", sequence=True)) == "/a/m-0000000002"
    assert execute(session, Create("/a/x", sequence=True, ephemeral=True)) == "/a/x0000000003"
    execute(session, Create("/b"))
    assert execute(session, Create("/b/m-", sequence=True)) == "/b/m-0000000000"


def test_ensure_creates_what_is_missing_of_a_path(session: Session) -> None:
    execute(session, ensure("/a/b/c"))
    execute(session, ensure("/a/b/c/d"))
    assert exists(session, "/a/b/c/d")


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/../a", "/a/.", "/a\0b"])
def test_what_is_no_path_is_a_mistake_of_the_caller(session: Session, path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        execute(session, Get(path))
    with pytest.raises(ValueError, match="not a path"):
        execute(session, Multi((Create(path),)))


def test_more_than_zookeeper_takes_is_refused_and_the_session_unharmed(session: Session) -> None:
    half = bytes(MAX_REQUEST_BYTES // 2)
    execute(session, Create("/a", half))
    with pytest.raises(TooLarge, match="/a"):
        execute(session, Set("/a", half * 2))
    with pytest.raises(TooLarge):
        execute(session, Multi((Set("/a", half), Create("/b", half))))
    assert session.state is SessionState.CONNECTED
    assert get(session, "/a").data == half


def test_the_most_that_is_not_refused_is_taken(session: Session) -> None:
    writes = tuple(Create(f"/{number}", bytes(999_000 // 100 - 105)) for number in range(100))
    execute(session, Multi(writes))
    execute(session, Create("/large", bytes(MAX_REQUEST_BYTES - 110)))
    assert len(get(session, "/large").data) == MAX_REQUEST_BYTES - 110


# -- transactions -----------------------------------------------------------------------------------


def test_a_transaction_does_all_and_answers_each(session: Session) -> None:
    execute(session, Create("/a"))
    execute(session, Create("/gone"))
    results = execute(
        session,
        Multi(
            (
                Check("/a", 0),
                Set("/a", b"x", 0),
                Create("/a/s-", b"", ephemeral=True, sequence=True),
                Create("/a/s-", sequence=True),
                Delete("/gone"),
                Check("/a"),
            )
        ),
    )
    assert results == [None, 1, "/a/s-0000000000", "/a/s-0000000001", None, None]
    assert get(session, "/a").data == b"x"
    assert sorted(execute(session, Children("/a"))) == ["s-0000000000", "s-0000000001"]
    assert not exists(session, "/gone")


def test_an_empty_transaction_does_nothing(session: Session) -> None:
    assert execute(session, Multi(())) == []


def test_a_transaction_that_fails_does_nothing_and_names_the_first_that_failed(
    session: Session,
) -> None:
    execute(session, Create("/a", b"1"))
    assert failure(session, Create("/b"), Set("/a", b"2"), Create("/a"), Delete("/no")) == (
        2,
        NodeExists,
    )
    assert failure(session, Check("/a", 1), Create("/b")) == (0, BadVersion)
    assert failure(session, Create("/b"), Check("/no")) == (1, NoNode)
    assert failure(session, Set("/a", b"2"), Set("/a", b"3", 0)) == (1, BadVersion)
    assert failure(session, Create("/b"), Create("/b/c"), Delete("/b")) == (2, NotEmpty)
    assert get(session, "/a").data == b"1"
    assert get(session, "/a").stat.version == 0
    assert execute(session, Children("/")) == ["a"]


def test_writes_of_a_transaction_see_those_before_them(session: Session) -> None:
    execute(session, Create("/a"))
    first = get(session, "/a").stat
    results = execute(
        session, Multi((Delete("/a"), Create("/a", b"new"), Create("/a/b"), Set("/a", b"newer", 0)))
    )
    assert results == [None, "/a", "/a/b", 1]
    assert get(session, "/a").stat.czxid > first.czxid


def test_the_nodes_of_a_transaction_have_one_birth(session: Session) -> None:
    execute(session, Multi((Create("/a"), Create("/b"))))
    assert get(session, "/a").stat.czxid == get(session, "/b").stat.czxid


def test_a_failed_transaction_leaves_no_gap_in_a_sequence(session: Session) -> None:
    assert failure(session, Create("/s-", sequence=True), Delete("/no")) == (1, NoNode)
    assert execute(session, Create("/s-", sequence=True)) == "/s-0000000000"


# -- order ------------------------------------------------------------------------------------------


def test_operations_take_effect_in_the_order_submitted(session: Session) -> None:
    execute(session, Create("/a"))
    outcomes: list[Outcome] = []
    for number in range(1000):
        session.submit(Set("/a", b"%d" % number, number), outcomes.append)
    assert get(session, "/a") == Node(b"999", get(session, "/a").stat)
    eventually(lambda: len(outcomes) == 1000)
    assert [outcome.error for outcome in outcomes] == [None] * 1000


def test_many_operations_may_be_submitted_at_once(session: Session) -> None:
    outcomes: list[Outcome] = []
    for _ in range(5000):
        session.submit(Exists("/no"), outcomes.append)
    eventually(lambda: len(outcomes) == 5000, timeout=60)


def test_an_operation_may_be_submitted_from_the_outcome_of_another(session: Session) -> None:
    finished: list[Outcome] = []
    execute(session, Create("/a"))

    def again(outcome: Outcome) -> None:
        assert outcome.error is None
        if outcome.result == 1500:
            finished.append(outcome)
        else:
            session.submit(Set("/a", b""), again)

    session.submit(Set("/a", b""), again)
    eventually(lambda: finished, timeout=60)


def test_what_one_session_has_written_another_reads(session: Session, backend: Backend) -> None:
    execute(session, Create("/a", b"1"))
    assert get(backend.open(), "/a").data == b"1"


def test_the_last_acknowledged_operation_is_known_by_when_it_was_sent(session: Session) -> None:
    before = time.monotonic()
    execute(session, Exists("/"))
    acknowledged = session.last_acknowledged()
    assert before <= acknowledged <= time.monotonic()
    with pytest.raises(NoNode):  # a refusal is an answer, too
        execute(session, Get("/no"))
    assert session.last_acknowledged() > acknowledged


# -- recipes side by side -------------------------------------------------------------------------------


def counted(path: str, number: int) -> Recipe[int]:
    """Reads as often as its number says."""
    for _ in range(number % 5):
        yield Get(path)
    return number


def test_recipes_side_by_side_give_their_results_in_order_however_many_there_are(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = backend.open()
    execute(session, Create("/a"))
    for at_once in (1, 7, 1_000):
        monkeypatch.setattr("folkmoot.coordination.zookeeper.execute.AT_ONCE", at_once)
        recipes = (counted("/a", number) for number in range(500))
        assert execute_all(session, recipes) == list(range(500))
    assert execute_all(session, ()) == []


def test_recipes_side_by_side_are_told_of_refusals_and_raise_what_they_do_not_expect(
    backend: Backend,
) -> None:
    session = backend.open()

    def expecting() -> Recipe[str]:
        try:
            yield Get("/missing")
        except NoNode:
            return "none"
        return "some"

    assert execute_all(session, (expecting() for _ in range(3))) == ["none"] * 3
    execute(session, Create("/a"))
    with pytest.raises(NoNode):
        execute_all(session, (counted("/a", 3), counted("/missing", 1), counted("/a", 4)))
