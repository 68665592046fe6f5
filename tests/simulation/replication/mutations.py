"""Rules of replication taken away, one at a time: each must be missed by a check."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from folkmoot.brokers.controller.leadership import Leadership
from folkmoot.brokers.replication.follower_state import FollowerState, Truncate
from folkmoot.brokers.replication.leader_state import LeaderState
from folkmoot.brokers.replication.partition import Partition
from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.brokers.replication.replica_state import ReplicaState
from folkmoot.brokers.storage import log as log_module
from folkmoot.brokers.storage.leader_epochs import EpochEnd
from folkmoot.brokers.storage.log import FlushResult, Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.producer_state import ProducerState
from folkmoot.coordination import brokers, partition_states
from folkmoot.coordination.partition_states import (
    StateWrite,
    Superseded,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.protocol.errors import OffsetNotAvailable
from tests.brokers.hands import truncate
from tests.simulation.replication import stage
from tests.simulation.replication.broker import Broker
from tests.simulation.replication.coordination import PARTITION, Controller, Watcher
from tests.simulation.replication.disk import Disk


def _elect_who_is_not_in_sync(patch: pytest.MonkeyPatch) -> None:
    """Rule 1, and 9."""
    look = Controller._look

    def unclean(self: Controller) -> None:
        self.unclean = True
        look(self)

    patch.setattr(Controller, "_look", unclean)


def _activate_without_a_write(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: a leader by what it has read, as in Kafka."""

    def write(self: Broker, writes: Any, done: Callable[[Any], None]) -> None:
        [wanted] = writes.values()
        replica = self.replica
        if wanted.state.active and replica is not None and replica.leader is None:
            written = VersionedState(wanted.state, wanted.stands_on + 1)
            self.post(lambda: done({PARTITION: written}))
            real(self, writes, lambda result: None)
        else:
            real(self, writes, done)

    real = Broker.write_states
    patch.setattr(Broker, "write_states", write)


