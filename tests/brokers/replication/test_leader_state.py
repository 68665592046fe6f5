"""What a leader makes of what followers and ZooKeeper say, in the order in which they say it."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from folkmoot.brokers.replication.leader_state import LeaderState, Position
from folkmoot.brokers.storage.leader_epochs import EpochStarts
from folkmoot.coordination.partition_states import (
    NOBODY,
    PartitionState,
    StateWrite,
    Superseded,
    VersionedState,
)
from folkmoot.protocol.errors import OffsetNotAvailable, OffsetOutOfRange

EPOCH = 9
MAX_LAG = 10.0
ALL = (1, 2, 3)


class Scene:
    """Broker 1 leads epoch 9, with a log of `log_end` records by then."""

    def __init__(
        self,
        *isr: int,
        log_end: int = 0,
        high_watermark: int = 0,
        starts: EpochStarts | None = None,
    ) -> None:
        self.found = VersionedState(PartitionState(1, EPOCH, isr, 1, active=True), 4)
        self.log_end = log_end
        self.leader = LeaderState(
            *(1, self.found, ALL, starts or EpochStarts([(3, 0)])),
            log_end=log_end,
            high_watermark=high_watermark,
            deleted_before=0,
            min_in_sync=2,
            max_lag=MAX_LAG,
            now=0.0,
        )

    def append(self, count: int, now: float = 0.0) -> None:
        self.log_end += count
        self.leader.note_append(now)

    def ack(self, replica: int, end: int, now: float = 0.0, deleted_before: int = 0) -> None:
        """A follower's log ends there, and counts up to there."""
        position = Position(EPOCH, 3 if end else -1, end)
        found = self.leader.handle_fetch(
            replica, 1, position, self.log_end, now, deleted_before=deleted_before
        )
        assert found is None

    def advance(self) -> int:
        return self.leader.advance(self.log_end)

    def propose(self, *live: int, now: float = 0.0) -> tuple[int, ...] | None:
        """Who is to be in sync from now on; None: as before."""
        wanted = self.leader.propose(live or ALL, now)
        return None if wanted is None else wanted.state.isr

    def written(self, wanted: StateWrite | None) -> VersionedState:
        assert wanted is not None
        return VersionedState(wanted.state, wanted.stands_on + 1)


def test_a_replica_joins_when_it_has_all_that_was_there_when_the_epoch_began() -> None:
    """The high watermark may not know yet what was committed before."""
    scene = Scene(1, 2, log_end=10)
    scene.ack(3, 9)
    assert not scene.leader.has_committed(3)
    assert scene.propose() is None
    scene.ack(3, 10)
    assert scene.leader.has_committed(3)
    assert scene.propose() == (1, 2, 3)


def test_a_replica_joins_when_it_has_all_that_was_committed_since() -> None:
    scene = Scene(1, 2, log_end=10)
    scene.append(5)
    scene.ack(2, 15)
    assert scene.advance() == 15
    scene.ack(3, 14)
    assert not scene.leader.has_committed(3)
    assert scene.propose() is None
    scene.append(5)
    scene.ack(3, 15)
    assert scene.leader.has_committed(3)
    assert scene.propose() == (1, 2, 3)


def test_a_replica_that_never_fetched_has_nothing_though_there_is_nothing() -> None:
    scene = Scene(1, 2)
    assert not scene.leader.has_committed(3)
    assert scene.propose() is None
    scene.ack(3, 0)
    assert scene.propose() == (1, 2, 3)


def test_a_replica_joins_when_it_has_given_up_what_was_deleted() -> None:
    scene = Scene(1, 2, log_end=10)
    scene.leader.deleted_before = 4
    scene.ack(3, 10, deleted_before=3)
    assert scene.propose() is None
    scene.ack(3, 10, deleted_before=4)
    assert scene.propose() == (1, 2, 3)


def test_who_joins_counts_before_that_is_written_and_who_leaves_until_it_is() -> None:
    scene = Scene(1, 2, log_end=10)
    scene.ack(3, 10)
    assert scene.propose() == (1, 2, 3)
    assert scene.propose() is None, "one write at a time"
    scene.append(1)
    scene.ack(2, 11)
    assert scene.advance() == 10, "not before 3 has it, too"
    scene.leader.finish_proposal(scene.written(scene.leader.proposed))
    scene.ack(3, 11)
    assert scene.advance() == 11
    assert scene.propose(1, 2) == (1, 2)
    scene.append(1)
    scene.ack(2, 12)
    assert scene.advance() == 11, "3 may be in sync still"
    scene.leader.finish_proposal(scene.written(scene.leader.proposed))
    assert scene.advance() == 12


