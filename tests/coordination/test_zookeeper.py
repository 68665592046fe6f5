"""The session on a real ZooKeeper that is paused, cut off, killed or not there at all."""

import threading
import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.security import READ_ACL_UNSAFE

from folkmoot.console.running.embedded import EmbeddedZooKeeper
from folkmoot.coordination.zookeeper import kazoo_adapter
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.kazoo_adapter import CLOSE_TIMEOUT, KazooSession, connect
from folkmoot.coordination.zookeeper.operations import (
    Children,
    ConnectionLost,
    Create,
    Exists,
    Get,
    Multi,
    MultiFailed,
    Refused,
    SessionLost,
    Set,
    ZooKeeperError,
)
from folkmoot.coordination.zookeeper.recipes import check_foreseen
from folkmoot.coordination.zookeeper.session import Outcome, SessionState
from folkmoot.protocol.errors import ZooKeeperRefused, ZooKeeperUnreachable
from tests.contracts.backends import end_session
from tests.processes import thread_states
from tests.proxy import Proxy
from tests.waiting import eventually


@pytest.fixture
def proxy(zookeeper: EmbeddedZooKeeper) -> Iterator[Proxy]:
    with Proxy(zookeeper.port) as proxy:
        yield proxy


@pytest.fixture
def session(proxy: Proxy, empty_chroot: str) -> Iterator[KazooSession]:
    """A session through the proxy, with so much time that nothing ends it but what a test does."""
    opened = connect(through(proxy, empty_chroot), 30.0)
    yield opened
    opened.close()


@pytest.fixture
def other(empty_chroot: str) -> Iterator[KazooSession]:
    """A session past the proxy."""
    opened = connect(empty_chroot, 30.0)
    yield opened
    opened.close()


def through(proxy: Proxy, empty_chroot: str) -> str:
    return proxy.address + empty_chroot[empty_chroot.index("/") :]


def suspended(session: KazooSession) -> bool:
    return session.state is SessionState.SUSPENDED


def connected(session: KazooSession) -> bool:
    return session.state is SessionState.CONNECTED


def pause(server: EmbeddedZooKeeper) -> None:
    """Returns when none of its threads runs any more, which is a little after the signal."""
    server.pause()

    eventually(lambda: thread_states(server.pid) - {"X"} == {"T"})


def zookeeper_loops() -> set[threading.Thread]:
    """The threads in which kazoo's clients read what servers answer."""
    return {thread for thread in threading.enumerate() if "zk_loop" in thread.name}


def threads_but_the_proxys() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith("proxy")}


# -- a broken connection ----------------------------------------------------------------------------


def test_operations_wait_for_the_next_connection_of_the_session(
    proxy: Proxy, session: KazooSession
) -> None:
    states: list[SessionState] = []
    session.listen(states.append)
    execute(session, Create("/mine", ephemeral=True))
    identity = session.session_id
    proxy.cut()
    eventually(lambda: suspended(session))
    outcomes: list[Outcome] = []
    for number in range(2000):  # more than kazoo could queue without blocking us
        session.submit(Create(f"/{number}"), outcomes.append)
    assert outcomes == []
    proxy.heal()
    eventually(lambda: len(outcomes) == 2000)
    assert [outcome.error for outcome in outcomes] == [None] * 2000
    assert outcomes[-1].result == "/1999"
    assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert session.session_id == identity
    assert execute(session, Exists("/mine")).ephemeral_owner == identity


def test_a_lost_answer_is_told_and_not_tried_again(
    proxy: Proxy, session: KazooSession, other: KazooSession
) -> None:
    execute(session, Create("/a", b"before"))
    acknowledged = session.last_acknowledged()
    proxy.lose_answers()
    outcomes: list[Outcome] = []
    session.submit(Set("/a", b"after"), outcomes.append)
    eventually(lambda: execute(other, Get("/a")).data == b"after")
    proxy.cut()
    eventually(lambda: outcomes)
    assert isinstance(outcomes[0].error, ConnectionLost)
    assert session.last_acknowledged() == acknowledged
    proxy.heal()
    eventually(lambda: connected(session))
    assert execute(session, Get("/a")).stat.version == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_answer_that_is_left_out_is_told_as_lost_and_ends_the_session(
    proxy: Proxy, session: KazooSession, other: KazooSession
) -> None:
    proxy.lose_answers()
    outcomes: list[Outcome] = []
    session.submit(Create("/a"), outcomes.append)
    eventually(lambda: execute(other, Exists("/a")))
    eventually(lambda: proxy.lost_answers)
    proxy.heal()
    reading = zookeeper_loops()
    session.submit(Exists("/a"), outcomes.append)
    eventually(lambda: len(outcomes) == 2)
    # kazoo's thread raises after it has told the outcomes: what it says belongs to this test.
    eventually(lambda: len(zookeeper_loops()) < len(reading))
    assert [type(each.error) for each in outcomes] == [ConnectionLost, SessionLost]
    assert session.state is SessionState.LOST


