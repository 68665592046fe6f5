"""What the thread that polls makes of the group's notices: callbacks that fail, and what is left then."""

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import pytest

from folkmoot.consumers.client.callbacks import call_now
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.client.rebalance_listener import RebalanceListener, Starts
from folkmoot.consumers.client.steps import Answer, BlockingWork
from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.group.events import (
    Assigned,
    Committed,
    Left,
    Lost,
    Notice,
    Replaced,
    Revoking,
)
from folkmoot.consumers.group.group_thread import Member
from folkmoot.consumers.group.polls import Polls
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.consumers.records.batch_cursor import BatchCursor
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.columns import BinaryColumn, Columns
from folkmoot.protocol.errors import (
    CommitBehind,
    ConfigError,
    InstanceReplaced,
    NotAssigned,
    RequestTimeout,
)
from folkmoot.protocol.records import TopicPartition
from tests.consumers.fetching import ONE, TWO, ZERO
from tests.consumers.fetching import Bench as Workbench
from tests.consumers.parts import Bench, take
from tests.waiting import eventually


class FakeMember:
    """A group thread that says what the test says, and writes down what it is told."""

    def __init__(self) -> None:
        self.notices: deque[Notice] = deque()
        self.error: BaseException | None = None
        self.polls = Polls(lambda: None, None)
        self.asked: list[dict[TopicPartition, int]] = []
        self.replaced = False
        self.when_committing: Callable[[dict[TopicPartition, int]], list[Notice]] = committed
        self.when_leaving: list[Notice] = []
        self.stopped = False
        self.released: dict[TopicPartition, int | None] = {}

    def polled(self, now: float) -> None:
        """Nobody counts."""

    def remind(self, at: float) -> None:
        """Nobody is woken."""

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        epochs: object,
        metadata: object = None,
        *,
        is_awaited: bool = False,
    ) -> Future[Committed]:
        self.asked.append(dict(offsets))
        outcome = Future[Committed]()
        for notice in self.when_committing(dict(offsets)):
            self.notices.append(notice)
            self.replaced = self.replaced or isinstance(notice, Replaced)
            if isinstance(notice, Committed):
                outcome.set_result(notice)
        return outcome

    def draining(self, partition: TopicPartition, epoch: int) -> None:
        """Nobody counts."""

    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None:
        self.released[partition] = offset

    def begin_to_leave(self, by: float) -> None:
        self.notices.extend(self.when_leaving)

    def stop(self, timeout: float) -> None:
        self.stopped = True


def committed(offsets: dict[TopicPartition, int]) -> list[Notice]:
    return [Committed(0, offsets, frozenset())]


