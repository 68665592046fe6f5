"""Names of producers on a real ZooKeeper and on its twin: whoever comes back goes on, one at a time."""

import msgspec
import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.producer_takeovers import (
    PartitionStart,
    ProducerClaim,
    TopicStart,
    claim_name,
    find_other_attempts,
    forget_starts,
    note_starts,
)
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Get, Set
from folkmoot.coordination.zookeeper.recipes import Malformed, children
from folkmoot.protocol.batch_header import MAX_PRODUCER_EPOCH
from folkmoot.protocol.errors import ProducerFenced
from tests.coordination.sessions import Opener
from tests.coordination.steps import Steps, going_on, step
from tests.memory_zookeeper import MemoryZooKeeper

MOST_STEPS = 20


def test_a_round_that_follows_another_takes_the_next_epoch_of_the_same_id(
    open_session: Opener,
) -> None:
    session = open_session()
    first = execute(session, claim_name("query 7/0", 0, "a"))
    assert execute(session, note_starts("query 7/0", "a", "t", [PartitionStart(0, 0)])) == (
        1,
        [PartitionStart(0, 0)],
    )
    second = execute(session, claim_name("query 7/0", 1, "b"))
    assert (second.producer_id, second.epoch, second.topics) == (first.producer_id, 1, {})
    assert second.since == execute(session, claim_name("query 7/0", 1, "c")).since == 1
    assert execute(session, claim_name("query 7/1", 0, "c")).producer_id != first.producer_id


def test_a_round_that_runs_again_takes_the_next_epoch_and_knows_where_it_begins(
    open_session: Opener,
) -> None:
    session, other = open_session(), open_session()
    first = execute(session, claim_name("q", 3, "a"))
    execute(session, note_starts("q", "a", "t", [PartitionStart(10, 500), PartitionStart(20, 0)]))
    again = execute(other, claim_name("q", 3, "b"))
    assert (again.producer_id, again.epoch) == (first.producer_id, first.epoch + 1)
    begun = TopicStart(2, [PartitionStart(10, 500), PartitionStart(20, 0)])
    assert again.topics == {"t": begun}
    # What was noted stays; more partitions and topics may come.
    assert execute(other, note_starts("q", "b", "t", [PartitionStart(99, 99)])) == begun
    more = [PartitionStart(99, 99), PartitionStart(99, 99), PartitionStart(30, 3)]
    grown = TopicStart(2, [*begun.starts, PartitionStart(30, 3)])
    assert execute(other, note_starts("q", "b", "t", more)) == grown
    other_topic = execute(other, note_starts("q", "b", "u", [PartitionStart(5, 7)]))
    assert execute(other, claim_name("q", 3, "b")).topics == {"t": grown, "u": other_topic}
    with pytest.raises(ProducerFenced, match="taken over by another attempt"):
        execute(session, note_starts("q", "a", "v", [PartitionStart(0, 0)]))


def test_a_round_may_begin_again_behind_what_was_written_of_it(open_session: Opener) -> None:
    session = open_session()
    execute(session, claim_name("q", 3, "a"))
    execute(session, note_starts("q", "a", "t", [PartitionStart(10, 500)]))
    execute(session, forget_starts("q", "a"))
    execute(session, forget_starts("q", "a"))
    assert execute(session, claim_name("q", 3, "b")).topics == {}
    with pytest.raises(ProducerFenced, match="taken over by another attempt"):
        execute(session, forget_starts("q", "a"))


def test_names_of_a_round_that_others_have_begun_are_found(open_session: Opener) -> None:
    session = open_session()
    names = ("q/0", "q/1", "q/12", "q/3", "q/dead-1/0", "qq/5", "q/6")
    for name in names:
        execute(session, claim_name(name, 3 if name != "q/3" else 2, f"a {name}"))
        if name != "q/6":  # which has written nothing
            execute(session, note_starts(name, f"a {name}", "t", [PartitionStart(10, 500)]))
    assert execute(session, find_other_attempts("q/", 3, {0})) == {"q/1": "a q/1", "q/12": "a q/12"}
    execute(session, forget_starts("q/12", "a q/12"))
    assert execute(session, find_other_attempts("q/", 3, {0})) == {"q/1": "a q/1"}
    assert execute(session, find_other_attempts("q/", 3, {0, 1})) == {}
    assert execute(session, find_other_attempts("p/", 3, ())) == {}


def test_a_round_that_is_over_is_refused(open_session: Opener) -> None:
    session = open_session()
    execute(session, claim_name("q", 3, "a"))
    with pytest.raises(ProducerFenced, match="has begun sink epoch 3: sink epoch 2 is over"):
        execute(session, claim_name("q", 2, "b"))