def test_watches_fire_when_the_connection_breaks_and_are_armed_by_the_next_read(
    proxy: Proxy, session: KazooSession, other: KazooSession
) -> None:
    fired: list[str] = []
    execute(session, Exists("/a", lambda: fired.append("exists")))
    execute(session, Children("/", lambda: fired.append("children")))
    proxy.cut()
    eventually(lambda: len(fired) == 2)
    assert sorted(fired) == ["children", "exists"]
    answers: list[Outcome] = []
    session.submit(Exists("/a", lambda: fired.append("again")), answers.append)
    execute(other, Create("/a"))
    proxy.heal()
    eventually(lambda: answers)
    assert answers[0].result is not None  # what happened meanwhile is read
    execute(other, Set("/a", b"1"))
    eventually(lambda: fired[2:] == ["again"])


def test_a_connection_that_breaks_is_said_once_and_one_that_comes_back_is_not(
    proxy: Proxy, session: KazooSession, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.cut()
    eventually(lambda: suspended(session))
    proxy.heal()
    eventually(lambda: connected(session))
    (line,) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert line.startswith(f"no ZooKeeper server at {proxy.address}")
    assert line.endswith(f" answers session 0x{session.session_id:x} for now")


def test_a_server_that_closes_a_connection_while_it_starts_has_not_refused_the_session(
    proxy: Proxy, session: KazooSession, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes the session back in the next attempt."""
    execute(session, Create("/a"))
    accepted = proxy.accepted
    proxy.cut_and_refuse(1)
    eventually(lambda: proxy.accepted >= accepted + 2 and connected(session))
    assert "refuses session" not in caplog.text


def test_a_flapping_connection_loses_no_outcome(proxy: Proxy, session: KazooSession) -> None:
    outcomes: list[Outcome] = []
    submitted = 0
    for _ in range(15):
        for _ in range(300):
            session.submit(Exists("/"), outcomes.append)
            submitted += 1
        proxy.cut()
        eventually(lambda: suspended(session))
        proxy.heal()
        eventually(lambda: connected(session))
    eventually(lambda: len(outcomes) == submitted)
    assert {type(outcome.error) for outcome in outcomes} <= {type(None), ConnectionLost}
    assert execute(session, Exists("/")) is not None


def test_a_server_that_swallows_the_first_message_does_not_cost_the_session(
    proxy: Proxy, empty_chroot: str
) -> None:
    # An attempt to connect takes a third of its time.
    session = connect(through(proxy, empty_chroot), 6.0)
    identity = session.session_id
    proxy.cut()
    eventually(lambda: suspended(session))
    proxy.heal(answers=False)
    eventually(lambda: proxy.lost_answers)
    proxy.heal()  # for the next connection; this one has missed its answer
    assert execute(session, Exists("/")) is not None
    assert session.session_id == identity
    session.close()


# -- the end of a session ---------------------------------------------------------------------------


def test_nothing_that_waited_is_done_in_another_session(
    proxy: Proxy, session: KazooSession, other: KazooSession, empty_chroot: str
) -> None:
    execute(session, Create("/mine", ephemeral=True))
    proxy.cut()
    eventually(lambda: suspended(session))
    outcomes: list[Outcome] = []
    for number in range(1000):
        session.submit(Create(f"/zombie-{number}"), outcomes.append)
    end_session(empty_chroot, session)
    assert execute(other, Children("/")) == []
    assert suspended(session)  # nobody has told it yet
    proxy.heal()
    eventually(lambda: len(outcomes) == 1000)
    assert {type(outcome.error) for outcome in outcomes} == {SessionLost}
    assert session.state is SessionState.LOST
    with pytest.raises(SessionLost):
        execute(session, Create("/zombie"))
    assert execute(other, Children("/")) == []


def test_a_lost_session_is_not_followed_by_another(proxy: Proxy, empty_chroot: str) -> None:
    before = threads_but_the_proxys()
    session = connect(through(proxy, empty_chroot), 4.0)
    identity = session.session_id
    end_session(empty_chroot, session)
    eventually(lambda: session.state is SessionState.LOST)
    eventually(lambda: threads_but_the_proxys() <= before)
    # The session's connection, and the one that brought the news.
    assert proxy.accepted <= 2
    assert session.session_id == identity


def test_a_server_paused_for_less_than_the_session_timeout_ends_nothing(
    private_zookeeper: EmbeddedZooKeeper,
) -> None:
    for timeout in (3.0, 6.0, 12.0):  # a busy machine may need longer to notice, and to resume
        if outlives_a_pause(private_zookeeper, timeout):
            return
    raise AssertionError("each session was over before the server went on")


def outlives_a_pause(server: EmbeddedZooKeeper, timeout: float) -> bool:
    """False if the server paused for longer than the session timeout, so that it may end the session."""
    session = connect(server.address, timeout)
    execute(session, Create("/mine", ephemeral=True))
    heard_at = session.last_acknowledged()
    pause(server)
    outcomes: list[Outcome] = []
    session.submit(Exists("/mine"), outcomes.append)
    eventually(lambda: suspended(session), 20.0)
    assert isinstance(outcomes[0].error, ConnectionLost)
    server.resume()
    eventually(lambda: connected(session) or session.state is SessionState.LOST, 20.0)
    lives = connected(session)
    if lives:
        assert execute(session, Exists("/mine")) is not None
    else:
        assert time.monotonic() > heard_at + timeout
    session.close()
    return lives


def test_only_the_server_decides_what_a_pause_past_the_session_timeout_means(
    private_zookeeper: EmbeddedZooKeeper,
) -> None:
    def begun() -> KazooSession | None:
        try:
            session = connect(private_zookeeper.address, 2.0)
            execute(session, Create("/mine", ephemeral=True))
        except (ZooKeeperUnreachable, ZooKeeperError):
            return None  # a machine that stands still has ended it already
        return session

    session = eventually(begun, 60.0)
    assert session is not None
    pause(private_zookeeper)
    ended_at = time.monotonic() + session.session_timeout
    eventually(lambda: time.monotonic() > ended_at)
    eventually(lambda: not connected(session))
    outcomes: list[Outcome] = []
    session.submit(Exists("/mine"), outcomes.append)
    private_zookeeper.resume()
    eventually(lambda: outcomes)
    witness = connect(private_zookeeper.address, 30.0)

    def both_say_the_same() -> bool:
        is_there = execute(witness, Exists("/mine")) is not None
        return session.state is (SessionState.CONNECTED if is_there else SessionState.LOST)

    eventually(both_say_the_same)
    witness.close()
    session.close()


def test_a_killed_and_restarted_server_keeps_the_session(
    private_zookeeper: EmbeddedZooKeeper,
) -> None:
    session = connect(private_zookeeper.address, 10.0)
    execute(session, Create("/mine", ephemeral=True))
    private_zookeeper.kill()
    eventually(lambda: suspended(session))
    private_zookeeper.restart()
    assert execute(session, Exists("/mine")).ephemeral_owner == session.session_id
    session.close()


# -- closing ----------------------------------------------------------------------------------------


def took(session: KazooSession) -> float:
    before = time.monotonic()
    session.close()
    return time.monotonic() - before


def test_closing_ends_the_session_and_its_threads(
    empty_chroot: str, other: KazooSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kazoo_adapter, "CLOSE_TIMEOUT", 60.0)
    before = threads_but_the_proxys()
    session = connect(empty_chroot, 30.0)
    execute(session, Create("/mine", ephemeral=True))
    assert took(session) < 30.0
    assert execute(other, Exists("/mine")) is None
    eventually(lambda: threads_but_the_proxys() <= before)


def test_closing_is_quick_when_the_server_is_dead_or_silent(
    private_zookeeper: EmbeddedZooKeeper,
) -> None:
    # kazoo waits for an answer as long as the session may live.
    sessions = [connect(private_zookeeper.address, 60.0) for _ in range(3)]
    pause(private_zookeeper)
    assert took(sessions[0]) < CLOSE_TIMEOUT + 10.0
    outcomes: list[Outcome] = []
    sessions[1].submit(Exists("/"), outcomes.append)
    assert took(sessions[1]) < CLOSE_TIMEOUT + 10.0
    assert isinstance(outcomes[0].error, SessionLost)
    private_zookeeper.kill()
    eventually(lambda: suspended(sessions[2]))
    assert took(sessions[2]) < CLOSE_TIMEOUT + 10.0


def test_a_session_may_be_closed_from_an_outcome(session: KazooSession) -> None:
    session.submit(Exists("/"), lambda _: session.close())
    eventually(lambda: session.state is SessionState.LOST)


def test_a_failing_callback_harms_nobody_else(session: KazooSession) -> None:
    def fail(_: object = None) -> None:
        raise RuntimeError("on purpose")

    session.listen(fail)
    session.submit(Exists("/a", fail), fail)
    execute(session, Create("/a"))
    assert execute(session, Exists("/a")) is not None
    assert connected(session)


def test_what_an_acl_forbids_is_refused_alone_and_in_a_transaction(
    other: KazooSession, zookeeper_root: KazooClient, empty_chroot: str
) -> None:
    path = empty_chroot[empty_chroot.index("/") :] + "/a"
    zookeeper_root.create(path, b"", acl=READ_ACL_UNSAFE)
    with pytest.raises(ZooKeeperRefused, match="/a: an ACL does not permit it"):
        execute(other, Set("/a", b"x"))
    with pytest.raises(MultiFailed) as refused:
        execute(other, Multi((Create("/b"), Set("/a", b"x"))))
    assert isinstance(refused.value.cause, Refused)
    with pytest.raises(ZooKeeperRefused, match="/a: an ACL does not permit it"):
        check_foreseen(refused.value)