@pytest.mark.parametrize("was_written", [True, False])
def test_both_isrs_count_until_a_read_behind_an_unknown_outcome_says_which(
    was_written: bool,
) -> None:
    for isr, following in (((1, 2, 3), (1, 2)), ((1, 2), (1, 2, 3))):
        scene = Scene(*isr)
        scene.ack(3, 0)
        assert scene.propose(*following) == following
        wanted = scene.leader.proposed
        scene.leader.finish_proposal(None)
        assert scene.propose(*following) is None, "nobody knows on what the next write would stand"
        scene.append(1)
        scene.ack(2, 1)
        for found, settled in (
            (scene.found, False),
            (replace(scene.found, partition_epoch=3), True),
        ):
            scene.leader.observe(found, settled=settled)
            assert scene.leader.maximal_isr == {1, 2, 3}, "the read may be from before the write"
            assert scene.advance() == 0
        scene.leader.observe(scene.written(wanted) if was_written else scene.found, settled=True)
        counts = following if was_written else isr
        assert scene.leader.maximal_isr == {*counts}
        assert scene.advance() == (1 if counts == (1, 2) else 0)
        scene.ack(3, 1)
        assert scene.propose(*following) == (None if was_written else following)


def test_a_write_that_is_under_way_counts_whatever_is_read_meanwhile() -> None:
    scene = Scene(1, 2)
    scene.ack(3, 0)
    assert scene.propose() == (1, 2, 3)
    scene.leader.observe(scene.found, settled=True)
    assert scene.leader.maximal_isr == {1, 2, 3}


def test_a_leader_takes_nothing_from_what_it_has_read_before_or_late() -> None:
    scene = Scene(1, 2)
    for partition_epoch in (3, 4):
        for state in (
            PartitionState(2, 8, (2, 3), 1, active=True),
            PartitionState(1, 8, (1, 2, 3), 1, active=True),
        ):
            old = VersionedState(state, partition_epoch)
            scene.leader.observe(old)
            scene.leader.finish_proposal(old)
            assert not scene.leader.resigned
            assert (scene.leader.isr, scene.leader.known.partition_epoch) == ((1, 2), 4)


@pytest.mark.parametrize(
    "changed",
    [
        {"leader": 2},
        {"leader": NOBODY, "active": False},
        {"active": False},
        {"leader_epoch": EPOCH + 1},
    ],
)
def test_a_leader_resigns_when_another_is_to_lead_or_it_is_to_begin_another_epoch(
    changed: dict[str, object],
) -> None:
    for told in ("read", "refused"):
        scene = Scene(*ALL)
        scene.ack(3, 0)
        found = VersionedState(replace(scene.found.state, **changed), 5)
        if told == "read":
            scene.leader.observe(found)
        else:
            assert scene.propose(1, 2) == (1, 2)
            scene.leader.finish_proposal(Superseded(found))
        assert scene.leader.resigned
        assert scene.propose(1, 2) is None


def test_a_leader_resigns_when_a_zookeeper_that_was_set_back_refuses_its_write() -> None:
    for partition_epoch in (3, 4):
        scene = Scene(*ALL)
        assert scene.propose(1, 2) == (1, 2)
        found = VersionedState(scene.found.state, partition_epoch)
        scene.leader.finish_proposal(Superseded(found))
        is_older = partition_epoch < scene.found.partition_epoch
        assert scene.leader.resigned is is_older, (
            "another write may have been read before the answer"
        )


def test_a_leader_resigns_when_its_state_is_gone() -> None:
    scene = Scene(*ALL)
    scene.leader.observe(None)
    assert scene.leader.resigned


def test_an_isr_that_somebody_else_has_written_counts() -> None:
    scene = Scene(*ALL)
    assert scene.propose(1, 2) == (1, 2)
    found = VersionedState(replace(scene.found.state, isr=(1, 3)), 6)
    scene.leader.finish_proposal(Superseded(found))
    assert scene.leader.isr == (1, 3)
    assert scene.leader.maximal_isr == {1, 3}
    assert scene.leader.known.partition_epoch == 6
    assert not scene.leader.resigned


