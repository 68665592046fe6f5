"""The broker's thread towards ZooKeeper: registration, views, lost sessions."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace

import pytest

from folkmoot.brokers.server import registration as module
from folkmoot.brokers.server.metadata_cache import ClusterChange, ClusterView
from folkmoot.brokers.server.registration import ClusterWatcher
from folkmoot.brokers.server.zookeeper_link import ZooKeeperLink
from folkmoot.coordination import brokers, partition_states, paths, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.partition_states import (
    MISSING,
    Answer,
    PartitionState,
    StateWrite,
    Superseded,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import (
    Delete,
    Get,
    Multi,
    Operation,
    Sync,
    ZooKeeperError,
)
from folkmoot.coordination.zookeeper.session import Outcome, Session
from folkmoot.protocol.errors import BrokerIdTaken, ZooKeeperUnreachable
from tests.brokers.parts import states_of
from tests.coordination.losses import write
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper, Request
from tests.waiting import eventually

ADDRESS = {"client": "127.0.0.1:9001"}


class Watched:
    """A watcher of an ensemble in memory, and all it reported."""

    def __init__(self, ensemble: MemoryZooKeeper, directory: str = "d1") -> None:
        self.ensemble = ensemble
        self.sessions: list[MemorySession] = []
        self.reachable = True
        self.expires = 0
        self.views: list[ClusterView] = []
        self.changes: list[ClusterChange] = []
        self.deleted: set[str] = set()
        self.failures: list[Exception] = []
        self.told_to_stop = threading.Event()
        self.taken_over: list[bool] = []
        mine = Registration(ADDRESS, "", directory, "r1")
        self.link = ZooKeeperLink()
        self.watcher = ClusterWatcher(
            *(self._connect, self.link, 1, mine, 0.2),
            *(self._show, lambda work: work(), self.failures.append),
            self.told_to_stop.set,
            lambda: self.taken_over.append(self.watcher.is_registered),
        )

    def _connect(self, session_timeout: float) -> Session:
        if not self.reachable:
            raise ZooKeeperUnreachable("nobody answers")
        self.sessions.append(self.ensemble.connect(session_timeout))
        if self.expires:
            self.expires -= 1
            self.ensemble.expire(self.sessions[-1])
        return self.sessions[-1]

    def _show(self, change: ClusterChange) -> None:
        view = change.full_view
        if view is None:
            former = self.views[-1]
            view = ClusterView(former.registrations, former.topics, former.states)
            view.apply(change)
        self.deleted |= change.deleted.keys()
        self.changes.append(change)
        self.views.append(view)  # what tests wait for, so the last thing

    @property
    def view(self) -> ClusterView:
        return self.views[-1]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECONNECT_PAUSE", 0.01)
    monkeypatch.setattr(module, "EXPIRY_SLACK", 0.1)


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late the earlier session ends, it is waited for."""
    monkeypatch.setattr(module, "EXPIRY_SLACK", 60.0)


@pytest.fixture
def ensemble() -> MemoryZooKeeper:
    return MemoryZooKeeper()


@pytest.fixture
def user(ensemble: MemoryZooKeeper) -> MemorySession:
    return ensemble.connect()


@pytest.fixture
def watched(ensemble: MemoryZooKeeper) -> Iterator[Watched]:
    made = Watched(ensemble)
    yield made
    made.watcher.close()
    assert not made.failures


def test_the_first_view_is_there_before_the_registration(
    watched: Watched, user: MemorySession
) -> None:
    info = execute(user, topics.create("t", 2, [1]))
    watched.watcher.start()
    assert watched.views[0].topics == {"t": info}
    assert not watched.views[0].brokers
    assert watched.view.brokers[1].listeners == ADDRESS
    mine = execute(user, brokers.live())[1]
    assert (mine.listeners, mine.rack) == (ADDRESS, "r1")


def test_topics_and_brokers_that_come_change_and_go_are_seen(
    watched: Watched, user: MemorySession, ensemble: MemoryZooKeeper
) -> None:
    watched.watcher.start()
    other = ensemble.connect()
    execute(other, brokers.register(2, Registration({"client": "h:1"}, "n", "d2")))
    eventually(lambda: 2 in watched.view.brokers)
    ensemble.expire(other)
    eventually(lambda: 2 not in watched.view.brokers)
    first = execute(user, topics.create("t", 1, [1]))
    eventually(lambda: "t" in watched.view.topics)
    write(
        user, paths.topic("t"), b'{"id": "%s", "partitions": [[1],[1]]}' % first.topic_id.encode()
    )
    eventually(lambda: len(watched.view.topics["t"].partitions) == 2)
    assert not watched.deleted
    execute(user, topics.delete("t"))
    eventually(lambda: "t" not in watched.view.topics)
    assert watched.deleted == {first.topic_id}


