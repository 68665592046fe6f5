"""What every store does: operations, their errors, transactions, watches, order."""

import time

import pytest

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
    Set,
    Stat,
    StoreError,
    Sync,
    TooLarge,
    Verb,
    Write,
)
from folkmoot.coordination.zookeeper.session import (
    Outcome,
    SessionState,
    Store,
    ensure,
    perform,
    run,
    run_all,
)
from tests.contracts.backends import Backend
from tests.waiting import eventually


def exists(store: Store, path: str) -> bool:
    return perform(store, Exists(path)) is not None


def get(store: Store, path: str) -> Node:
    node: Node = perform(store, Get(path))
    return node


def failure(store: Store, *writes: Write) -> tuple[int, type[StoreError]]:
    with pytest.raises(MultiFailed) as raised:
        perform(store, Multi(writes))
    return raised.value.failed, type(raised.value.cause)


# -- single operations ------------------------------------------------------------------------------


def test_a_sync_has_no_answer_but_that_it_is_done(store: Store) -> None:
    assert perform(store, Sync()) is None
    assert perform(store, Sync("/nowhere")) is None


def test_a_node_is_created_read_written_and_deleted(store: Store) -> None:
    assert perform(store, Create("/a", b"1")) == "/a"
    assert get(store, "/a").data == b"1"
    assert perform(store, Set("/a", b"2")) == 1
    assert get(store, "/a").data == b"2"
    assert perform(store, Delete("/a")) is None
    assert not exists(store, "/a")


def test_a_node_without_data_reads_as_no_bytes(store: Store) -> None:
    perform(store, Create("/a"))
    assert get(store, "/a").data == b""


def test_data_may_be_any_bytes(store: Store) -> None:
    data = bytes(range(256)) * 40
    perform(store, Create("/a", data))
    assert get(store, "/a").data == data


def test_a_stat_tells_version_creation_and_owner(store: Store, backend: Backend) -> None:
    perform(store, Create("/first"))
    perform(store, Create("/second", ephemeral=True))
    first: Stat = perform(store, Exists("/first"))
    second = get(store, "/second").stat
    assert (first.version, first.ephemeral_owner) == (0, 0)
    assert second.ephemeral_owner != 0
    assert first.czxid < second.czxid
    assert first.ctime <= second.ctime
    perform(store, Set("/first", b"x"))
    written: Stat = perform(store, Exists("/first"))
    assert written == Stat(1, first.czxid, first.ctime, 0, written.mtime)
    assert first.mtime == first.ctime <= written.mtime
    perform(backend.open(), Create("/third", ephemeral=True))
    assert get(store, "/third").stat.ephemeral_owner != second.ephemeral_owner


def test_a_node_created_again_is_another_one_with_the_same_version(store: Store) -> None:
    perform(store, Create("/a"))
    before = get(store, "/a").stat
    perform(store, Delete("/a"))
    perform(store, Create("/a"))
    after = get(store, "/a").stat
    assert (after.version, before.version) == (0, 0)
    assert after.czxid > before.czxid


@pytest.mark.parametrize(
    "operation", [Get("/no"), Children("/no"), Set("/no", b""), Delete("/no"), Create("/no/a")]
)
def test_what_needs_a_node_that_is_not_there_fails(store: Store, operation: Operation) -> None:
    with pytest.raises(NoNode, match="/no"):
        perform(store, operation)


def test_an_absent_node_has_no_stat(store: Store) -> None:
    assert perform(store, Exists("/no")) is None


def test_a_node_is_created_once(store: Store) -> None:
    perform(store, Create("/a", b"1"))
    with pytest.raises(NodeExists, match="/a"):
        perform(store, Create("/a", b"2"))
    assert get(store, "/a").data == b"1"


def test_a_write_under_an_old_version_changes_nothing(store: Store) -> None:
    perform(store, Create("/a", b"1"))
    assert perform(store, Set("/a", b"2", 0)) == 1
    with pytest.raises(BadVersion, match="/a"):
        perform(store, Set("/a", b"3", 0))
    with pytest.raises(BadVersion, match="/a"):
        perform(store, Delete("/a", 0))
    assert get(store, "/a").data == b"2"
    perform(store, Delete("/a", 1))


