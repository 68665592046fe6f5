"""The thread behind a producer: it moves records from the accumulator to the brokers."""

import logging
import time
from collections.abc import Iterable, Sequence
from math import inf
from random import Random
from typing import Final, Protocol

from folkmoot.coordination.wakeup import Wakeup
from folkmoot.network.client import Connections, Reply
from folkmoot.network.cluster import Cluster
from folkmoot.producers.accumulator import Accumulator
from folkmoot.producers.batches import Batch, describe
from folkmoot.producers.chunks import Chunk
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.metrics import ProducerCounters
from folkmoot.producers.sender import Sender, Shipment
from folkmoot.protocol.errors import ClosedError, FolkmootError, UnknownTopicOrPartition
from folkmoot.protocol.messages import Api

LONGEST_WAIT: Final = 10.0
TOPIC_PATIENCE: Final = 3.0
TOPIC_PAUSE: Final = 0.1
IDS_PAUSE: Final = 1.0
LINGER_AFTER_CLOSE: Final = 1.0
TICK: Final = 0.001
"""Waiting for sockets ends at whole milliseconds, the last one rounded up."""

_log = logging.getLogger(__name__)


class Finds(Protocol):
    """What the loop asks ZooKeeper; `discovery.Discovery` does."""

    def __call__(self) -> Sequence[str]: ...

    def producer_ids(self) -> Iterable[int]: ...


class Loop:
    """Drives a `Sender` with sockets and time. `run` is the thread; it owns everything made in it.

    Every round: take what is staged, decide, send, tell what is done, wait for replies or the wakeup.
    `stop` may be called from any thread: what is left then fails. If the thread dies of an error,
    the producer is closed with it, and what is left fails as well: nobody waits for ever.
    """

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: Accumulator,
        wakeup: Wakeup,
        discovery: Finds,
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._wakeup = wakeup
        self._discovery = discovery
        self._ids_at = -inf
        # What is due within the tick is sent now, not up to a tick late: linger is the longest wait.
        self._early = min(TICK, config.linger / 2)
        self.counters = ProducerCounters()
        self._stopping = False
        self._missing_since: dict[str, float] = {}
        self._version = 0
        self._taken: list[Chunk] = []

    def stop(self) -> None:
        self._stopping = True
        self._wakeup.wake()

    def run(self) -> None:
        connections = Connections(self._config.client_id)
        cluster = Cluster(connections, self._discovery, listener=self._config.listener)
        sender = Sender(self._config, cluster, Random(), self.counters)
        reason = ClosedError("the producer was closed before the record was acknowledged")
        try:
            self._wakeup.clear()
            while not self._stopping:
                self._round(cluster, sender)
                self._wakeup.clear()  # before anything that it rings for is looked at
        except BaseException as error:
            _log.exception("the producer's thread has failed")
            reason = ClosedError(f"the producer's thread has failed: {error!r}")
            reason.__cause__ = error
        finally:
            self._accumulator.close(reason)
            self._abandon(sender, reason)
            cluster.close(linger=LINGER_AFTER_CLOSE if self._config.wire_acks == 0 else 0.0)

    def _round(self, cluster: Cluster, sender: Sender) -> None:
        accumulator = self._accumulator
        now = time.monotonic()
        soon = now + self._early
        self._look_up(cluster, now)
        self._provide_ids(sender, now)
        hurry = accumulator.is_full or accumulator.flush_up_to > accumulator.settled
        self._taken = accumulator.take(soon, None if hurry else sender.wait)
        while self._taken:
            accumulator.correct(sender.add(self._taken[0]))
            del self._taken[0]
        sender.expire(soon)
        for shipment in sender.shipments(soon, hurry=hurry):
            self._ship(cluster, sender, shipment)
        self._tell(sender)
        # As of the moment for which shipments were decided: what has become ready since is due now.
        due = min(
            sender.next_event(soon, hurry=hurry) - self._early,
            accumulator.due(sender.wait) - self._early,
            now + (TOPIC_PAUSE if accumulator.wanted else LONGEST_WAIT),
            self._ids_at if sender.wants_ids else inf,
        )
        for reply in cluster.poll(max(0.0, due - time.monotonic()), self._wakeup):
            self._receive(sender, reply)
        self._tell(sender)

    def _look_up(self, cluster: Cluster, now: float) -> None:
        """Answer those who wait for a topic, as soon as it is known or known to be missing."""
        self._accumulator.trouble = cluster.trouble
        if cluster.version != self._version:
            self._version = cluster.version
            for topic, count in self._accumulator.counts.items():
                partitions = len(cluster.partitions(topic))
                if partitions not in (0, count):
                    self._accumulator.topic_known(topic, partitions)
        for topic in self._accumulator.topics_wanted():
            if partitions := len(cluster.partitions(topic)):
                self._missing_since.pop(topic, None)
                self._accumulator.topic_known(topic, partitions)
            elif cluster.is_missing(topic):
                # It may have been created a moment ago, and the broker asked may not know yet.
                since = self._missing_since.setdefault(topic, now)
                if now - since >= TOPIC_PATIENCE:
                    del self._missing_since[topic]
                    cluster.forget(topic)
                    error = UnknownTopicOrPartition(
                        f"topic {topic} does not exist: create it with `folkmoot topic create`"
                    )
                    self._accumulator.refuse(topic, error)

    def _provide_ids(self, sender: Sender, now: float) -> None:
        """Fetch producer ids when they are wanted; nothing is sent before they are here."""
        if not sender.wants_ids or now < self._ids_at:
            return
        try:
            sender.grant(self._discovery.producer_ids())
        except FolkmootError as error:
            self._ids_at = time.monotonic() + IDS_PAUSE
            if str(sender.trouble) != str(error):
                _log.warning("no producer id yet: %s", error)
            sender.trouble = error

    def _ship(self, cluster: Cluster, sender: Sender, shipment: Shipment) -> None:
        try:
            correlation_id = cluster.send(
                shipment.address,
                Api.PRODUCE,
                shipment.request,
                shipment.payloads,
                timeout=self._config.request_timeout,
                expect_reply=self._config.wire_acks != 0,
            )
        except FolkmootError as error:
            sender.undeliverable(shipment, error, time.monotonic())
        else:
            sender.sent(correlation_id, shipment)

    def _receive(self, sender: Sender, reply: Reply) -> None:
        if reply.error is None:
            sender.answered(reply.correlation_id, reply.response, time.monotonic())
        else:
            sender.lost(reply.correlation_id, reply.error, time.monotonic(), sent=reply.sent)

    def _tell(self, sender: Sender) -> None:
        """Make known what is done: room in the buffer, deliveries, callbacks."""
        done = sender.finished
        flushing = self._accumulator.flush_up_to > self._accumulator.settled
        if not done and not flushing:
            return
        self._accumulator.complete(done, sender.oldest_number())
        sender.finished = []
        failed = [batch for batch in done if batch.error is not None]
        if failed:
            _log.error("records failed: %s: %s", describe(failed), failed[0].error)
        for batch in done:
            _call_back(batch)

    def _abandon(self, sender: Sender, reason: FolkmootError) -> None:
        """Fail whatever is left, wherever it is. Batches first: memory may be what is wanting."""
        sender.give_up(reason)
        for chunk in (*self._taken, *self._accumulator.take_rest()):
            sender.refuse(chunk, reason)
        self._accumulator.request_flush()
        self._tell(sender)


def _call_back(batch: Batch) -> None:
    callbacks, batch.callbacks = batch.callbacks, []
    for call in callbacks:
        try:
            call()
        except Exception:
            _log.exception("an on_delivery callback has failed")