def test_a_topic_deleted_and_created_between_two_looks_is_a_deletion_too(
    watched: Watched, user: MemorySession
) -> None:
    first = execute(user, topics.create("t", 1, [1]))
    watched.watcher.start()
    execute(user, topics.delete("t"))
    second = execute(user, topics.create("t", 1, [1]))
    eventually(lambda: watched.view.topics.get("t") == second)
    assert watched.deleted == {first.topic_id}


def test_only_topics_that_changed_are_read_again(
    watched: Watched, user: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        execute(user, topics.create(f"t{number}", 1, [1]))
    watched.watcher.start()
    read = _record_reads(monkeypatch)
    execute(user, topics.create("new", 1, [1]))
    eventually(lambda: "new" in watched.view.topics)
    assert read == {paths.topic("new")}


def _record_reads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    read: set[str] = set()
    submit = MemorySession.submit

    def recording(
        self: MemorySession, operation: Operation, done: Callable[[Outcome], None]
    ) -> None:
        if isinstance(operation, Get):
            read.add(operation.path)
        submit(self, operation, done)

    monkeypatch.setattr(MemorySession, "submit", recording)
    return read


def test_an_illegible_topic_leaves_what_was_known_of_it(
    watched: Watched, user: MemorySession
) -> None:
    info = execute(user, topics.create("t", 1, [1]))
    watched.watcher.start()
    write(user, paths.topic("t"), b"scribble")
    write(user, paths.topic("junk"), b"scribble")
    execute(user, topics.create("after", 1, [1]))
    eventually(lambda: "after" in watched.view.topics)
    assert watched.view.topics["t"] == info
    assert not watched.deleted


def test_a_deletion_that_was_noted_while_the_session_was_lost_is_carried_out_and_nothing_else(
    watched: Watched, user: MemorySession, ensemble: MemoryZooKeeper
) -> None:
    deleted, lost = (execute(user, topics.create(name, 1, [1])) for name in ("t", "lost"))
    watched.watcher.start()
    watched.reachable = False
    ensemble.expire(watched.sessions[0])
    assert execute(user, brokers.live()) == {}
    execute(user, topics.delete("t"))
    execute(user, Delete(paths.topic("lost")))
    watched.reachable = True
    eventually(lambda: 1 in execute(user, brokers.live()))
    eventually(lambda: 1 in watched.view.brokers and not watched.view.topics)
    assert watched.deleted == {deleted.topic_id} != {lost.topic_id}


def test_a_registration_that_somebody_removed_is_made_again(
    watched: Watched, user: MemorySession
) -> None:
    watched.watcher.start()
    user.submit(Delete(paths.broker(1)), lambda _: None)
    eventually(lambda: 1 in execute(user, brokers.live()))


@pytest.mark.usefixtures("_patient")
def test_the_registration_of_a_dead_incarnation_is_waited_for(
    watched: Watched, ensemble: MemoryZooKeeper
) -> None:
    dead = ensemble.connect()
    execute(dead, brokers.register(1, Registration({"client": "h:1"}, "older", "d1")))
    end = threading.Timer(0.1, lambda: ensemble.expire(dead))
    end.start()
    watched.watcher.start()
    end.join()
    assert watched.view.brokers[1].listeners == ADDRESS


def test_a_broker_on_a_copied_directory_is_refused_when_waiting_did_not_help(
    watched: Watched, ensemble: MemoryZooKeeper
) -> None:
    execute(ensemble.connect(), brokers.register(1, Registration({}, "living", "d1")))
    with pytest.raises(BrokerIdTaken, match="copy"):
        watched.watcher.start()


def test_another_broker_of_the_same_id_is_refused_at_once(ensemble: MemoryZooKeeper) -> None:
    one, two = Watched(ensemble, "d1"), Watched(ensemble, "d2")
    one.watcher.start()
    with pytest.raises(BrokerIdTaken, match=r"127\.0\.0\.1:9001"):
        two.watcher.start()
    two.watcher.close()
    one.watcher.close()


def test_losing_the_id_to_another_broker_ends_the_one_that_comes_back(
    ensemble: MemoryZooKeeper,
) -> None:
    watched = Watched(ensemble)
    watched.watcher.start()
    watched.reachable = False
    ensemble.expire(watched.sessions[0])
    execute(ensemble.connect(), brokers.register(1, Registration({}, "n", "d2")))
    watched.reachable = True
    eventually(lambda: watched.failures)
    assert isinstance(watched.failures[0], BrokerIdTaken)
    watched.watcher.close()


def test_who_has_lost_the_id_to_another_broker_writes_no_state(ensemble: MemoryZooKeeper) -> None:
    """It would activate itself for the other one, by what its own disk has."""
    user = ensemble.connect()
    replicated = Replicated(ensemble, user)
    known = replicated.has(1, active=False)
    watched = Watched(ensemble)
    watched.watcher.start()
    watched.reachable = False
    ensemble.expire(watched.sessions[0])
    execute(ensemble.connect(), brokers.register(1, Registration({}, "n", "d2")))
    answers: list[object] = []
    write = StateWrite(known.state.activate(), known.partition_epoch)
    watched.link.write_states({replicated.at(0): write}, answers.append)
    watched.reachable = True
    eventually(lambda: watched.failures)
    watched.watcher.close()
    assert answers == []
    assert execute(user, partition_states.read(replicated.at(0))) == known


def test_who_has_lost_the_id_to_another_broker_ends_though_that_one_is_gone_again(
    ensemble: MemoryZooKeeper,
) -> None:
    """What that one has acked as a replica in sync is not here."""
    watched = Watched(ensemble)
    watched.watcher.start()
    watched.reachable = False
    ensemble.expire(watched.sessions[0])
    other = ensemble.connect()
    execute(other, brokers.register(1, Registration({}, "n", "d2")))
    ensemble.expire(other)
    watched.reachable = True
    eventually(lambda: watched.failures)
    assert "start it again" in str(watched.failures[0])
    assert execute(ensemble.connect(), brokers.read(1)) is None
    watched.watcher.close()


@pytest.mark.parametrize("last", ["d1", "d2"])
def test_who_comes_behind_another_data_directory_is_told_so_before_it_is_registered(
    ensemble: MemoryZooKeeper, last: str
) -> None:
    for directory in ("d1", last):
        session = ensemble.connect()
        execute(session, brokers.register(1, Registration({}, directory, directory)))
        ensemble.expire(session)
    watched = Watched(ensemble)
    watched.watcher.start()
    assert watched.taken_over == ([] if last == "d1" else [False])
    watched.reachable = False
    ensemble.expire(watched.sessions[0])
    watched.reachable = True
    eventually(lambda: len(watched.sessions) == 2 and watched.watcher.is_registered)
    assert len(watched.taken_over) == (last == "d2"), "it goes on with its own"
    watched.watcher.close()
    assert not watched.failures


def test_no_zookeeper_at_the_start_is_an_error_at_the_start(watched: Watched) -> None:
    watched.reachable = False
    with pytest.raises(ZooKeeperUnreachable):
        watched.watcher.start()


@pytest.mark.usefixtures("_patient")
def test_a_session_lost_while_registering_is_replaced_and_the_broker_registers(
    watched: Watched, ensemble: MemoryZooKeeper
) -> None:
    dead = ensemble.connect()
    execute(dead, brokers.register(1, Registration({"client": "h:1"}, "older", "d1")))

    def lose_both() -> None:
        eventually(lambda: watched.views)
        ensemble.expire(watched.sessions[0])
        eventually(lambda: len(watched.sessions) == 2)
        ensemble.expire(dead)

    losses = threading.Thread(target=lose_both)
    losses.start()
    watched.watcher.start()
    losses.join()
    assert len(watched.sessions) == 2
    assert watched.view.brokers[1].listeners == ADDRESS


def test_a_dead_incarnation_s_session_may_begin_anew_when_zookeeper_was_restarted(
    watched: Watched,
    ensemble: MemoryZooKeeper,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A restarted ZooKeeper gives every session its whole time again: so is the time that we wait."""
    monkeypatch.setattr(module, "EXPIRY_SLACK", 0.0)
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))

    def refusals() -> int:
        return caplog.text.count("is registered by an earlier session: waiting")

    dead = ensemble.connect()
    execute(dead, brokers.register(1, Registration({"client": "h:1"}, "older", "d1")))
    started = threading.Thread(target=watched.watcher.start)
    started.start()
    eventually(refusals)
    for _ in range(5):
        now += 0.15  # of the 0.2 of its session timeout
        ensemble.suspend(watched.sessions[0])
        ensemble.resume(watched.sessions[0])
        before = refusals()
        eventually(lambda before=before: refusals() > before or not started.is_alive())  # type: ignore[misc]
        assert started.is_alive(), "it waits as long as ZooKeeper comes and goes"
    ensemble.expire(dead)
    started.join()
    assert watched.view.brokers[1].listeners == ADDRESS


def test_closing_ends_the_session_at_once_whatever_the_watcher_waits_for(
    ensemble: MemoryZooKeeper, user: MemorySession
) -> None:
    idle = Watched(ensemble)
    idle.watcher.start()
    idle.watcher.close()
    assert execute(user, brokers.live()) == {}

    cut_off = Watched(ensemble)
    cut_off.watcher.start()
    cut_off.reachable = False
    ensemble.expire(cut_off.sessions[0])
    cut_off.watcher.close()
    assert not cut_off.watcher._thread.is_alive()

    suspended = Watched(ensemble)
    suspended.watcher.start()
    ensemble.suspend(suspended.sessions[0])
    suspended.watcher.close()
    assert not suspended.watcher._thread.is_alive()
    assert not idle.failures + cut_off.failures + suspended.failures


# -- states of partitions of several replicas ---------------------------------------------------------


class Replicated:
    """A topic of two partitions on brokers 1 and 2, its states as a controller would write them."""

    def __init__(self, ensemble: MemoryZooKeeper, session: MemorySession) -> None:
        self.session = session
        self.other = ensemble.connect()
        execute(self.other, brokers.register(2, Registration({"client": "h:2"}, "n2", "d2")))
        self.topic = execute(session, topics.create("t", 2, [1, 2], replicas=2))
        self.sole = execute(session, topics.create("sole", 1, [1]))

    def at(self, partition: int) -> TopicIdPartition:
        return TopicIdPartition(self.topic.topic_id, partition)

    def has(self, leader: int, *, active: bool = True, partition: int = 0) -> VersionedState:
        found = execute(self.session, partition_states.read(self.at(partition)))
        stands_on = MISSING if found is None else found.partition_epoch
        state = PartitionState(leader, 3, (1, 2), 1, active)
        write = {self.at(partition): StateWrite(state, stands_on)}
        (answer,) = execute(self.session, partition_states.write(write)).values()
        assert isinstance(answer, VersionedState)
        return answer


@pytest.fixture
def replicated(ensemble: MemoryZooKeeper, user: MemorySession) -> Replicated:
    return Replicated(ensemble, user)


def shown(watched: Watched, replicated: Replicated) -> dict[int, VersionedState]:
    found = states_of(watched.view, replicated.topic)
    return {each.partition: state for each, state in found.items()}


def test_states_that_come_change_and_go_are_seen(
    watched: Watched, replicated: Replicated, user: MemorySession
) -> None:
    first = replicated.has(1)
    watched.watcher.start()
    assert shown(watched, replicated) == {0: first}
    second = replicated.has(2, partition=1)
    eventually(lambda: shown(watched, replicated) == {0: first, 1: second})
    moved = replicated.has(2)
    eventually(lambda: shown(watched, replicated) == {0: moved, 1: second})
    execute(user, topics.delete("t"))
    eventually(lambda: "t" not in watched.view.topics)
    assert not shown(watched, replicated)


def test_an_illegible_state_leaves_what_was_known_of_it(
    watched: Watched, replicated: Replicated, user: MemorySession
) -> None:
    first = replicated.has(1)
    watched.watcher.start()
    write(user, paths.partition_state(*replicated.at(0)), b"scribble")
    second = replicated.has(2, partition=1)
    eventually(lambda: shown(watched, replicated) == {0: first, 1: second})


def test_only_states_that_changed_are_read_again(
    watched: Watched, replicated: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicated.has(1)
    replicated.has(1, partition=1)
    watched.watcher.start()
    read = _record_reads(monkeypatch)
    moved = replicated.has(2)
    eventually(lambda: shown(watched, replicated)[0] == moved)
    assert read == {paths.partition_state(*replicated.at(0))}


def test_states_are_written_and_the_answers_told(watched: Watched, replicated: Replicated) -> None:
    known = replicated.has(1, active=False)
    watched.watcher.start()
    answers: list[Mapping[TopicIdPartition, Answer] | None] = []
    writes = {
        replicated.at(0): StateWrite(known.state.activate(), known.partition_epoch),
        replicated.at(1): StateWrite(known.state.activate(), 7),
    }
    watched.link.write_states(writes, answers.append)
    eventually(lambda: answers)
    active = VersionedState(known.state.activate(), 1)
    assert answers == [{replicated.at(0): active, replicated.at(1): Superseded(None)}]
    eventually(lambda: shown(watched, replicated) == {0: active})


def has_settled_anew(watched: Watched, before: int) -> bool:
    return any(each.is_settled for each in watched.changes[before:])


def test_what_is_illegible_in_a_new_session_stays_as_the_former_one_has_read_it(
    watched: Watched, replicated: Replicated, user: MemorySession, ensemble: MemoryZooKeeper
) -> None:
    known = replicated.has(2)
    watched.watcher.start()
    topic = watched.view.topics["t"]
    assert shown(watched, replicated) == {0: known}
    write(user, paths.topic("t"), b"scribble")
    write(user, paths.partition_state(*replicated.at(0)), b"scribble")
    for lost in (0, 2):  # so many are lost before they have read anything
        before = len(watched.changes)
        watched.expires = lost
        ensemble.expire(watched.sessions[-1])
        eventually(partial(has_settled_anew, watched, before))
        assert watched.view.topics["t"] == topic
        assert shown(watched, replicated) == {0: known}
    assert not watched.deleted


class SeveringZooKeeper(MemoryZooKeeper):
    """When armed it carries the next transaction out, or not, and ends the session instead of answering."""

    def __init__(self, *, executed: bool) -> None:
        super().__init__(deliver=self._deliver)
        self.is_armed = False
        self._executed = executed

    def _deliver(self, request: Request) -> None:
        if not (self.is_armed and isinstance(request.operation, Multi)):
            request.execute()
            request.reply()
            return
        self.is_armed = False
        if self._executed:
            request.execute()
        self.expire(request.session)


@pytest.mark.parametrize("executed", [False, True])
def test_what_is_under_way_when_the_session_ends_is_told_by_the_next_settled_view(
    executed: bool,
) -> None:
    ensemble = SeveringZooKeeper(executed=executed)
    watched, replicated = Watched(ensemble), Replicated(ensemble, ensemble.connect())
    known = replicated.has(1, active=False)
    watched.watcher.start()
    assert [each.is_settled for each in watched.changes] == [True, False]
    assert [each.is_registered for each in watched.changes] == [False, True]
    ensemble.is_armed = True
    activation = StateWrite(known.state.activate(), known.partition_epoch)
    answered_after: list[tuple[object, int]] = []
    watched.link.write_states(
        {replicated.at(0): activation},
        lambda answers: answered_after.append((answers, len(watched.views))),
    )
    eventually(lambda: len(watched.views) == 4)
    assert answered_after == [(None, 2)], "the answer comes before the view that says what it was"
    assert [each.is_settled for each in watched.changes[2:4]] == [True, False]
    assert [each.is_registered for each in watched.changes[2:4]] == [False, True]
    expected = VersionedState(activation.state, 1) if executed else known
    assert watched.views[2].states[replicated.at(0)] == expected
    watched.watcher.close()
    assert not watched.failures


class ThrottlingZooKeeper(MemoryZooKeeper):
    """When armed it refuses requests of that kind, as often as that, as one that is overloaded does."""

    def __init__(self) -> None:
        super().__init__(deliver=self._deliver)
        self.refused: type[Operation] | None = None
        self.times = 0

    def _deliver(self, request: Request) -> None:
        if self.times and self.refused is not None and isinstance(request.operation, self.refused):
            self.times -= 1
            request.lose(ZooKeeperError("the request was throttled"))
            return
        request.execute()
        request.reply()


@pytest.mark.parametrize("refused", [Multi, Get, Sync])
def test_what_zookeeper_refuses_for_a_while_is_done_in_a_later_session_and_ends_no_broker(
    refused: type[Operation],
) -> None:
    ensemble = ThrottlingZooKeeper()
    watched, replicated = Watched(ensemble), Replicated(ensemble, ensemble.connect())
    known = replicated.has(1, active=False)
    watched.watcher.start()
    ensemble.refused, ensemble.times = refused, 2
    answers: list[Mapping[TopicIdPartition, Answer] | None] = []
    activation = StateWrite(known.state.activate(), known.partition_epoch)
    if refused is Multi:
        watched.link.write_states({replicated.at(0): activation}, answers.append)
        eventually(lambda: answers == [None])
    else:
        ensemble.expire(watched.sessions[0])
    eventually(
        lambda: not watched.failures and watched.watcher.is_registered and not ensemble.times
    )
    watched.link.write_states({replicated.at(0): activation}, answers.append)
    active = VersionedState(activation.state, 1)
    eventually(lambda: answers[-1:] == [{replicated.at(0): active}])
    eventually(lambda: shown(watched, replicated) == {0: active})
    watched.watcher.close()
    assert not watched.failures


def test_a_write_that_waited_while_states_were_put_back_writes_over_none_of_them(
    watched: Watched, replicated: Replicated, user: MemorySession
) -> None:
    """It stands on a version that the node, which was made anew, has again."""
    known = replicated.has(1)
    watched.watcher.start()
    found = execute(user, partition_states.read(replicated.at(0)))
    assert found is not None
    user.submit(Delete(paths.partition_state(*replicated.at(0))), lambda _: None)
    led = known.state.designate(2, (1, 2), 1).activate()
    execute(user, partition_states.write({replicated.at(0): StateWrite(led, MISSING)}))
    now = VersionedState(led, known.partition_epoch)
    eventually(lambda: shown(watched, replicated).get(0) == now)
    answers: list[Mapping[TopicIdPartition, Answer] | None] = []
    shrink = StateWrite(known.state.with_isr((1,)), known.partition_epoch)
    watched.link.write_states({replicated.at(0): shrink}, answers.append)
    eventually(lambda: answers)
    assert answers == [{replicated.at(0): Superseded(now)}]
    assert execute(user, partition_states.read(replicated.at(0))) == now


# -- leaving ------------------------------------------------------------------------------------------


def test_a_broker_that_leaves_waits_until_others_are_active(
    watched: Watched, replicated: Replicated, user: MemorySession
) -> None:
    replicated.has(1)
    replicated.has(2, partition=1)
    watched.watcher.start()
    leaving = threading.Thread(target=watched.watcher.leave, args=(30.0,))
    leaving.start()
    eventually(lambda: execute(user, brokers.live())[1].leaving)
    replicated.has(2, active=False)
    eventually(lambda: not watched.view.states[replicated.at(0)].state.active)
    assert leaving.is_alive()
    replicated.has(2)
    leaving.join(30.0)
    assert not leaving.is_alive()


def test_a_broker_leaves_at_once_what_nobody_else_can_lead(
    watched: Watched, replicated: Replicated, ensemble: MemoryZooKeeper, user: MemorySession
) -> None:
    replicated.has(1)
    watched.watcher.start()
    ensemble.expire(replicated.other)
    eventually(lambda: 2 not in watched.view.brokers)
    assert watched.watcher.leave(30.0)
    assert not execute(user, brokers.live())[1].leaving


def test_a_broker_does_not_wait_for_others_while_zookeeper_is_away(
    watched: Watched, replicated: Replicated
) -> None:
    replicated.has(1)
    watched.watcher.start()
    watched.reachable = False
    watched.ensemble.suspend(watched.sessions[-1])
    began = time.monotonic()
    assert not watched.watcher.leave(30.0)
    assert time.monotonic() - began < 15.0
    watched.reachable = True


def test_a_broker_without_replicas_does_not_wait_for_others_to_lead(
    watched: Watched, user: MemorySession
) -> None:
    execute(user, topics.create("t", 1, [1]))
    watched.watcher.start()
    watched.reachable = False
    watched.ensemble.suspend(watched.sessions[-1])
    began = time.monotonic()
    assert watched.watcher.leave(30.0)
    assert time.monotonic() - began < 15.0
    watched.reachable = True


def test_a_broker_that_nobody_takes_over_from_leaves_after_its_patience(
    watched: Watched, replicated: Replicated
) -> None:
    replicated.has(1)
    watched.watcher.start()
    assert not watched.watcher.leave(0.05)


def test_a_broker_stops_when_its_registration_is_told_that_it_leaves(
    watched: Watched, user: MemorySession
) -> None:
    """That is what `folkmoot broker stop` does."""
    watched.watcher.start()
    assert not watched.told_to_stop.is_set()
    mine = execute(user, brokers.live())[1]
    assert execute(user, brokers.leave(1, mine))
    assert watched.told_to_stop.wait(10.0)
