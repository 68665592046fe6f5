"""The thread behind a producer: it moves batches from the accumulator to the brokers."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any, Final

from folkmoot.coordination.wakeup import Wakeup
from folkmoot.network.client import Reply
from folkmoot.network.cluster import Cluster
from folkmoot.producers.accumulator import Accumulator
from folkmoot.producers.batch import Batch, describe
from folkmoot.producers.claims import Claims
from folkmoot.producers.columns import no_partition
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.idempotence import Sequences
from folkmoot.producers.metrics import ProducerCounters
from folkmoot.producers.partition_queue import MISPLACED
from folkmoot.producers.sender_state import SenderState, Shipment
from folkmoot.protocol.errors import (
    ClosedError,
    FolkmootError,
    ProducerFenced,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import Api
from folkmoot.protocol.process.thread_log import logging_aside, thread_log
from folkmoot.protocol.records import TopicPartition

LONGEST_WAIT: Final = 10.0
TOPIC_PATIENCE: Final = 3.0
"""Seconds in which brokers must repeat that there is no such topic."""
TOPIC_PAUSE: Final = 0.1
CALLBACK_WAIT: Final = 5.0
"""Seconds that a topic look-up may take within an `on_delivery`, while nothing is sent."""
TOPIC_IDLE: Final = 300.0
"""Seconds without a batch after which a topic's metadata is not asked for any more."""
LINGER_AFTER_CLOSE: Final = 1.0
TICK: Final = 0.001
"""Waiting for sockets ends at whole milliseconds, the last one rounded up."""

_log = thread_log(__name__)


