"""Producer ids on a real ZooKeeper and on its twin: whatever dies or is lost, none is given twice."""

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest

from folkmoot.coordination import paths, producer_ids
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Operation, SessionLost, Set
from folkmoot.coordination.zookeeper.recipes import Malformed, ensure
from tests.coordination.sessions import Opener
from tests.coordination.steps import Steps
from tests.memory_zookeeper import MemoryZooKeeper
from tests.schemas.sessions import CountingSession, Loss
from tests.seeds import new_seed

MOST_STEPS = 12


def disjoint(blocks: list[range]) -> bool:
    ids = list(chain.from_iterable(blocks))
    return len(set(ids)) == len(ids)


def test_blocks_follow_each_other(open_session: Opener) -> None:
    session, other = open_session(), open_session()
    assert execute(session, producer_ids.allocate(10)) == range(10)
    assert execute(other, producer_ids.allocate(1)) == range(10, 11)
    assert execute(session, producer_ids.allocate(5)) == range(11, 16)


def test_a_counter_that_was_lost_or_set_back_gives_no_id_below_what_the_taker_has_seen(
    open_session: Opener,
) -> None:
    session = open_session()
    assert execute(session, producer_ids.allocate(10, 100)) == range(100, 110)
    assert execute(session, producer_ids.allocate(10, 50)) == range(110, 120)
    assert execute(session, producer_ids.allocate(10)) == range(120, 130)


@pytest.mark.parametrize("executed", [True, False], ids=["reply lost", "request lost"])
def test_a_lost_reply_at_any_step_wastes_ids_at_most(open_session: Opener, executed: bool) -> None:
    given = []
    for lost in range(MOST_STEPS):
        given.append(Steps(open_session()).run(producer_ids.allocate(3), lost, executed=executed))
    assert all(len(block) == 3 for block in given)
    assert disjoint(given)


@pytest.mark.parametrize("laid_out", [True, False])
def test_a_taker_that_dies_at_any_step_wastes_ids_at_most(laid_out: bool) -> None:
    for step in range(MOST_STEPS):
        ensemble = MemoryZooKeeper()
        given = [execute(ensemble.connect(), producer_ids.allocate(3))] if laid_out else []
        dying = ensemble.connect()
        ended = not Steps(dying).run_until(producer_ids.allocate(3), step)
        ensemble.expire(dying)
        given += [execute(ensemble.connect(), producer_ids.allocate(3)) for _ in range(2)]
        assert disjoint(given)
        assert given[-1].stop <= 3 * (len(given) + 1)
        if ended:
            break
    else:
        pytest.fail("the recipe takes more steps than this test looks at")


def test_twenty_takers_at_a_time_get_twenty_blocks(open_session: Opener) -> None:
    seed = new_seed()

    def take(number: int) -> list[range]:
        chance = random.Random(seed + number)

        def lose(operation: Operation) -> Loss:
            return chance.choice(("request", "reply")) if chance.random() < 0.05 else None

        session = CountingSession(open_session(), lose)
        return [execute(session, producer_ids.allocate(chance.randrange(1, 5))) for _ in range(5)]

    with ThreadPoolExecutor(20) as pool:
        given = list(chain.from_iterable(pool.map(take, range(20))))
    assert len(given) == 100
    assert disjoint(given)


def test_a_session_that_ends_midway_is_said() -> None:
    ensemble = MemoryZooKeeper()
    execute(ensemble.connect(), producer_ids.allocate(1))
    session = ensemble.connect()

    def expire(operation: Operation) -> Loss:
        if isinstance(operation, Set):
            ensemble.expire(session)
        return None

    with pytest.raises(SessionLost):
        execute(CountingSession(session, expire), producer_ids.allocate(1))
    assert execute(ensemble.connect(), producer_ids.allocate(1)).start in (1, 2)


@pytest.mark.parametrize("data", [b"\xff", b"{}", b'{"next":-1}', b'{"next":9223372036854775807}'])
def test_a_counter_that_others_have_scribbled_on_is_an_error(data: bytes) -> None:
    session = MemoryZooKeeper().connect()
    execute(session, ensure(paths.PRODUCER_IDS, data))
    with pytest.raises(Malformed, match=paths.PRODUCER_IDS):
        execute(session, producer_ids.allocate(1))


def test_a_taker_that_asks_for_far_too_much_leaves_ids_for_all_others() -> None:
    session = MemoryZooKeeper().connect()
    first = execute(session, producer_ids.allocate(10, 2**63))
    assert execute(session, producer_ids.allocate(10)).start == first.stop