class Scene:
    """A subscription between such a member and an application whose on_assign can fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []
        self.starts: Any = None
        self.failure: BaseException | None = None
        self.member = FakeMember()
        self.fetcher = Workbench().fetcher
        self.positions = Positions()
        self.when_assigning: Callable[[], object] = lambda: None
        self.when_revoking: Callable[[], object] = lambda: None
        self.listener = RebalanceListener(
            ConsumerConfig(zookeeper="nowhere:1", group="g", topics=["t"]),
            cast(Member, self.member),
            self.fetcher,
            self.positions,
            lambda name, notice: call_now(partial(self._call_back, name, notice)),
        )

    def _call_back(self, name: str, notice: Any) -> Starts | None:
        match name:
            case "on_assign":
                return self._on_assign(notice)
            case "on_revoke":
                self._on_revoke(notice)
            case "on_lost":
                self.calls.append(("lost", notice))
        return None

    def _on_assign(self, partitions: list[TopicPartition]) -> Starts | None:
        self.calls.append(("assign", partitions))
        self.when_assigning()
        if self.failure is not None:
            raise self.failure
        return cast(Starts | None, self.starts)

    def _on_revoke(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("revoke", partitions))
        self.when_revoking()

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> None:
        """As the consumer does it."""
        deadline = min(time.monotonic() + timeout, self.listener.leave_by)
        steps, answer = self.listener.commits.commit(offsets, deadline=deadline), None
        error: BaseException | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                return
            answer = error = None
            assert isinstance(step, Answer)
            try:
                answer = step.future.result(step.timeout)
            except TimeoutError as late:
                error = late

    def leave(self, deadline: float) -> None:
        """Until it has left, waiting for nothing."""
        for step in self.listener.leave(deadline):
            if isinstance(step, BlockingWork):
                step.work()

    def process(self, partition: TopicPartition, offset: int) -> None:
        """The application has got so far."""
        self.positions.of(partition).handed_out = offset
        self.positions.end_poll()

    def serve(self, *notices: Notice) -> None:
        self.member.notices.extend(notices)
        self.listener.serve()

    def serve_in_vain(self, *notices: Notice) -> None:
        self.failure = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError):
            self.serve(*notices)
        self.failure = None

    def called(self) -> list[tuple[str, list[TopicPartition]]]:
        """Since it was asked last."""
        calls, self.calls = self.calls, []
        return calls

    def places(self) -> dict[TopicPartition, int | None]:
        return {each: self.fetcher.position(each) for each in self.fetcher.partitions()}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def assigned(*partitions: TopicPartition) -> list[Notice]:
    return [Assigned(each, "id", 5, 7) for each in partitions]


# -- an on_assign that fails ------------------------------------------------------------------------


def test_an_on_assign_that_fails_is_called_again_and_nothing_is_read_before(scene: Scene) -> None:
    scene.serve_in_vain(*assigned(ZERO, ONE))
    assert scene.places() == {}
    scene.serve_in_vain()
    assert scene.places() == {}
    scene.starts = {ZERO: 8}
    scene.serve()
    assert scene.called() == [("assign", [ZERO, ONE])] * 3
    assert scene.places() == {ZERO: 8, ONE: 5}
    scene.serve()
    assert scene.called() == []


@pytest.mark.parametrize(
    ("starts", "error"),
    [
        ({ZERO: 8, ONE: "earlyest"}, ConfigError),
        ({ZERO: 8, ONE: -1}, ConfigError),
        ({ZERO: 8, ONE: True}, ConfigError),
        ({ZERO: 8, ONE: 1.5}, ConfigError),
        ({ZERO: 8, TWO: 0}, NotAssigned),
        ([ZERO, 8], ConfigError),
    ],
)
def test_a_place_that_is_none_fails_it_and_moves_nothing(
    scene: Scene, starts: Any, error: type[Exception]
) -> None:
    scene.serve(*assigned(ZERO))
    scene.starts = starts
    with pytest.raises(error):
        scene.serve(*assigned(ONE))
    assert scene.places() == {ZERO: 5}
    scene.starts = {ZERO: 6, ONE: None}
    scene.serve()
    assert scene.called()[1:] == [("assign", [ONE])] * 2
    assert scene.places() == {ZERO: 6, ONE: 5}


def test_what_goes_before_on_assign_has_succeeded_is_given_up_without_a_word(scene: Scene) -> None:
    scene.serve(*assigned(TWO))
    scene.serve_in_vain(*assigned(ZERO, ONE))
    scene.called()
    scene.serve(Revoking(ZERO), Revoking(TWO), Lost(ONE, "stolen"))
    assert scene.called() == [("revoke", [TWO])]
    assert scene.member.released == {ZERO: None, TWO: None}
    assert (scene.places(), scene.listener.epochs) == ({}, {})
    scene.serve(*assigned(ONE))
    assert scene.called() == [("assign", [ONE])]


def test_a_failing_on_assign_does_not_keep_other_partitions_from_being_given_up(
    scene: Scene,
) -> None:
    scene.serve(*assigned(ZERO))
    scene.serve_in_vain(*assigned(ONE))
    scene.serve_in_vain(Revoking(ZERO))
    assert ZERO in scene.member.released
    assert scene.places() == {}


def test_leaving_does_not_call_an_on_assign_that_has_failed_again(scene: Scene) -> None:
    scene.serve_in_vain(*assigned(ZERO))
    scene.called()
    scene.member.when_leaving = [Revoking(ZERO), Left()]
    scene.leave(time.monotonic() + 10.0)
    assert scene.called() == []
    assert scene.member.released == {ZERO: None}


def test_what_comes_while_on_assign_fails_is_not_skipped_at_the_latest_offset(
    bench: Bench,
) -> None:
    """Offsets kept with the results, in a store that is out of reach for a while."""
    bench.send(range(3))
    stored, is_down = {bench.partition(0): 2}, True

    def restore(consumer: Consumer, partitions: list[TopicPartition]) -> Starts:
        if is_down:
            raise OSError("the store is down")
        return {each: stored.get(each, "earliest") for each in partitions}

    with bench.member(auto_offset_reset="latest", on_assign=restore) as consumer:
        failures = 0

        def has_failed() -> bool:
            nonlocal failures
            try:
                assert consumer.poll(0.2) == []
            except OSError:
                failures += 1
            return failures >= 3

        eventually(has_failed, 20.0)
        bench.send(range(3, 6))
        is_down = False
        assert take(consumer, 4) == [2, 3, 4, 5]


# -- where the policy has a group start --------------------------------------------------------------


def test_a_start_that_was_found_is_committed_unless_something_is_or_the_partition_has_gone(
    scene: Scene,
) -> None:
    scene.serve(*assigned(ZERO, ONE), *assigned(TWO))
    assert not scene.listener.commits.starts_at(ZERO, 12)  # the claim said where to go on
    scene.serve(*(Assigned(each, "id", None, 2) for each in (ONE, TWO)))
    assert scene.listener.commits.starts_at(ONE, 12)
    assert scene.listener.commits.starts_at(TWO, 13)
    scene.serve(Lost(TWO, "stolen"))
    assert not scene.listener.commits.starts_at(TWO, 14)
    for _ in range(2):
        scene.listener.commits.commit_starts()
    assert scene.member.asked == [{ONE: 12}]


# -- what is told of commits ------------------------------------------------------------------------


def test_who_was_replaced_is_told_so_by_every_commit(scene: Scene) -> None:
    scene.serve(*assigned(ZERO))
    scene.member.replaced = True
    with pytest.raises(InstanceReplaced):
        scene.serve(Lost(ZERO, "replaced"), Replaced())
    for offsets in ({}, {ZERO: 5}):
        with pytest.raises(InstanceReplaced):
            scene.commit(offsets, 1.0)


def test_who_is_replaced_while_a_commit_waits_is_told_so_at_once(scene: Scene) -> None:
    scene.serve(*assigned(ZERO))
    scene.member.when_committing = lambda offsets: [
        Lost(ZERO, "replaced"),
        Replaced(),
        Committed(0, {}, frozenset({ZERO})),
    ]
    begun = time.monotonic()
    with pytest.raises(InstanceReplaced):
        scene.commit({ZERO: 6}, 60.0)
    assert time.monotonic() - begun < 30.0


def test_what_ended_the_group_thread_is_raised_again_and_again_and_does_not_grow(
    scene: Scene,
) -> None:
    scene.member.error = cause = ValueError("not a path below the chroot")
    raised, lines = [], []
    for _ in range(3):
        with pytest.raises(ValueError, match="not a path") as caught:
            scene.listener.serve()
        raised.append(caught.value)
        lines.append(len(traceback.format_exception(caught.value)))
    assert lines[0] == lines[1] == lines[2]
    assert len({*map(id, raised), id(cause)}) == 4
    assert {each.__cause__ for each in raised} == {cause}


# -- a group does not go back -----------------------------------------------------------------------


def test_a_commit_behind_what_is_committed_is_refused_and_the_rest_is_committed(
    scene: Scene,
) -> None:
    scene.serve(*assigned(ZERO, ONE))
    with pytest.raises(CommitBehind, match=r"4 in t-0 lies before 5, .* `folkmoot group reset`"):
        scene.commit({ZERO: 4, ONE: 8}, 1.0)
    assert scene.member.asked == [{ONE: 8}]
    scene.commit({ZERO: 5, ONE: 8}, 1.0)
    with pytest.raises(CommitBehind, match="7 in t-1 lies before 8"):
        scene.commit({ONE: 7}, 1.0)


def test_commits_of_two_threads_reach_the_group_in_the_order_in_which_they_count(
    scene: Scene,
) -> None:
    scene.serve(*assigned(ZERO))
    later = threading.Thread(target=lambda: scene.commit({ZERO: 100}, 1.0))

    commit = scene.member.commit

    def overtaken(
        offsets: Mapping[TopicPartition, int], *given: Any, **options: Any
    ) -> Future[Committed]:
        if offsets == {ZERO: 50}:  # noted, and not asked for yet
            later.start()
            later.join(0.2)
        return commit(offsets, *given, **options)

    scene.member.commit = overtaken  # type: ignore[method-assign]
    scene.commit({ZERO: 50}, 1.0)
    later.join(20.0)
    assert scene.member.asked == [{ZERO: 50}, {ZERO: 100}]


def test_a_commit_behind_one_that_was_not_answered_yet_is_refused(scene: Scene) -> None:
    scene.serve(*assigned(ZERO))
    scene.member.when_committing = lambda offsets: []
    with pytest.raises(RequestTimeout):
        scene.commit({ZERO: 100}, 0.0)
    with pytest.raises(CommitBehind, match="99 in t-0 lies before 100"):
        scene.commit({ZERO: 99}, 0.0)


def test_what_an_on_assign_has_committed_before_it_failed_stays_committed(scene: Scene) -> None:
    scene.starts = (1,)  # no mapping: it fails after it has committed
    scene.when_assigning = lambda: scene.commit({ZERO: 100}, 1.0)
    with pytest.raises(ConfigError):
        scene.serve(*assigned(ZERO))
    scene.starts, scene.when_assigning = None, lambda: None
    scene.serve()
    with pytest.raises(CommitBehind, match="6 in t-0 lies before 100"):
        scene.commit({ZERO: 6}, 1.0)


def test_what_is_read_again_is_committed_by_itself_from_where_it_goes_beyond(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.serve(*assigned(ZERO))
    for offset, commits in ((4, []), (5, []), (6, [{ZERO: 6}]), (3, [{ZERO: 6}])):
        scene.process(ZERO, offset)
        monkeypatch.setattr(scene.listener.commits, "_due_at", 0.0)
        scene.serve()
        assert scene.member.asked == commits
    scene.serve(Revoking(ZERO))
    assert scene.member.released == {ZERO: None}


def test_after_a_reset_the_group_goes_on_at_its_new_offset(scene: Scene) -> None:
    scene.serve(*assigned(ZERO))
    scene.commit({ZERO: 100}, 1.0)
    scene.serve(Lost(ZERO, "its offset was reset"), Assigned(ZERO, "id", 2, 8))
    scene.commit({ZERO: 3}, 1.0)
    assert scene.member.asked == [{ZERO: 100}, {ZERO: 3}]


# -- the end ----------------------------------------------------------------------------------------


def test_an_interrupted_leave_ends_the_member_all_the_same(scene: Scene) -> None:
    scene.serve(*assigned(ZERO))
    scene.member.when_leaving = [Revoking(ZERO), Left()]

    def interrupt() -> None:
        raise KeyboardInterrupt

    scene.when_revoking = interrupt
    with pytest.raises(KeyboardInterrupt):
        scene.leave(time.monotonic() + 10.0)
    assert scene.member.stopped


def test_a_commit_within_on_revoke_does_not_outlast_the_time_to_leave(scene: Scene) -> None:
    scene.serve(*assigned(ZERO))
    scene.member.when_leaving = [Revoking(ZERO), Left()]
    scene.member.when_committing = lambda offsets: []  # ZooKeeper is dead
    scene.when_revoking = lambda: scene.commit({ZERO: 6}, 60.0)
    begun = time.monotonic()
    with pytest.raises(RequestTimeout):
        scene.leave(begun + 0.3)
    assert time.monotonic() - begun < 30.0


# -- records that end by `done` ---------------------------------------------------------------------------


@pytest.fixture
def explicit() -> Scene:
    """`done` says what is processed."""
    scene = Scene()
    scene.positions = Positions(explicit_done=True)
    config = ConsumerConfig(
        zookeeper="nowhere:1", group="g", topics=["t"], explicit_done=True, max_processing_time=60.0
    )
    scene.listener = RebalanceListener(
        *(config, cast(Member, scene.member), scene.fetcher, scene.positions),
        lambda name, notice: call_now(partial(scene._call_back, name, notice)),
    )
    scene.serve(*assigned(ZERO))
    scene.positions.hand_out(ZERO, range(5, 10), 10)
    scene.called()
    return scene


def test_a_partition_that_is_lost_while_its_records_are_under_way_is_not_revoked(
    explicit: Scene,
) -> None:
    explicit.serve(Revoking(ZERO))
    assert explicit.called() == []
    explicit.positions.done(ZERO, 5, 10)
    explicit.serve(Lost(ZERO, "the session is over"))
    assert explicit.called() == [("lost", [ZERO])]
    assert not explicit.member.released


def test_the_time_for_records_under_way_begins_when_the_group_wants_the_partition(
    explicit: Scene,
) -> None:
    explicit.serve(Revoking(ZERO, at=time.monotonic() - 50.0))
    assert 0.0 < explicit.listener.finishing[ZERO] - time.monotonic() <= 10.0
    explicit.serve(Revoking(ZERO, at=time.monotonic() - 50.0))
    assert explicit.called() == []


def test_records_of_a_batch_that_is_iterated_over_are_done_though_a_callback_ends_meanwhile(
    explicit: Scene,
) -> None:
    """As in an event loop: whatever looks at what is done finds the iteration as far as it has come."""
    positions = explicit.positions
    positions.claim(ZERO, 5)
    columns = Columns(3, None, BinaryColumn.of([b"a", b"b", b"c"]), 0)
    cursor = BatchCursor(RecordBatchView(ZERO, columns, range(5, 8), append_time=False))
    positions.cursor = cursor
    for record in cursor.records:
        positions.done(ZERO, record.offset, record.offset + 1)
        assert positions.due({ZERO}) == {ZERO: record.offset + 1}
    assert positions.is_done(ZERO)