def test_the_high_watermark_stands_below_min_in_sync_and_never_falls() -> None:
    scene = Scene(1, 2, log_end=5, high_watermark=3)
    assert scene.advance() == 3, "2 has said nothing in this epoch"
    scene.ack(2, 4)
    assert scene.advance() == 4
    scene.ack(2, 2)
    assert scene.advance() == 4
    assert scene.propose(1) == (1,)
    scene.leader.finish_proposal(scene.written(scene.leader.proposed))
    assert scene.advance() == 4, "alone it commits nothing"
    scene.leader.min_in_sync = 1
    assert scene.advance() == 5


def test_a_leader_counts_no_more_of_its_own_log_than_is_on_its_disk() -> None:
    scene = Scene(1, 2, log_end=5)
    scene.ack(2, 5)
    assert scene.leader.advance(3) == 3
    assert scene.leader.advance(5) == 5


def test_who_acks_less_than_is_committed_leaves_though_it_keeps_up() -> None:
    scene = Scene(*ALL, log_end=5)
    for each in (2, 3):
        scene.ack(each, 5)
    assert scene.advance() == 5
    scene.ack(3, 5)
    assert scene.propose() is None
    scene.ack(3, 4)
    assert scene.propose() == (1, 2)


def test_who_reaches_what_the_log_had_at_its_last_fetch_keeps_up_with_a_log_that_grows() -> None:
    scene = Scene(*ALL)
    ends = {2: 0, 3: 0}
    for turn in range(30):
        now = float(turn)
        before = scene.log_end
        scene.append(10, now)
        ends[2] = before
        ends[3] += 9
        for each in (2, 3):
            scene.ack(each, min(ends[each], scene.log_end), now)
        assert scene.leader.propose(ALL, now) is None or turn > MAX_LAG
        if scene.leader.proposed is not None:
            assert scene.leader.proposed.state.isr == (1, 2)
            return
    pytest.fail("3 falls behind further and further, and nobody minds")


def test_who_lacks_something_leaves_behind_the_lag_that_is_allowed_and_not_before() -> None:
    scene = Scene(*ALL)
    for each in (2, 3):
        scene.ack(each, 0, 50.0)
    scene.append(1, 100.0)
    scene.append(1, 105.0)
    scene.ack(2, 2, 106.0)
    assert scene.propose(now=100.0 + MAX_LAG) is None
    assert scene.propose(now=100.1 + MAX_LAG) == (1, 2)


def test_who_is_not_a_replica_any_more_counts_for_nothing_and_leaves() -> None:
    scene = Scene(*ALL)
    for each in (2, 3):
        scene.ack(each, 0)
    scene.leader.replicas_changed((1, 2, 4), 0.0)
    scene.append(1)
    scene.ack(2, 1)
    assert scene.advance() == 0, "it counts until it has left"
    assert scene.propose(*ALL, 4) == (1, 2)
    scene.leader.finish_proposal(scene.written(scene.leader.proposed))
    assert scene.advance() == 1
    assert scene.propose(*ALL, 4) is None
    scene.ack(4, 1)
    assert scene.propose(*ALL, 4) == (1, 2, 4)


def test_records_are_given_up_when_nobody_who_may_lead_next_has_them() -> None:
    scene = Scene(1, 2, log_end=5)
    assert not scene.leader.have_deleted_before(3), "2 has said nothing in this epoch"
    scene.ack(2, 5, deleted_before=2)
    assert not scene.leader.have_deleted_before(3)
    scene.leader.deleted_before = 3
    scene.ack(2, 5, deleted_before=3)
    assert scene.leader.have_deleted_before(3)
    scene.ack(3, 5, deleted_before=3)
    assert scene.propose() == (1, 2, 3)
    scene.ack(3, 5)
    assert not scene.leader.have_deleted_before(3), "3 may be in sync already"