def _activate_out_of_the_isr(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: a member of the ISR. With a controller that designates anybody, or all are members."""

    def activation(self: ReplicaState, known: VersionedState) -> Any:
        return real(self, known)

    def following(self: ReplicaState) -> Any:
        known = self.known
        if known is not None and known.state.leader == self.broker_id:
            isr = tuple(dict.fromkeys((*known.state.isr, self.broker_id)))
            self.known = replace(known, state=known.state.with_isr(isr))
        return real_next(self)

    real, real_next = ReplicaState._activation, ReplicaState._next
    patch.setattr(ReplicaState, "_activation", activation)
    patch.setattr(ReplicaState, "_next", following)
    decide = Controller._decide

    def designate_any(self: Controller, live: Any, found: Any, epoch: int) -> StateWrite | None:
        wanted = decide(self, live, found, epoch)
        if wanted is not None and found is not None and live:
            leader = self.world.random.choice(sorted(live))
            return StateWrite(replace(wanted.state, leader=leader), wanted.stands_on)
        return wanted

    patch.setattr(Controller, "_decide", designate_any)


def _forget_epochs(patch: pytest.MonkeyPatch) -> None:
    """Rule 3."""
    patch.setattr(stage.Rules, "epochs_are_persisted", False)


def _answer_fetches_of_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """Rule 4."""
    real = LeaderState.handle_fetch

    def fetched(self: LeaderState, who: int, epoch: int, position: Any, *rest: Any) -> Any:
        position = type(position)(self.epoch, position.last_epoch, position.log_end)
        return real(self, who, epoch, position, *rest)

    patch.setattr(LeaderState, "handle_fetch", fetched)
    own = FollowerState.handle_answer

    def answered(self: FollowerState, asked: Any, *rest: Any) -> Any:
        return own(self, type(asked)(self.epoch, asked.last_epoch, asked.log_end), *rest)

    patch.setattr(FollowerState, "handle_answer", answered)


def _compare_ends_alone(patch: pytest.MonkeyPatch) -> None:
    """Rule 4: the epoch of the last record says whether the position is on the leader's log."""
    real = LeaderState.handle_fetch

    def fetched(
        self: LeaderState, who: int, epoch: int, position: Any, *rest: Any, **more: Any
    ) -> Any:
        last = self._starts.latest if position.last_epoch >= 0 else -1
        position = type(position)(self.epoch, last, position.log_end)
        return real(self, who, epoch, position, *rest, **more)

    patch.setattr(LeaderState, "handle_fetch", fetched)


def _truncate_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Rule 4, as in Kafka 0.8."""
    real = Partition._carry_out

    def carry_out(self: Partition, step: Any) -> None:
        follower = self.state.follower
        if follower is not None and not hasattr(follower, "has_begun") and self.log.is_open:
            follower.has_begun = True  # type: ignore[attr-defined]
            truncate(self.log, self.log.high_watermark)
        real(self, step)

    patch.setattr(Partition, "_carry_out", carry_out)


def _truncate_to_the_end_of_the_leaders_epoch_alone(patch: pytest.MonkeyPatch) -> None:
    """Rule 4: the follower's own end of that epoch counts, too."""
    real = FollowerState.handle_answer

    def answered(
        self: FollowerState, asked: Any, end: EpochEnd | None, starts: Any, log_end: int
    ) -> Any:
        todo = real(self, asked, end, starts, log_end)
        if isinstance(todo, Truncate) and end is not None:
            return Truncate(min(end.offset, log_end))
        return todo

    patch.setattr(FollowerState, "handle_answer", answered)


def _acknowledge_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    """Rule 5."""
    patch.setattr(Partition, "counted_end", property(lambda self: self.log.log_end))


def _ignore_proposals(patch: pytest.MonkeyPatch) -> None:
    """Rules 6 and 7: the ISR that is known alone counts, while one replica more is proposed."""
    patch.setattr(LeaderState, "maximal_isr", property(lambda self: frozenset(self.isr)))


def _shrink_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """Rule 7."""

    def maximal_isr(self: LeaderState) -> frozenset[int]:
        return frozenset(self.isr if self.proposed is None else self.proposed.state.isr)

    patch.setattr(LeaderState, "maximal_isr", property(maximal_isr))


def _commit_below_min_in_sync(patch: pytest.MonkeyPatch) -> None:
    """Rule 6."""
    patch.setattr(LeaderState, "has_enough_replicas", property(lambda self: True))


def _count_ends_of_earlier_epochs(patch: pytest.MonkeyPatch) -> None:
    """Rule 6: acked in this epoch. The next leader of a process believes what its last one knew."""
    ends: dict[tuple[int, int], Any] = {}
    real = LeaderState.__init__

    def begin(self: LeaderState, broker_id: int, *given: Any, **named: Any) -> None:
        real(self, broker_id, *given, **named)
        for number in self._followers:
            key = id(self._starts), number
            self._followers[number] = ends.setdefault(key, self._followers[number])

    patch.setattr(LeaderState, "__init__", begin)


def _let_in_who_lacks_earlier_epochs(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: the log's end when the epoch began."""
    patch.setattr(
        LeaderState,
        "_has_caught_up",
        lambda self, follower: follower.log_end >= self.high_watermark,
    )


def _let_in_an_earlier_incarnation(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: the check of the replica's broker epoch. A disk may be another one since."""
    real = LeaderState.propose

    def propose(self: LeaderState, live: Any, now: float) -> StateWrite | None:
        wanted = real(self, live, now)
        if wanted is not None:
            self.proposed = wanted = replace(wanted, in_sync={})
        return wanted

    patch.setattr(LeaderState, "propose", propose)


def _write_whatever_the_version(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: the compare-and-set, of the leader's own writes."""
    real = Broker.write_states

    def write(self: Broker, writes: Any, done: Callable[[Any], None]) -> None:
        [wanted] = writes.values()
        if self.replica is None or self.replica.leader is None:
            real(self, writes, done)
            return

        def over_anything() -> Recipe[Any]:
            found = yield from partition_states.read(PARTITION)
            assert found is not None
            state = found.state.with_isr(wanted.state.isr)
            return (
                yield from partition_states.write(
                    {PARTITION: StateWrite(state, found.partition_epoch)}
                )
            )

        def written(result: Any) -> None:
            self.post(lambda: done(result if isinstance(result, dict) else None))

        self.watcher.write(over_anything, self.soon(written))

    patch.setattr(Broker, "write_states", write)


def _never_resign(patch: pytest.MonkeyPatch) -> None:
    """Rule 8: a refusal is the ISR's new state, whoever leads."""

    def adopt(self: LeaderState, found: VersionedState) -> None:
        if found.partition_epoch > self.known.partition_epoch:
            state = replace(
                found.state, leader=self.broker_id, leader_epoch=self.epoch, active=True
            )
            self.known = replace(found, state=state)

    patch.setattr(LeaderState, "_adopt", adopt)
    _write_whatever_the_version(patch)


def _take_unknown_for_failed(patch: pytest.MonkeyPatch) -> None:
    """Rule 8: an answer that never came."""
    real = LeaderState.finish_proposal

    def answered(self: LeaderState, answer: Any) -> None:
        if answer is None:
            self.proposed = None
        else:
            real(self, answer)

    patch.setattr(LeaderState, "finish_proposal", answered)


def _take_a_refusal_for_a_success(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: the activation."""
    real = ReplicaState.finish_activation

    def activated(self: ReplicaState, answer: Any, lead: Any) -> Any:
        if isinstance(answer, Superseded) and self.known is not None:
            answer = VersionedState(self.known.state.activate(), self.known.partition_epoch + 1)
        return real(self, answer, lead)

    patch.setattr(ReplicaState, "finish_activation", activated)


# -- reassignments --------------------------------------------------------------------------------------


def _end_before_all_have_caught_up(patch: pytest.MonkeyPatch) -> None:
    """A reassignment ends when all of the target are in sync."""

    def ending(self: Leadership, partition: TopicIdPartition) -> Any:
        topic, known = self._topics[partition.topic_id], self._states.get(partition)
        move = topic.reassignments.get(partition.partition)
        if move is None or known is None or not known.state.active:
            return None
        ended = known.state.designate(move.target[0], move.target, self._controller_epoch)
        return move, StateWrite(ended, known.partition_epoch)

    patch.setattr(Leadership, "_ending", ending)


def _cancel_whoever_is_in_sync(patch: pytest.MonkeyPatch) -> None:
    """A cancelled reassignment goes back to replicas that have all that is committed."""
    real = Leadership._ending

    def ending(self: Leadership, partition: TopicIdPartition) -> Any:
        topic, known = self._topics[partition.topic_id], self._states.get(partition)
        move = topic.reassignments.get(partition.partition)
        if move is None or known is None or not move.is_cancelled:
            return real(self, partition)
        ended = known.state.designate(move.original[0], move.original, self._controller_epoch)
        return move, StateWrite(ended, known.partition_epoch)

    patch.setattr(Leadership, "_ending", ending)


def _delete_when_it_begins(patch: pytest.MonkeyPatch) -> None:
    """Who leaves keeps its log until the reassignment has ended."""
    real = Partitions.update_topic

    def update_topic(self: Partitions, name: str, topic: Any, states: Any, **given: Any) -> None:
        for number, move in topic.reassignments.items():
            if self.broker_id not in move.target:
                key = TopicIdPartition(topic.topic_id, number)
                self._drop(key)
                if self._logs.find(*key) is not None:
                    self._logs.delete_partition(*key)
                return
        real(self, name, topic, states, **given)

    patch.setattr(Partitions, "update_topic", update_topic)


def _lead_on_in_the_epoch_of_a_reassignment_that_ends(patch: pytest.MonkeyPatch) -> None:
    """What a replica that leaves has acked does not count in the next epoch."""
    patch.setattr(stage.Rules, "ends_begin_epochs", False)


def _follow_whatever_is_known_of_the_topic(patch: pytest.MonkeyPatch) -> None:
    """Who has left does not fetch in a later epoch."""
    real = ReplicaState._next

    def following(self: ReplicaState) -> Any:
        self.reassigned = 1 << 30
        return real(self)

    patch.setattr(ReplicaState, "_next", following)


# -- takeovers of a broker's id -------------------------------------------------------------------------


def _count_on_a_disk_whose_id_another_one_had(patch: pytest.MonkeyPatch) -> None:
    """What that one has acked may be missing."""
    patch.setattr(LogManager, "mark_incomplete", lambda self: None)


def _go_on_where_another_disk_had_the_id(patch: pytest.MonkeyPatch) -> None:
    """A process that goes on has no time to say what may be missing."""
    register = Watcher._register

    def registered(self: Watcher) -> Any:
        self._former = yield from brokers.last_directory(self.broker_id)
        return (yield from register(self))

    patch.setattr(Watcher, "_register", registered)
    patch.setattr(LogManager, "mark_incomplete", lambda self: None)


# -- of what is around the protocol ---------------------------------------------------------------------


def _cut_damage_while_it_counts(patch: pytest.MonkeyPatch) -> None:
    """Who is cut at damage has left the ISR."""
    real = LeaderState.handle_fetch

    def fetched(self: LeaderState, *given: Any, is_damaged: bool = False, **named: Any) -> Any:
        try:
            return real(self, *given, is_damaged=is_damaged, **named)
        except OffsetNotAvailable:
            if not is_damaged:
                raise
            return None

    patch.setattr(LeaderState, "handle_fetch", fetched)


def _serve_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    """Consumers read below the high watermark only."""
    real = Log.read

    def read(self: Log, *given: Any, **named: Any) -> memoryview:
        return real(self, *given, **{**named, "committed": False})

    patch.setattr(Log, "read", read)


def _write_again_what_comes_again(patch: pytest.MonkeyPatch) -> None:
    """A producer's sequences, over failover, too."""
    patch.setattr(ProducerState, "check", lambda self, header, before: None)


def _follow_without_the_producers(patch: pytest.MonkeyPatch) -> None:
    """What a follower knows of producers comes with the batches."""
    append = Log.append_as_follower

    def append_as_follower(self: Log, chunk: Any) -> None:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(ProducerState, "update", lambda *given: None)
            append(self, chunk)

    patch.setattr(Log, "append_as_follower", append_as_follower)


def _go_on_after_a_failed_flush(patch: pytest.MonkeyPatch) -> None:
    """Rule 5: nobody knows what is on the disk."""
    real = log_module.put_on_disk

    def put_on_disk(*given: Any) -> FlushResult:
        with suppress(OSError):
            real(*given)
        return FlushResult(0.0)

    patch.setattr(log_module, "put_on_disk", put_on_disk)


def _trust_the_page_cache_behind_a_power_cut(patch: pytest.MonkeyPatch) -> None:
    """Rule 10: it is not known to have all that it has acked."""
    patch.setattr(Disk, "boot", b"always the same")


def _trust_the_page_cache_behind_a_failed_flush(patch: pytest.MonkeyPatch) -> None:
    """Rule 10: the kernel gives up what it could not write."""
    patch.setattr(LogManager, "distrust", lambda self: None)


def _trust_the_page_cache_of_what_counts_on_disks_since(patch: pytest.MonkeyPatch) -> None:
    """Rule 10, where the topic's durability has changed."""
    begin = Partition.begin

    def begun(self: Partition, topic: TopicInfo, found: Any) -> None:
        begin(self, replace(topic, had_page_cache=False), found)

    patch.setattr(Partition, "begin", begun)


def _answer_who_deletes_before_followers_have_deleted(patch: pytest.MonkeyPatch) -> None:
    """Whoever leads next has nothing of what was deleted."""
    patch.setattr(LeaderState, "have_deleted_before", lambda self, offset: True)


def _answer_times_with_the_end(patch: pytest.MonkeyPatch) -> None:
    """Who looks for the first record of a time passes none over."""
    patch.setattr(Log, "offset_for_time", lambda self, timestamp: self.high_watermark)


MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    change.__name__.strip("_").replace("_", " "): change
    for change in (
        _elect_who_is_not_in_sync,
        _activate_without_a_write,
        _activate_out_of_the_isr,
        _forget_epochs,
        _answer_fetches_of_any_epoch,
        _compare_ends_alone,
        _truncate_to_the_high_watermark,
        _truncate_to_the_end_of_the_leaders_epoch_alone,
        _acknowledge_before_the_flush,
        _ignore_proposals,
        _shrink_before_it_is_written,
        _commit_below_min_in_sync,
        _count_ends_of_earlier_epochs,
        _let_in_who_lacks_earlier_epochs,
        _let_in_an_earlier_incarnation,
        _write_whatever_the_version,
        _never_resign,
        _take_unknown_for_failed,
        _take_a_refusal_for_a_success,
        _end_before_all_have_caught_up,
        _cancel_whoever_is_in_sync,
        _delete_when_it_begins,
        _lead_on_in_the_epoch_of_a_reassignment_that_ends,
        _follow_whatever_is_known_of_the_topic,
        _count_on_a_disk_whose_id_another_one_had,
        _go_on_where_another_disk_had_the_id,
        _cut_damage_while_it_counts,
        _serve_what_is_not_committed,
        _write_again_what_comes_again,
        _follow_without_the_producers,
        _go_on_after_a_failed_flush,
        _trust_the_page_cache_behind_a_power_cut,
        _trust_the_page_cache_behind_a_failed_flush,
        _trust_the_page_cache_of_what_counts_on_disks_since,
        _answer_who_deletes_before_followers_have_deleted,
        _answer_times_with_the_end,
    )
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Take a rule away for a while."""
    with pytest.MonkeyPatch.context() as patch:
        MUTATIONS[name](patch)
        yield
