"""The store on a real ZooKeeper that is paused, cut off, killed or not there at all."""

import threading
import time
from collections.abc import Iterator

import pytest

from folkmoot.console.embedded import EmbeddedZooKeeper
from folkmoot.coordination.zookeeper.kazoo_adapter import CLOSE_TIMEOUT, ZooKeeperStore, connect
from folkmoot.coordination.zookeeper.operations import (
    Children,
    ConnectionLost,
    Create,
    Exists,
    Get,
    SessionLost,
    Set,
)
from folkmoot.coordination.zookeeper.session import Outcome, SessionState, perform
from tests.contracts.backends import end_session
from tests.processes import thread_states
from tests.proxy import Proxy
from tests.waiting import eventually


@pytest.fixture
def proxy(zookeeper: EmbeddedZooKeeper) -> Iterator[Proxy]:
    with Proxy(zookeeper.port) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: Proxy, chroot: str) -> Iterator[ZooKeeperStore]:
    """A session through the proxy."""
    opened = connect(through(proxy, chroot), 4.0)
    yield opened
    opened.close()


@pytest.fixture
def other(chroot: str) -> Iterator[ZooKeeperStore]:
    """A session past the proxy."""
    opened = connect(chroot, 10.0)
    yield opened
    opened.close()


def through(proxy: Proxy, chroot: str) -> str:
    return proxy.address + chroot[chroot.index("/") :]


def suspended(store: ZooKeeperStore) -> bool:
    return store.state is SessionState.SUSPENDED


def connected(store: ZooKeeperStore) -> bool:
    return store.state is SessionState.CONNECTED


def pause(server: EmbeddedZooKeeper) -> None:
    """Returns when none of its threads runs any more, which is a little after the signal."""
    server.pause()

    eventually(lambda: thread_states(server.pid) - {"X"} == {"T"})


def threads_but_the_proxys() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith("proxy")}


# -- a broken connection ----------------------------------------------------------------------------


def test_operations_wait_for_the_next_connection_of_the_session(
    proxy: Proxy, store: ZooKeeperStore
) -> None:
    states: list[SessionState] = []
    store.listen(states.append)
    perform(store, Create("/mine", ephemeral=True))
    identity = store.session_id
    proxy.cut()
    eventually(lambda: suspended(store))
    outcomes: list[Outcome] = []
    for number in range(2000):  # more than kazoo could queue without blocking us
        store.submit(Create(f"/{number}"), outcomes.append)
    assert outcomes == []
    proxy.heal()
    eventually(lambda: len(outcomes) == 2000)
    assert [outcome.error for outcome in outcomes] == [None] * 2000
    assert outcomes[-1].result == "/1999"
    assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert store.session_id == identity
    assert perform(store, Exists("/mine")).ephemeral_owner == identity


def test_a_lost_answer_is_told_and_not_tried_again(
    proxy: Proxy, store: ZooKeeperStore, other: ZooKeeperStore
) -> None:
    perform(store, Create("/a", b"before"))
    acknowledged = store.last_acknowledged()
    proxy.lose_answers()
    outcomes: list[Outcome] = []
    store.submit(Set("/a", b"after"), outcomes.append)
    eventually(lambda: perform(other, Get("/a")).data == b"after")
    proxy.cut()
    eventually(lambda: outcomes)
    assert isinstance(outcomes[0].error, ConnectionLost)
    assert store.last_acknowledged() == acknowledged
    proxy.heal()
    eventually(lambda: connected(store))
    assert perform(store, Get("/a")).stat.version == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_answer_that_is_left_out_is_told_as_lost_and_ends_the_session(
    proxy: Proxy, store: ZooKeeperStore, other: ZooKeeperStore
) -> None:
    proxy.lose_answers()
    outcomes: list[Outcome] = []
    store.submit(Create("/a"), outcomes.append)
    eventually(lambda: perform(other, Exists("/a")))
    eventually(lambda: proxy.lost_answers)
    proxy.heal()
    store.submit(Exists("/a"), outcomes.append)
    eventually(lambda: len(outcomes) == 2)
    assert [type(each.error) for each in outcomes] == [ConnectionLost, SessionLost]
    assert store.state is SessionState.LOST


def test_watches_ring_when_the_connection_breaks_and_are_armed_by_the_next_read(
    proxy: Proxy, store: ZooKeeperStore, other: ZooKeeperStore
) -> None:
    rung: list[str] = []
    perform(store, Exists("/a", lambda: rung.append("exists")))
    perform(store, Children("/", lambda: rung.append("children")))
    proxy.cut()
    eventually(lambda: len(rung) == 2)
    assert sorted(rung) == ["children", "exists"]
    answers: list[Outcome] = []
    store.submit(Exists("/a", lambda: rung.append("again")), answers.append)
    perform(other, Create("/a"))
    proxy.heal()
    eventually(lambda: answers)
    assert answers[0].result is not None  # what happened meanwhile is read
    perform(other, Set("/a", b"1"))
    eventually(lambda: rung[2:] == ["again"])


def test_a_flapping_connection_loses_no_outcome(proxy: Proxy, store: ZooKeeperStore) -> None:
    outcomes: list[Outcome] = []
    submitted = 0
    for _ in range(15):
        for _ in range(300):
            store.submit(Exists("/"), outcomes.append)
            submitted += 1
        proxy.cut()
        eventually(lambda: suspended(store))
        proxy.heal()
        eventually(lambda: connected(store))
    eventually(lambda: len(outcomes) == submitted)
    assert {type(outcome.error) for outcome in outcomes} <= {type(None), ConnectionLost}
    assert perform(store, Exists("/")) is not None


