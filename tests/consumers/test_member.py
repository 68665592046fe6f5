"""The group thread's work around the machine: sessions that end, ZooKeeper out of reach, errors."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from threading import Event, Thread, current_thread
from typing import TypeVar

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NotEmptyError

from folkmoot.consumers.assignors.assignor import AssignmentInput
from folkmoot.consumers.assignors.next_plan import DEFAULT
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.group.events import Assigned, Committed, Left, Lost, Notice, Revoking
from folkmoot.consumers.group.group_thread import Member, copy_error
from folkmoot.consumers.group.liveness import PollState, Timing
from folkmoot.consumers.group.member_state import MemberSettings, Phase
from folkmoot.consumers.group.sessions import LONGEST_PAUSE, RECONNECT_PAUSE
from folkmoot.coordination import paths, topics
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups import offset_admin, ownership
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.kazoo_adapter import connect
from folkmoot.coordination.zookeeper.operations import (
    Create,
    Delete,
    Get,
    Multi,
    MultiFailed,
    Operation,
    Recipe,
    Refused,
    Set,
    Write,
    ZooKeeperError,
)
from folkmoot.coordination.zookeeper.recipes import ensure
from folkmoot.coordination.zookeeper.session import Session, SessionState
from folkmoot.protocol.errors import (
    ConfigError,
    FolkmootError,
    NoCluster,
    ZooKeeperRefused,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.records import TopicPartition
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper, Request
from tests.waiting import eventually

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
TURNS = 30
"""More than any recipe has steps."""
SETTINGS = MemberSettings(group="g", topics=("t",))

N = TypeVar("N")


def refuse(request: Request, refusal: ZooKeeperError) -> None:
    """Answer as ZooKeeper does, which names the write of a transaction that it refuses."""
    is_many = isinstance(request.operation, Multi)
    request.lose(MultiFailed(0, refusal) if is_many else refusal)


class Scene:
    """A member without a thread, on a ZooKeeper in memory that can be out of reach."""

    def __init__(self) -> None:
        self.now = 500.0
        self.zookeeper = MemoryZooKeeper(clock=lambda: self.now, deliver=self.deliver)
        self.refused: Callable[[Operation], bool] = lambda operation: False
        self.refusal = ZooKeeperError("no quota is left")
        self.admin = self.zookeeper.connect()
        execute(self.admin, topics.create("t", 2, [1]))
        self.reachable = True
        self.trouble: FolkmootError = ZooKeeperUnreachable("no server answers")
        self.attempts = 0
        self.sessions: list[MemorySession] = []
        self.notices: list[Notice] = []
        self.member = Member(SETTINGS, self.connect, lambda: None, lambda: self.now, Random(5))

    def connect(self, session_timeout: float) -> Session:
        self.attempts += 1
        if not self.reachable:
            raise self.trouble
        self.sessions.append(self.zookeeper.connect(session_timeout))
        return self.sessions[-1]

    def deliver(self, request: Request) -> None:
        if request.session is not self.admin and self.refused(request.operation):
            refuse(request, self.refusal)
        else:
            request.execute()
            request.reply()

    def pass_time(self, seconds: float) -> None:
        """In small steps, with as many turns as ZooKeeper's answers ask for; what is told is kept."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.05
            for _ in range(TURNS):
                self.member.run_once()
        self.notices += self.member.notices
        self.member.notices.clear()

    def take(self, kind: type[N]) -> list[N]:
        taken: list[N] = [notice for notice in self.notices if isinstance(notice, kind)]
        self.notices = [notice for notice in self.notices if not isinstance(notice, kind)]
        return taken

    def epochs(self, offset: int | None = None) -> dict[TopicPartition, int]:
        """Of what was assigned since the last look, all of it from that offset on."""
        assigned = self.take(Assigned)
        assert {each.offset for each in assigned} == {offset}
        return {each.partition: each.epoch for each in assigned}


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    scene.member.open()
    yield scene
    scene.member.stop(0.0)