class Sender:
    """Drives a `SenderState` with sockets and time. `run` is the thread; it owns everything made in it.

    A round takes what was opened and filled, decides, sends, reports what is done, and sleeps until there
    are replies, something is due, or a caller rings. After a round with events it sleeps no longer than
    a batch that is opened now may wait. So while records come, callers need not wake it: at a thousand
    records a second its own timer and the replies are enough.

    `stop` may be called from any thread: what is left then fails. If the thread dies of an error, the
    producer is closed with that error, and what is left fails as well.
    """

    def __init__(
        self,
        config: ProducerConfig[Any, Any],
        accumulator: Accumulator,
        wakeup: Wakeup,
        discover: Callable[[], Sequence[str] | None],
        sequences: Sequences | None = None,
        claims: Claims | None = None,
    ) -> None:
        self.counters = ProducerCounters()
        self.initial_addresses: Sequence[str] = ()
        """Addresses of brokers when the producer started."""
        self.call_back: Callable[[Batch], None] = run_callbacks
        self._config = config
        self._accumulator = accumulator
        self._wakeup = wakeup
        self._discover = discover
        self._sequences = sequences
        self._claims = claims
        self._fatal: FolkmootError | None = None  # why a producer with a transactional id must end
        # What is due within the tick is sent now, not up to a tick late: linger is the longest wait.
        self._early = min(TICK, config.linger / 2)
        self._stopping = False
        self._last_used: dict[str, float] = {}  # when a batch of each topic was opened last
        self._idle_at = inf  # when to look for topics that are idle
        self._version = -1
        self._leaders: set[str] = set()
        self._late_replies: list[Reply] = []  # that came while a callback was called
        self._busy = False  # there were events in this round

    def stop(self) -> None:
        self._stopping = True
        self._wakeup.wake()

    def run(self) -> None:
        with logging_aside():
            self._run()

    def _run(self) -> None:
        accumulator = self._accumulator
        accumulator.thread = threading.get_ident()
        cluster = Cluster.of(self._config, self._discover, self.initial_addresses)
        state = SenderState(self._config, cluster, Random(), self.counters, self._sequences)
        accumulator.look_up = partial(self._look_up_now, cluster, state)
        reason: FolkmootError = ClosedError(
            "the producer was closed before the record was acknowledged"
        )
        try:
            while not self._stopping and self._fatal is None:
                self._run_once(cluster, state)
            if self._fatal is not None:
                _log.error("%s", self._fatal)
                reason = self._fatal
        except BaseException as error:
            _log.exception("the producer's thread has failed")
            reason = ClosedError(f"the producer's thread has failed: {error!r}")
            reason.__cause__ = error
        finally:
            accumulator.close(reason)
            state.fail_all(accumulator.unsettled(), reason)
            self._report(state)
            for batch in accumulator.unsettled():  # done, but not in `finished` for want of memory
                self.call_back(batch)
            accumulator.settle(accumulator.unsettled())
            accumulator.purged(inf)
            cluster.close(linger=LINGER_AFTER_CLOSE if self._config.wire_acks == 0 else 0.0)

    def _run_once(self, cluster: Cluster, state: SenderState) -> None:
        accumulator = self._accumulator
        work = accumulator.take()
        now = time.monotonic()
        soon = now + self._early
        if self._claims is not None and self._claims.pop_changed():
            self._version = -1
        if accumulator.lookups or cluster.version != self._version:
            self._look_up(cluster, now)
        self._provide_id(cluster, state)
        self._forget_topics(cluster, state, now)
        self._busy = self._busy or bool(work.opened)
        for batch in work.opened:
            state.add(batch)
            self._last_used[batch.topic_partition.topic] = now
        for batch in work.filled:
            state.filled(batch)
        state.expire(soon)
        if work.purge:
            state.purge()
        for shipment in state.shipments(soon, hurry=work.hurry):
            self._send(cluster, state, shipment)
            self._busy = True
        self._provide_id(cluster, state)  # a topic that was created again wants another one
        self._report(state)
        if work.purge:
            accumulator.purged(work.purge)
        if self._claims is not None:
            self._fatal = self._fatal or self._claims.error
            if self._fatal is not None:
                return
        accumulator.patience = state.patience(len(self._leaders))
        longest = TOPIC_PAUSE if accumulator.lookups else LONGEST_WAIT
        until = min(state.next_event() - self._early, now + longest)
        if self._busy and accumulator.patience:
            until = min(until, now + accumulator.patience)
        until = accumulator.sleep(-inf if self._late_replies else until)
        late_replies, self._late_replies = self._late_replies, []
        replies = late_replies + cluster.poll(max(0.0, until - time.monotonic()), self._wakeup)
        self._busy = bool(replies)
        if accumulator.awake() or (not replies and time.monotonic() < until):
            self._wakeup.clear()
        for reply in replies:
            self._receive(state, reply)
        self._report(state)

    # -- topics -------------------------------------------------------------------------------------

    def _look_up(self, cluster: Cluster, now: float) -> None:
        """End look-ups of topics that are known by now, and give the appender the partitions that have
        leaders."""
        accumulator = self._accumulator
        accumulator.metadata_error = cluster.metadata_error
        if cluster.version != self._version:
            self._version = cluster.version
            self._leaders = set()
            for topic, count in list(accumulator.counts.items()):
                self._set_partitions(cluster, topic, len(cluster.partitions(topic)) or count)
        for topic, lookup in list(accumulator.lookups.items()):
            partitions = len(cluster.partitions(topic))
            if not partitions:
                continue
            self._last_used[topic] = now
            self._idle_at = min(self._idle_at, now + TOPIC_IDLE)
            self._set_partitions(cluster, topic, partitions)
            if partitions <= lookup.partition:  # it may have been added a moment ago
                lookup.started = lookup.started or (now, cluster.answers)
                began, answers = lookup.started
                # The first answer may be to an earlier request.
                if now - began >= lookup.patience and cluster.answers > answers + 1:
                    accumulator.refuse(topic, no_partition(topic, lookup.partition, partitions))
                else:
                    cluster.refresh()

    def _set_partitions(self, cluster: Cluster, topic: str, partitions: int) -> None:
        topic_id = cluster.topic_id(topic)
        if self._claims is not None and topic_id is not None:
            if not self._claims.has(topic, topic_id, partitions):
                return  # it is looked up again when it is claimed
        leaders = [
            cluster.leader_address(TopicPartition(topic, number)) for number in range(partitions)
        ]
        self._leaders.update(leader for leader in leaders if leader is not None)
        available = [number for number, leader in enumerate(leaders) if leader is not None]
        self._accumulator.set_topic_partitions(topic, partitions, available)

    def _look_up_now(self, cluster: Cluster, state: SenderState, topic: str, wait: float) -> float:
        """Find a topic for an `on_delivery` that sends, in this thread, so that a record that failed can be
        sent to another topic. Return how many seconds that took."""
        began = now = time.monotonic()
        until = began + min(wait, CALLBACK_WAIT)
        while topic in self._accumulator.lookups and now < until and not self._stopping:
            self._late_replies += cluster.poll(min(until - now, TOPIC_PAUSE))
            now = time.monotonic()
            self._look_up(cluster, now)
            self._forget_topics(cluster, state, now)
        return now - began

    def _forget_topics(self, cluster: Cluster, state: SenderState, now: float) -> None:
        """Fail the records of topics that do not exist, and forget topics that nothing is sent to.

        A topic may have been created a moment ago, and the broker asked may not know yet.
        """
        for topic in cluster.topics_missing_for(TOPIC_PATIENCE):
            error = UnknownTopicOrPartition(
                f"topic {topic} does not exist: create it with `folkmoot topic create {topic}`"
            )
            self._forget(cluster, topic)
            self._accumulator.refuse(topic, error)
            state.end_topic(topic, error)
        if now < self._idle_at:
            return
        waiting = state.topics()
        for topic in [topic for topic, at in self._last_used.items() if now - at >= TOPIC_IDLE]:
            if topic not in waiting:
                self._forget(cluster, topic)
        self._idle_at = now + TOPIC_IDLE / 4 if self._last_used else inf

    def _forget(self, cluster: Cluster, topic: str) -> None:
        self._accumulator.forget(topic)
        self._last_used.pop(topic, None)
        cluster.forget(topic)

    # -- requests -----------------------------------------------------------------------------------

    def _provide_id(self, cluster: Cluster, state: SenderState) -> None:
        """Get the producer id that is needed before more can be sent, if one is."""
        if not state.wants_ids:
            return
        number = cluster.producer_id()
        if number is not None:
            state.grant([number])
        else:
            state.producer_id_error = cluster.producer_id_error or cluster.metadata_error

    def _send(self, cluster: Cluster, state: SenderState, shipment: Shipment) -> None:
        try:
            correlation_id = cluster.send(
                shipment.address,
                Api.PRODUCE,
                shipment.request,
                shipment.payloads,
                timeout=self._config.request_timeout,
                expect_reply=shipment.request.acks != 0,
            )
        except FolkmootError as error:
            state.undeliverable(shipment, error, time.monotonic())
        else:
            state.sent(correlation_id, shipment)

    def _receive(self, state: SenderState, reply: Reply) -> None:
        if reply.error is None:
            state.answered(reply.correlation_id, reply.response, time.monotonic())
        else:
            state.lost(reply.correlation_id, reply.error, time.monotonic(), sent=reply.sent)

    def _report(self, state: SenderState) -> None:
        """Report what is done: room in the buffer, deliveries, callbacks, and then flushes."""
        done = state.finished
        if not done:
            return
        failed = [batch for batch in done if batch.error is not None]
        if failed and self._config.transactional_id is not None:
            self._end_if_misplaced(failed)
        to_call = [batch for batch in done if batch.callbacks]
        self._accumulator.complete(done)
        state.finished = []
        if failed:
            _log.error("records failed: %s: %s", describe(failed), failed[0].error)
        for batch in to_call:
            self.call_back(batch)
        if to_call:
            self._accumulator.settle(to_call)

    def _end_if_misplaced(self, failed: Sequence[Batch]) -> None:
        """End a producer with a transactional id if a batch was refused for its sequence."""
        error = next((batch.error for batch in failed if isinstance(batch.error, MISPLACED)), None)
        if error is None or self._fatal is not None:
            return
        why = "an earlier one has written since this one started, or a record has failed"
        if isinstance(error, ProducerFenced):
            why = "a later one has taken it over"
        name = self._config.transactional_id
        self._fatal = type(error)(f"transactional_id={name}: this producer is over: {why}")
        self._fatal.__cause__ = error
        self._accumulator.close(self._fatal)


def run_callbacks(batch: Batch) -> None:
    """Call the callbacks of a batch that is done."""
    callbacks, batch.callbacks = batch.callbacks, ()
    for call, delivery in callbacks:
        try:
            call(delivery)
        except Exception:
            _log.exception("an on_delivery callback has failed")