def test_a_new_round_has_another_id_while_there_are_epochs_left_to_run_it_again(
    open_session: Opener,
) -> None:
    session = open_session()
    taken = execute(session, claim_name("q", 2, "a"))

    def wear(epoch: int, sink_epoch: int) -> None:
        worn = ProducerClaim(taken.producer_id, epoch, sink_epoch, "a")
        execute(session, Set(paths.producer_name("q"), msgspec.json.encode(worn)))

    wear(MAX_PRODUCER_EPOCH // 2, 2)
    assert execute(session, claim_name("q", 3, "x")).producer_id != taken.producer_id
    wear(MAX_PRODUCER_EPOCH // 2, 3)
    assert execute(session, claim_name("q", 3, "y")).producer_id == taken.producer_id
    wear(MAX_PRODUCER_EPOCH, 3)
    with pytest.raises(ProducerFenced, match="in all producer epochs up to 32767"):
        execute(session, claim_name("q", 3, "b"))
    fresh = execute(session, claim_name("q", 4, "b"))
    assert (fresh.epoch, fresh.producer_id != taken.producer_id) == (0, True)


@pytest.mark.parametrize("executed", [True, False], ids=["reply lost", "request lost"])
@pytest.mark.parametrize("sink_epoch", [0, 1], ids=["the same sink epoch", "the next sink epoch"])
def test_a_lost_reply_at_any_step_takes_over_once(
    open_session: Opener, sink_epoch: int, executed: bool
) -> None:
    session = open_session()
    for lost in range(MOST_STEPS):
        name = f"q{lost}"
        before = execute(session, claim_name(name, 0, "a"))
        execute(session, note_starts(name, "a", "t", [PartitionStart(7, 7)]))
        taken = Steps(open_session()).run(
            claim_name(name, sink_epoch, "b"), lost, executed=executed
        )
        assert (taken.producer_id, taken.attempt) == (before.producer_id, "b")
        assert (taken.epoch, taken.topics) == (
            1,
            {"t": (1, [PartitionStart(7, 7)])} if sink_epoch == 0 else {},
        )
        noted = Steps(open_session()).run(
            note_starts(name, "b", "u", [PartitionStart(1, 1)]), lost, executed=executed
        )
        again = execute(session, claim_name(name, sink_epoch, "b"))
        assert again.topics == {**taken.topics, "u": noted}


def test_one_who_dies_at_any_step_leaves_a_name_that_the_next_one_takes_over() -> None:
    for lived in range(MOST_STEPS):
        ensemble = MemoryZooKeeper()
        dying = ensemble.connect()
        ended = not Steps(dying).run_until(claim_name("q", 5, "a"), lived)
        ensemble.expire(dying)
        taken = execute(ensemble.connect(), claim_name("q", 5, "b"))
        assert (taken.sink_epoch, taken.attempt, taken.epoch) == (5, "b", taken.epoch)
        again = execute(ensemble.connect(), claim_name("q", 5, "c"))
        assert (again.producer_id, again.epoch) == (taken.producer_id, taken.epoch + 1)
        if ended:
            break
    else:
        pytest.fail("the recipe takes more steps than this test looks at")


def test_a_node_that_holds_something_else_is_named(open_session: Opener) -> None:
    session = open_session()
    execute(session, claim_name("a/b.c", 0, "a"))
    path = paths.producer_name("a/b.c")
    assert path == "/producers/names/a%2Fb%2Ec"
    assert execute(session, Get(path)).data
    execute(session, Set(path, b"{}"))
    with pytest.raises(Malformed, match="/producers/names/a%2Fb%2Ec"):
        execute(session, claim_name("a/b.c", 0, "b"))


def test_names_that_nobody_has_written_for_a_week_are_removed_by_whoever_brings_a_new_one() -> None:
    day = 24 * 3600.0
    now = [0.0]
    session = MemoryZooKeeper(clock=lambda: now[0]).connect()
    first = execute(session, claim_name("q/0", 0, "a"))
    for name in ("q/1", "q/2", "transactional/enricher-1"):
        execute(session, claim_name(name, 0, "a"))
    now[0] = 5 * day
    execute(session, claim_name("q/1", 1, "b"))
    execute(session, claim_name("q/2", 0, "b"))
    now[0] = 8 * day
    zombie = claim_name("q/0", 0, "c")
    its_write = step(session, zombie, next(zombie))
    assert isinstance(its_write, Set)
    new = execute(session, claim_name("q/3", 0, "a"))
    assert sorted(execute(session, children(paths.PRODUCER_NAMES))) == [
        path.rpartition("/")[2]
        for path in map(paths.producer_name, ("q/1", "q/2", "q/3", "transactional/enricher-1"))
    ]
    anew = execute(session, going_on(zombie, its_write))
    assert (anew.epoch, anew.attempt) == (0, "c")
    assert anew.producer_id not in (first.producer_id, new.producer_id)


def test_of_many_names_some_are_looked_at_each_time() -> None:
    now = [0.0]
    session = MemoryZooKeeper(clock=lambda: now[0]).connect()
    for number in range(40):
        execute(session, claim_name(f"q{number}", 0, "a"))
    now[0] = 8 * 24 * 3600.0
    left = []
    for number in range(4):
        execute(session, claim_name(f"new{number}", 0, "a"))
        left.append(len(execute(session, children(paths.PRODUCER_NAMES))))
    assert left == [25, 10, 3, 4]