def test_a_partition_is_at_rest_when_all_are_in_sync_and_lack_nothing() -> None:
    def at_rest(scene: Scene, acked: Iterable[int]) -> bool:
        for each in acked:
            scene.ack(each, scene.log_end)
        return scene.leader.is_idle

    assert not at_rest(Scene(*ALL), (2,)), "3 has never fetched"
    assert at_rest(Scene(*ALL), (2, 3))
    assert not at_rest(Scene(1, 2), (2, 3)), "3 is to come"
    scene = Scene(*ALL)
    assert at_rest(scene, (2, 3))
    scene.append(1)
    assert not at_rest(scene, (2,))
    assert at_rest(scene, (3,))
    assert scene.propose(1, 2) == (1, 2)
    assert not scene.leader.is_idle, "a write is under way"


@pytest.mark.parametrize("refusal", ["out of range", "diverging"])
def test_a_follower_that_was_cut_in_front_of_damage_counts_for_no_position_that_it_looked_at(
    refusal: str,
) -> None:
    scene = Scene(1, 2, log_end=100)
    scene.ack(2, 100)
    assert scene.advance() == 100
    scene.append(20)
    scene.ack(2, 110)
    assert scene.propose(1) == (1,)
    scene.leader.finish_proposal(scene.written(scene.leader.proposed))
    for looked_at in (40, 110, 120):
        position = Position(EPOCH, 3, looked_at)
        found = scene.leader.handle_fetch(2, 1, position, scene.log_end, 0.0, is_damaged=True)
        assert found is None
    if refusal == "out of range":  # the leader has given up what lies before 60 meanwhile
        with pytest.raises(OffsetOutOfRange):
            scene.leader.handle_fetch(
                2, 1, Position(EPOCH, 3, 40), scene.log_end, 0.0, log_start=60
            )
    else:
        diverging = scene.leader.handle_fetch(2, 1, Position(EPOCH, 2, 40), scene.log_end, 0.0)
        assert diverging is not None
    assert not scene.leader.has_committed(2)
    assert scene.propose() is None
    scene.ack(2, 120)
    assert scene.propose() == (1, 2)


def test_a_follower_that_gives_up_what_it_has_acked_holds_the_high_watermark_until_it_has_left() -> (
    None
):
    scene = Scene(1, 2, log_end=10)
    scene.append(1)
    scene.ack(2, 11)
    with pytest.raises(OffsetNotAvailable):
        scene.leader.handle_fetch(2, 1, Position(EPOCH, 3, 4), 11, 0.0, is_damaged=True)
    assert scene.advance() == 0
    assert scene.propose() == (1,)


# -- a log in which some epochs cannot be read ----------------------------------------------------------


def in_doubt() -> Scene:
    """From offset 6 to the end at 10 an epoch between 3 and 9 may begin anywhere."""
    starts = EpochStarts([(3, 0)])
    starts.may_begin(6, 10)
    return Scene(1, log_end=10, starts=starts)


def ask(
    scene: Scene, replica: int, last_epoch: int, end: int, *, is_damaged: bool = False
) -> object:
    position = Position(EPOCH, last_epoch, end)
    return scene.leader.handle_fetch(replica, 1, position, 10, 0.0, is_damaged=is_damaged)


def test_a_follower_in_doubt_waits_until_all_have_asked_and_it_has_the_most() -> None:
    scene = in_doubt()
    with pytest.raises(OffsetNotAvailable):
        ask(scene, 2, 5, 8)
    with pytest.raises(OffsetNotAvailable, match="only copy"):
        ask(scene, 3, 4, 10)  # of an earlier epoch: it may lack what was committed in epoch 5
    assert scene.propose() is None
    assert ask(scene, 2, 5, 8) is None
    assert scene.propose() is None  # what it lacks still cannot be read
    assert ask(scene, 2, 5, 12) == (5, 10)  # what its leader never had was not committed
    assert ask(scene, 2, 5, 10) is None
    assert scene.propose() == (1, 2)


def test_a_follower_in_doubt_waits_for_one_that_has_more_behind_damage_of_its_own() -> None:
    scene = in_doubt()
    with pytest.raises(OffsetNotAvailable):
        ask(scene, 2, 5, 10)
    assert ask(scene, 3, 3, 4, is_damaged=True) is None  # in front of the doubt it can be compared
    with pytest.raises(OffsetNotAvailable):
        ask(scene, 2, 5, 10)
    assert ask(scene, 3, 3, 4) is None  # it was cut there
    assert ask(scene, 2, 5, 10) is None
    assert scene.propose() == (1, 2)