def test_a_node_with_children_is_not_deleted(store: Store) -> None:
    perform(store, Create("/a"))
    perform(store, Create("/a/b"))
    with pytest.raises(NotEmpty, match="/a"):
        perform(store, Delete("/a"))
    perform(store, Delete("/a/b"))
    perform(store, Delete("/a"))


def test_an_ephemeral_node_has_no_children(store: Store) -> None:
    perform(store, Create("/a", ephemeral=True))
    with pytest.raises(StoreError, match="/a/b"):
        perform(store, Create("/a/b"))


def test_children_are_names_not_paths(store: Store) -> None:
    for path in ("/a", "/a/b", "/a/c", "/a/b/d"):
        perform(store, Create(path))
    assert sorted(perform(store, Children("/a"))) == ["b", "c"]
    assert perform(store, Children("/a/c")) == []
    assert perform(store, Children("/")) == ["a"]


def test_a_sequence_counts_all_children_ever_created(store: Store) -> None:
    perform(store, Create("/a"))
    assert perform(store, Create("/a/m-", sequence=True)) == "/a/m-0000000000"
    perform(store, Create("/a/plain"))
    perform(store, Delete("/a/plain"))
    assert perform(store, Create("/a/m-", sequence=True)) == "/a/m-0000000002"
    assert perform(store, Create("/a/x", sequence=True, ephemeral=True)) == "/a/x0000000003"
    perform(store, Create("/b"))
    assert perform(store, Create("/b/m-", sequence=True)) == "/b/m-0000000000"