def test_a_member_joins_and_owns_what_it_planned_for_itself(scene: Scene) -> None:
    scene.pass_time(0.5)
    assert [each.partition for each in scene.take(Assigned)] == [T0, T1]
    owner = execute(scene.admin, ownership.owner_of("g", T0))
    assert owner is not None
    assert owner.member == scene.member.name


def test_a_lost_session_is_replaced_and_all_is_owned_under_the_next_epoch(scene: Scene) -> None:
    scene.pass_time(0.5)
    before = scene.epochs()
    scene.zookeeper.expire(scene.sessions[0])
    scene.pass_time(0.5)
    assert {lost.partition for lost in scene.take(Lost)} == {T0, T1}
    assert scene.epochs() == {T0: before[T0] + 1, T1: before[T1] + 1}
    assert len(scene.sessions) == 2


@pytest.mark.parametrize(
    "trouble",
    [
        ZooKeeperUnreachable("no server answers"),
        NoCluster("no cluster was ever made there"),
        ConfigError("the chroot has layout version 2"),
    ],
)
def test_with_zookeeper_out_of_reach_commits_are_refused_and_not_left_waiting(
    scene: Scene, trouble: FolkmootError
) -> None:
    scene.trouble = trouble
    scene.pass_time(0.5)
    before = scene.epochs()
    scene.reachable = False
    scene.zookeeper.expire(scene.sessions[0])
    scene.member.commit({T0: 5}, before)
    scene.pass_time(RECONNECT_PAUSE * 4)
    assert scene.take(Committed) == [Committed(1, {}, frozenset({T0}))]
    assert 4 <= scene.attempts <= 7
    scene.reachable = True
    scene.pass_time(RECONNECT_PAUSE + 0.5)
    assert scene.epochs() == {T0: before[T0] + 1, T1: before[T1] + 1}


def test_a_member_can_leave_while_zookeeper_is_out_of_reach(scene: Scene) -> None:
    scene.pass_time(0.5)
    scene.reachable = False
    scene.zookeeper.expire(scene.sessions[0])
    scene.pass_time(0.1)
    scene.member.begin_to_leave()
    scene.pass_time(0.1)
    assert scene.take(Left)
    assert scene.member.state.phase is Phase.LEFT


def test_a_member_removed_by_hand_gives_up_its_session_and_joins_in_another(scene: Scene) -> None:
    scene.pass_time(0.5)
    first = scene.member.name
    assert first is not None
    execute(scene.admin, Delete(paths.member("g", first)))
    scene.pass_time(0.5)
    assert scene.sessions[0].state is SessionState.LOST
    assert {lost.partition for lost in scene.take(Lost)} == {T0, T1}
    assert execute(scene.admin, members.names("g")) == (scene.member.name,)
    assert scene.member.name != first
    owner = execute(scene.admin, ownership.owner_of("g", T0))
    assert owner is not None
    assert owner.member == scene.member.name


def test_a_group_deleted_under_its_member_is_made_anew(scene: Scene) -> None:
    """Its offsets are gone; epochs go on all the same: nothing of before is taken for now."""
    scene.pass_time(0.5)
    before = scene.epochs()
    scene.member.commit({T0: 5}, before)
    scene.pass_time(0.1)
    for path in (
        *(paths.owner("g", *each) for each in (T0, T1)),
        *(paths.offset("g", *each) for each in (T0, T1)),
        *(paths.owners("g", "t"), paths.offsets("g", "t")),
        *(paths.plan("g"), paths.member("g", scene.member.name or ""), paths.members("g")),
    ):
        execute(scene.admin, Delete(path))
    scene.pass_time(1.5)
    assert all(epoch > before[each] for each, epoch in scene.epochs(offset=None).items())
    assert execute(scene.admin, members.names("g")) == (scene.member.name,)