def test_a_server_that_swallows_the_first_message_does_not_cost_the_session(
    proxy: Proxy, store: ZooKeeperStore
) -> None:
    identity = store.session_id
    proxy.cut()
    eventually(lambda: suspended(store))
    proxy.heal(answers=False)
    eventually(lambda: proxy.lost_answers)
    proxy.heal()  # for the next connection; this one has missed its answer
    assert perform(store, Exists("/")) is not None
    assert store.session_id == identity


# -- the end of a session ---------------------------------------------------------------------------


def test_nothing_that_waited_is_done_in_another_session(
    proxy: Proxy, store: ZooKeeperStore, other: ZooKeeperStore, chroot: str
) -> None:
    perform(store, Create("/mine", ephemeral=True))
    proxy.cut()
    eventually(lambda: suspended(store))
    outcomes: list[Outcome] = []
    for number in range(1000):
        store.submit(Create(f"/zombie-{number}"), outcomes.append)
    end_session(chroot, store)
    assert perform(other, Children("/")) == []
    assert suspended(store)  # nobody has told it yet
    proxy.heal()
    eventually(lambda: len(outcomes) == 1000)
    assert {type(outcome.error) for outcome in outcomes} == {SessionLost}
    assert store.state is SessionState.LOST
    with pytest.raises(SessionLost):
        perform(store, Create("/zombie"))
    assert perform(other, Children("/")) == []


def test_a_lost_session_is_not_followed_by_another(proxy: Proxy, chroot: str) -> None:
    before = threads_but_the_proxys()
    store = connect(through(proxy, chroot), 4.0)
    identity = store.session_id
    end_session(chroot, store)
    eventually(lambda: store.state is SessionState.LOST)
    eventually(lambda: threads_but_the_proxys() <= before)
    # The session's connection, and the one that brought the news.
    assert proxy.accepted <= 2
    assert store.session_id == identity


def test_a_server_paused_for_less_than_the_session_timeout_ends_nothing(
    private_zookeeper: EmbeddedZooKeeper,
) -> None:
    store = connect(private_zookeeper.address, 3.0)
    perform(store, Create("/mine", ephemeral=True))
    pause(private_zookeeper)
    outcomes: list[Outcome] = []
    store.submit(Exists("/mine"), outcomes.append)
    eventually(lambda: suspended(store))
    assert isinstance(outcomes[0].error, ConnectionLost)
    private_zookeeper.resume()
    eventually(lambda: connected(store))
    assert perform(store, Exists("/mine")) is not None
    store.close()


def test_only_the_server_decides_what_a_pause_past_the_session_timeout_means(
    private_zookeeper: EmbeddedZooKeeper,
) -> None:
    store = connect(private_zookeeper.address, 1.0)
    perform(store, Create("/mine", ephemeral=True))
    pause(private_zookeeper)
    ended_at = store.last_acknowledged() + 2 * store.session_timeout
    eventually(lambda: time.monotonic() > ended_at)
    assert suspended(store)
    outcomes: list[Outcome] = []
    store.submit(Exists("/mine"), outcomes.append)
    private_zookeeper.resume()
    eventually(lambda: outcomes)
    kept = outcomes[0].error is None
    assert store.state is (SessionState.CONNECTED if kept else SessionState.LOST)
    witness = connect(private_zookeeper.address, 10.0)
    eventually(lambda: (perform(witness, Exists("/mine")) is not None) == kept)
    witness.close()
    store.close()


def test_a_killed_and_restarted_server_keeps_the_session(
    private_zookeeper: EmbeddedZooKeeper,
) -> None:
    store = connect(private_zookeeper.address, 10.0)
    perform(store, Create("/mine", ephemeral=True))
    private_zookeeper.kill()
    eventually(lambda: suspended(store))
    private_zookeeper.restart()
    assert perform(store, Exists("/mine")).ephemeral_owner == store.session_id
    store.close()


# -- closing ----------------------------------------------------------------------------------------


def took(store: ZooKeeperStore) -> float:
    before = time.monotonic()
    store.close()
    return time.monotonic() - before


def test_closing_ends_the_session_and_its_threads(chroot: str, other: ZooKeeperStore) -> None:
    before = threads_but_the_proxys()
    store = connect(chroot, 10.0)
    perform(store, Create("/mine", ephemeral=True))
    assert took(store) < CLOSE_TIMEOUT
    assert perform(other, Exists("/mine")) is None
    eventually(lambda: threads_but_the_proxys() <= before)


def test_closing_is_quick_when_the_server_is_dead_or_silent(
    private_zookeeper: EmbeddedZooKeeper,
) -> None:
    stores = [connect(private_zookeeper.address, 10.0) for _ in range(3)]
    pause(private_zookeeper)
    assert took(stores[0]) < CLOSE_TIMEOUT + 1.0
    outcomes: list[Outcome] = []
    stores[1].submit(Exists("/"), outcomes.append)
    assert took(stores[1]) < CLOSE_TIMEOUT + 1.0
    assert isinstance(outcomes[0].error, SessionLost)
    private_zookeeper.kill()
    eventually(lambda: suspended(stores[2]))
    assert took(stores[2]) < CLOSE_TIMEOUT + 1.0


def test_a_store_may_be_closed_from_an_outcome(store: ZooKeeperStore) -> None:
    store.submit(Exists("/"), lambda _: store.close())
    eventually(lambda: store.state is SessionState.LOST)


def test_a_failing_callback_harms_nobody_else(store: ZooKeeperStore) -> None:
    def fail(_: object = None) -> None:
        raise RuntimeError("on purpose")

    store.listen(fail)
    store.submit(Exists("/a", fail), fail)
    perform(store, Create("/a"))
    assert perform(store, Exists("/a")) is not None
    assert connected(store)