def test_ensure_creates_what_is_missing_of_a_path(store: Store) -> None:
    run(store, ensure("/a/b/c"))
    run(store, ensure("/a/b/c/d"))
    assert exists(store, "/a/b/c/d")


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/../a", "/a/.", "/a\0b"])
def test_what_is_no_path_is_a_mistake_of_the_caller(store: Store, path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        perform(store, Get(path))
    with pytest.raises(ValueError, match="not a path"):
        perform(store, Multi((Create(path),)))


def test_more_than_zookeeper_takes_is_refused_and_the_session_unharmed(store: Store) -> None:
    half = bytes(MAX_REQUEST_BYTES // 2)
    perform(store, Create("/a", half))
    with pytest.raises(TooLarge, match="/a"):
        perform(store, Set("/a", half * 2))
    with pytest.raises(TooLarge):
        perform(store, Multi((Set("/a", half), Create("/b", half))))
    assert store.state is SessionState.CONNECTED
    assert get(store, "/a").data == half


def test_the_most_that_is_not_refused_is_taken(store: Store) -> None:
    writes = tuple(Create(f"/{number}", bytes(999_000 // 100 - 105)) for number in range(100))
    perform(store, Multi(writes))
    perform(store, Create("/large", bytes(MAX_REQUEST_BYTES - 110)))
    assert len(get(store, "/large").data) == MAX_REQUEST_BYTES - 110


# -- transactions -----------------------------------------------------------------------------------


def test_a_transaction_does_all_and_answers_each(store: Store) -> None:
    perform(store, Create("/a"))
    perform(store, Create("/gone"))
    results = perform(
        store,
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
    assert get(store, "/a").data == b"x"
    assert sorted(perform(store, Children("/a"))) == ["s-0000000000", "s-0000000001"]
    assert not exists(store, "/gone")


def test_an_empty_transaction_does_nothing(store: Store) -> None:
    assert perform(store, Multi(())) == []


def test_a_transaction_that_fails_does_nothing_and_names_the_first_that_failed(
    store: Store,
) -> None:
    perform(store, Create("/a", b"1"))
    assert failure(store, Create("/b"), Set("/a", b"2"), Create("/a"), Delete("/no")) == (
        2,
        NodeExists,
    )
    assert failure(store, Check("/a", 1), Create("/b")) == (0, BadVersion)
    assert failure(store, Create("/b"), Check("/no")) == (1, NoNode)
    assert failure(store, Set("/a", b"2"), Set("/a", b"3", 0)) == (1, BadVersion)
    assert failure(store, Create("/b"), Create("/b/c"), Delete("/b")) == (2, NotEmpty)
    assert get(store, "/a").data == b"1"
    assert get(store, "/a").stat.version == 0
    assert perform(store, Children("/")) == ["a"]


def test_writes_of_a_transaction_see_those_before_them(store: Store) -> None:
    perform(store, Create("/a"))
    first = get(store, "/a").stat
    results = perform(
        store, Multi((Delete("/a"), Create("/a", b"new"), Create("/a/b"), Set("/a", b"newer", 0)))
    )
    assert results == [None, "/a", "/a/b", 1]
    assert get(store, "/a").stat.czxid > first.czxid


def test_the_nodes_of_a_transaction_have_one_birth(store: Store) -> None:
    perform(store, Multi((Create("/a"), Create("/b"))))
    assert get(store, "/a").stat.czxid == get(store, "/b").stat.czxid


def test_a_failed_transaction_leaves_no_gap_in_a_sequence(store: Store) -> None:
    assert failure(store, Create("/s-", sequence=True), Delete("/no")) == (1, NoNode)
    assert perform(store, Create("/s-", sequence=True)) == "/s-0000000000"


# -- order ------------------------------------------------------------------------------------------


def test_operations_take_effect_in_the_order_submitted(store: Store) -> None:
    perform(store, Create("/a"))
    outcomes: list[Outcome] = []
    for number in range(1000):
        store.submit(Set("/a", b"%d" % number, number), outcomes.append)
    assert get(store, "/a") == Node(b"999", get(store, "/a").stat)
    eventually(lambda: len(outcomes) == 1000)
    assert [outcome.error for outcome in outcomes] == [None] * 1000


def test_many_operations_may_be_submitted_at_once(store: Store) -> None:
    outcomes: list[Outcome] = []
    for _ in range(5000):
        store.submit(Exists("/no"), outcomes.append)
    eventually(lambda: len(outcomes) == 5000, timeout=60)


def test_an_operation_may_be_submitted_from_the_outcome_of_another(store: Store) -> None:
    finished: list[Outcome] = []
    perform(store, Create("/a"))

    def again(outcome: Outcome) -> None:
        assert outcome.error is None
        if outcome.result == 1500:
            finished.append(outcome)
        else:
            store.submit(Set("/a", b""), again)

    store.submit(Set("/a", b""), again)
    eventually(lambda: finished, timeout=60)


def test_what_one_session_has_written_another_reads(store: Store, backend: Backend) -> None:
    perform(store, Create("/a", b"1"))
    assert get(backend.open(), "/a").data == b"1"


def test_the_last_acknowledged_operation_is_known_by_when_it_was_sent(store: Store) -> None:
    before = time.monotonic()
    perform(store, Exists("/"))
    acknowledged = store.last_acknowledged()
    assert before <= acknowledged <= time.monotonic()
    with pytest.raises(NoNode):  # a refusal is an answer, too
        perform(store, Get("/no"))
    assert store.last_acknowledged() > acknowledged


# -- verbs side by side -------------------------------------------------------------------------------


def counted(path: str, number: int) -> Verb[int]:
    """Reads as often as its number says."""
    for _ in range(number % 5):
        yield Get(path)
    return number


def test_verbs_side_by_side_give_their_results_in_order_however_many_there_are(
    backend: Backend,
) -> None:
    store = backend.open()
    perform(store, Create("/a"))
    for at_once in (1, 7, 1_000):
        verbs = (counted("/a", number) for number in range(500))
        assert run_all(store, verbs, at_once) == list(range(500))
    assert run_all(store, ()) == []


def test_verbs_side_by_side_are_told_of_refusals_and_raise_what_they_do_not_expect(
    backend: Backend,
) -> None:
    store = backend.open()

    def expecting() -> Verb[str]:
        try:
            yield Get("/missing")
        except NoNode:
            return "none"
        return "some"

    assert run_all(store, (expecting() for _ in range(3))) == ["none"] * 3
    perform(store, Create("/a"))
    with pytest.raises(NoNode):
        run_all(store, (counted("/a", 3), counted("/missing", 1), counted("/a", 4)))