def test_a_partition_whose_offset_cannot_be_read_is_put_aside_and_the_others_are_owned(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """A reset mends it, and then it is claimed."""
    execute(scene.admin, ensure(paths.offset("g", *T0)))
    execute(scene.admin, Set(paths.offset("g", *T0), b"seventeen"))
    scene.pass_time(0.5)
    assert set(scene.epochs()) == {T1}
    (alarm,) = scene.member.state.alarms
    assert alarm.startswith("t-0 has no owner: /groups/g/offsets/t/0 holds something else")
    assert caplog.text.count("t-0 has no owner") == 1
    topic = execute(scene.admin, topics.read("t"))
    assert topic is not None
    execute(scene.admin, offset_admin.reset("g", T0, topic.topic_id, 17, "a reset"))
    scene.pass_time(Timing().retry + 0.5)
    assert set(scene.epochs(17)) == {T0}
    assert scene.member.state.alarms == ()


def test_a_topic_that_does_not_exist_and_a_pattern_without_any_are_told_once_until_they_do(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    settings = msgspec.structs.replace(SETTINGS, topics=("ordres",), pattern="x-.*")
    both = Member(settings, scene.connect, lambda: None, lambda: scene.now, Random(7))
    both.open()

    def pass_time() -> None:
        for _ in range(60):
            scene.pass_time(0.05)
            for _ in range(TURNS):
                both.run_once()

    pass_time()
    assert (both.state.view.missing, both.state.view.is_without_topics) == (
        ("ordres", "/x-.*/"),
        True,
    )
    said = (
        "topic ordres does not exist: it is read as soon as it is created",
        "no topic matches /x-.*/ yet: those that do are read as soon as they are created",
    )
    assert both.state.alarms == said
    assert [each.getMessage() for each in caplog.records] == [f"group g: {each}" for each in said]
    execute(scene.admin, topics.create("x-1", 1, [1]))
    pass_time()
    assert (both.state.view.missing, both.state.view.is_without_topics) == (("ordres",), False)
    execute(scene.admin, topics.create("ordres", 1, [1]))
    pass_time()
    assert not both.state.view.missing + both.state.alarms
    assert len(caplog.records) == 2
    assert scene.member.state.view.missing == ()
    both.stop(0.0)


def test_an_offset_that_is_written_over_while_it_is_owned_costs_nobody_else_anything(
    scene: Scene,
) -> None:
    scene.pass_time(0.5)
    epochs = scene.epochs()
    execute(scene.admin, Set(paths.offset("g", *T0), b"seventeen"))
    scene.member.commit({T0: 5, T1: 6}, epochs)
    scene.pass_time(0.5)
    assert scene.take(Committed) == [Committed(1, {T1: 6}, frozenset({T0}))]
    assert [lost.partition for lost in scene.take(Lost)] == [T0]
    assert "t-0 has no owner" in scene.member.state.alarms[0]


def test_who_stood_still_until_its_time_was_over_joins_anew(scene: Scene) -> None:
    """A sign of life and the end of its time may be due at once: nothing is asked for in no name."""
    settings = msgspec.structs.replace(SETTINGS, max_processing_time=2.0, revoke_timeout=1.0)
    member = Member(settings, scene.connect, lambda: None, lambda: scene.now, Random(6))
    scene.member.stop(0.0)
    scene.member = member
    member.open()
    scene.pass_time(1.0)
    first = member.name
    assert first is not None
    scene.now += 3.1  # it is stopped, with its heartbeat and its application long due
    for _ in range(TURNS):
        member.run_once()
    assert member.state.liveness.poll_state is PollState.EXPIRED
    member.polled(scene.now)
    scene.pass_time(1.0)
    assert member.name not in (None, first)


# -- what no recipe foresees --------------------------------------------------------------------------


def touches(kind: type[Write], path: str) -> Callable[[Operation], bool]:
    """Whether an operation is, or its transaction has, such a write below that path."""

    def is_one(operation: Operation) -> bool:
        writes = operation.writes if isinstance(operation, Multi) else (operation,)
        return any(isinstance(each, kind) and each.path.startswith(path) for each in writes)

    return is_one


def reads(kind: type[Operation], path: str) -> Callable[[Operation], bool]:
    """Whether an operation is such a read of a node below that path."""
    return lambda operation: (
        isinstance(operation, kind)
        and not isinstance(operation, Multi)
        and operation.path.startswith(path)
    )


JOINS = touches(Create, paths.members("g"))
CLAIMS = touches(Create, paths.owners("g", "t"))
COMMITS = touches(Set, paths.offsets("g", "t"))
RELEASES = touches(Delete, paths.owners("g", "t"))
LOOKS_AT_OWNERS = reads(Get, paths.owners("g", "t"))
READS_PLANS = reads(Get, paths.plan("g"))


@pytest.mark.parametrize(
    "refused",
    [JOINS, CLAIMS, LOOKS_AT_OWNERS, READS_PLANS],
    ids=["join", "claim", "verify", "read of the plan"],
)
def test_a_step_that_is_refused_ends_the_session_and_is_tried_after_pauses_that_grow(
    scene: Scene,
    refused: Callable[[Operation], bool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene.pass_time(0.5)
    before = scene.epochs()
    scene.refused = refused
    scene.zookeeper.expire(scene.sessions[0])
    caplog.clear()
    scene.pass_time(30.0)
    assert 4 <= scene.attempts <= 10
    assert execute(scene.admin, ownership.owner_of("g", T0)) is None
    assert str(scene.refusal) in scene.member.state.alarms[0]
    lines = [each for each in caplog.records if str(scene.refusal) in each.getMessage()]
    assert 1 <= len(lines) <= scene.attempts
    assert not any(each.exc_info for each in caplog.records)
    scene.refused = lambda operation: False
    scene.pass_time(LONGEST_PAUSE + 1.0)
    assert set(scene.epochs()) == set(before)
    assert not scene.member.state.alarms


def test_the_pause_begins_anew_after_a_while_without_refusals(scene: Scene) -> None:
    scene.refused = CLAIMS
    scene.pass_time(20.0)
    scene.refused = lambda operation: False
    scene.pass_time(4 * LONGEST_PAUSE)
    scene.refused, before = COMMITS, scene.attempts
    scene.member.commit({T0: 5}, scene.epochs())
    scene.pass_time(RECONNECT_PAUSE + 0.3)
    assert scene.attempts == before + 1


def test_a_refused_commit_loses_the_partitions_and_says_why(scene: Scene) -> None:
    scene.pass_time(0.5)
    before = scene.epochs()
    scene.refused = COMMITS
    scene.member.commit({T0: 5}, before)
    scene.pass_time(0.1)
    assert scene.take(Committed) == [Committed(1, {}, frozenset({T0}))]
    lost = scene.take(Lost)
    assert {each.partition for each in lost} == {T0, T1}
    assert all(str(scene.refusal) in each.reason for each in lost)
    assert scene.member.state.owned.fenced_commits == 0
    scene.refused = lambda operation: False
    scene.pass_time(2.0)
    assert scene.epochs() == {each: epoch + 1 for each, epoch in before.items()}


def test_what_a_refused_release_has_let_go_is_free_for_others_at_once(scene: Scene) -> None:
    """The owner's node stood for the whole of the hand-over time: 302 seconds by default."""
    settings = msgspec.structs.replace(SETTINGS, max_processing_time=300.0)
    scene.pass_time(0.5)
    scene.epochs()
    other = Member(settings, scene.connect, lambda: None, lambda: scene.now, Random(9))
    scene.refused = RELEASES
    other.open()

    def owner() -> str | None:
        for _ in range(TURNS):
            other.run_once()
        scene.pass_time(0.05)
        for revoked in scene.take(Revoking):
            epoch = scene.member.state.owned._owned[revoked.partition].claim.state.epoch
            scene.member.drained(revoked.partition, epoch, None)
        found = {each: execute(scene.admin, ownership.owner_of("g", each)) for each in (T0, T1)}
        return next(
            (each.member for each in found.values() if each and each.member == other.name), None
        )

    began = scene.now
    eventually(owner, 10.0)
    assert scene.now - began < 10.0
    other.stop(0.0)


def test_who_leaves_while_zookeeper_refuses_is_gone_and_leaves_no_session(scene: Scene) -> None:
    scene.pass_time(0.5)
    before = scene.epochs()
    scene.refused = lambda operation: isinstance(operation, Multi | Delete)
    scene.member.begin_to_leave()
    scene.pass_time(0.1)
    for each, epoch in before.items():
        scene.member.drained(each, epoch, 7)
    scene.pass_time(0.5)
    assert scene.take(Left)
    assert scene.sessions[-1].state is SessionState.LOST
    assert execute(scene.admin, members.names("g")) == ()


@pytest.mark.parametrize(
    "refused", [JOINS, CLAIMS, READS_PLANS], ids=["join", "claim", "read of the plan"]
)
def test_what_zookeeper_will_refuse_again_is_raised_by_poll(
    refused: Callable[[Operation], bool],
) -> None:
    sessions: list[MemorySession] = []

    def deliver(request: Request) -> None:
        if request.session in sessions and refused(request.operation):
            refuse(request, Refused("/groups/g: an ACL does not permit it"))
        else:
            request.execute()
            request.reply()

    def connect(session_timeout: float) -> Session:
        sessions.append(zookeeper.connect(session_timeout))
        return sessions[-1]

    zookeeper = MemoryZooKeeper(deliver=deliver)
    execute(zookeeper.connect(), topics.create("t", 2, [1]))

    def is_refused() -> bool:
        try:
            consumer.poll(0.05)
        except ZooKeeperRefused as error:
            return "an ACL does not permit it" in str(error)
        return False

    consumer = Consumer(zookeeper=connect, group="g", topics=["t"]).start()
    eventually(is_refused, 10.0)
    assert is_refused()
    consumer.close()
    assert [each.state for each in sessions] == [SessionState.LOST]


# -- the thread ---------------------------------------------------------------------------------------


def told(member: Member) -> list[Notice]:
    """So far: its thread goes on, and a deque that grows must not be looked through."""
    return list(member.notices)


class Unforeseen(Exception):
    """What nobody reckons with."""


def failed() -> Member:
    """A member whose thread has ended for a reason that nobody has foreseen."""

    session = MemoryZooKeeper().connect()

    def fail() -> float:
        if current_thread().name == "folkmoot-group":
            raise Unforeseen("it fails")
        return 0.0

    member = Member(SETTINGS, lambda timeout: session, lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "last_acknowledged", fail)
        member.start()
        eventually(lambda: member.error is not None)
    return member


def raise_again(member: Member) -> None:
    assert member.error is not None
    raise copy_error(member.error) from member.error


def test_what_ended_the_thread_is_raised_again_and_again_and_does_not_grow() -> None:
    member = failed()
    sizes = []
    for _ in range(5):
        with pytest.raises(Unforeseen) as raised:
            raise_again(member)
        sizes.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert len(set(sizes)) == 1
    member.stop(5.0)


def test_a_commit_after_the_members_end_is_refused_and_not_left_waiting() -> None:
    member = failed()
    eventually(
        lambda: (
            member.sessions.current is None or member.sessions.current.state is SessionState.LOST
        )
    )
    outcome = member.commit({T0: 5}, {T0: 1})
    refused = outcome.result(20.0)
    assert not refused.offsets
    assert refused.refused == {T0}
    assert refused in told(member)
    member.stop(5.0)


def test_who_cannot_join_tries_again_after_a_pause(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one it opened hundreds of sessions a second."""

    def refused(*_: object) -> Recipe[str]:
        yield from ()
        raise ZooKeeperError("no quota is left")

    with monkeypatch.context() as patch:
        patch.setattr(members, "join", refused)
        scene.zookeeper.expire(scene.sessions[0])
        scene.pass_time(4 * RECONNECT_PAUSE)
        assert 2 <= scene.attempts <= 6
        said = "this member joins again: ZooKeeper refused to refused: no quota is left"
        assert scene.member.state.alarms == (said,)
    scene.pass_time(2.0)
    assert scene.member.name is not None
    assert not scene.member.state.alarms


def test_a_chroot_that_is_deleted_under_a_member_is_made_anew(
    empty_chroot: str, zookeeper_root: KazooClient
) -> None:
    """Before it joins, so that all parents are missing, and while it is a member."""
    sessions: list[Session] = []
    path = "/" + empty_chroot.partition("/")[2]

    def opened(session_timeout: float) -> Session:
        sessions.append(connect(empty_chroot, session_timeout, create=True))
        if len(sessions) == 1:
            zookeeper_root.delete(path)
        return sessions[-1]

    member = Member(SETTINGS, opened, lambda: None)
    member.start()
    try:
        eventually(lambda: member.name is not None, 10.0)
        before = member.name
        with suppress(NotEmptyError):  # the member may be faster
            zookeeper_root.delete(path, recursive=True)
        eventually(lambda: member.name not in (None, before), 10.0)
        assert member.error is None
    finally:
        member.stop(5.0)


def test_a_member_whose_thread_could_not_be_started_leaves_no_session_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions: list[MemorySession] = []
    zookeeper = MemoryZooKeeper()

    def connect(session_timeout: float) -> Session:
        sessions.append(zookeeper.connect(session_timeout))
        return sessions[-1]

    def no_more_threads(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    member = Member(SETTINGS, connect, lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", no_more_threads)
        with pytest.raises(RuntimeError):
            member.start()
    member.stop(0.0)
    assert [each.state for each in sessions] == [SessionState.LOST]


class Thinking:
    """An assignor that takes as long as it is made to."""

    name = "thinking"

    def __init__(self) -> None:
        self.begun = Event()
        self.go_on = Event()

    def assign(self, inputs: AssignmentInput) -> dict[TopicPartition, str]:
        self.begun.set()
        assert self.go_on.wait(20.0)
        return DEFAULT.assign(inputs)


def test_while_partitions_are_divided_the_member_lives_on() -> None:
    """It took seconds for a large group, in which no sign of life was sent: it fenced itself."""
    zookeeper = MemoryZooKeeper()
    execute(zookeeper.connect(), topics.create("t", 2, [1]))
    assignor = Thinking()
    settings = msgspec.structs.replace(SETTINGS, assignors=(assignor,), session_timeout=0.3)
    member = Member(settings, zookeeper.connect, lambda: None)
    member.start()
    try:
        assert assignor.begun.wait(10.0)
        for _ in range(10):
            assert member.commit({T0: 5}, {T0: 1}).result(20.0).refused == {T0}
        eventually(lambda: not member.state.liveness.fenced)
        assignor.go_on.set()
        eventually(lambda: any(isinstance(each, Assigned) for each in told(member)))
    finally:
        assignor.go_on.set()
        member.stop(5.0)


class SlowServers:
    """Connects at once the first time, and then when it is told to."""

    def __init__(self) -> None:
        self.zookeeper = MemoryZooKeeper()
        execute(self.zookeeper.connect(), topics.create("t", 2, [1]))
        self.sessions: list[MemorySession] = []
        self.asked = Event()
        self.answer = Event()

    def connect(self, session_timeout: float) -> Session:
        if self.sessions:
            self.asked.set()
            assert self.answer.wait(20.0)
        self.sessions.append(self.zookeeper.connect(session_timeout))
        return self.sessions[-1]


def test_while_a_session_is_being_opened_the_consumer_is_answered_and_can_leave() -> None:
    servers = SlowServers()
    member = Member(SETTINGS, servers.connect, lambda: None)
    member.start()
    eventually(lambda: member.name is not None, 10.0)
    servers.zookeeper.expire(servers.sessions[0])
    assert servers.asked.wait(10.0)
    assert member.commit({T0: 5}, {T0: 1}).result(10.0).refused == {T0}
    member.begin_to_leave()
    eventually(lambda: member.state.phase is Phase.LEFT, 10.0)
    member.stop(5.0)
    servers.answer.set()
    eventually(lambda: len(servers.sessions) == 2, 10.0)
    eventually(lambda: servers.sessions[1].state is SessionState.LOST, 10.0)


def test_a_session_that_took_long_to_open_is_joined_in() -> None:
    servers = SlowServers()
    member = Member(SETTINGS, servers.connect, lambda: None)
    member.start()
    try:
        eventually(lambda: member.name is not None, 10.0)
        before = member.name
        servers.zookeeper.expire(servers.sessions[0])
        assert servers.asked.wait(10.0)
        servers.answer.set()
        eventually(lambda: member.name not in (None, before), 10.0)
    finally:
        member.stop(5.0)
