"""A producer's transactional id: taken over at the start, and each topic claimed before a record goes there.

A producer that takes an id over gets the next epoch of its producer id (coordination.producer_takeovers).
It asks the leaders of all claimed topics how far the earlier producer got, and its batches continue
behind that. If the earlier producer has written since, they are refused. The first one that is written
fences the earlier producer. A topic is noted in the id's node before anything is sent to it. So
the earlier producer cannot have written to a topic that is not noted there, and cannot claim another one.

A crash before the note has written nothing; a crash after it leaves a topic whose leaders are asked in
vain. After a lost reply the node is read again: it says which producer has the id.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event, Lock, Thread
from typing import Any, Final
from uuid import uuid4

from folkmoot.coordination import topics
from folkmoot.coordination.connector import connector
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.producer_takeovers import TRANSACTIONAL, claim_name, note_starts
from folkmoot.network.ask_leaders import ask_leaders
from folkmoot.network.cluster import Cluster
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.idempotence import ClaimedSequences, Identity
from folkmoot.protocol.errors import FolkmootError, RetriableError, StaleTopicId
from folkmoot.protocol.messages import Api, DescribeProducersEntry, DescribeProducersRequest
from folkmoot.protocol.records import TopicPartition

RETRY_PAUSE: Final = 0.2

_log = logging.getLogger(__name__)


class Claims:
    """The topics claimed by a transactional id: `claim_id` at the start, `has` from the sender's thread.

    A topic is claimed in a thread of its own, which rings when that is done or has failed for good.
    """

    def __init__(self, config: ProducerConfig[Any, Any], wake: Callable[[], None]) -> None:
        self.sequences = ClaimedSequences()
        self.error: FolkmootError | None = None
        """Why this producer must end."""
        self._config = config
        self._wake = wake
        self._name = f"{TRANSACTIONAL}{config.transactional_id}"
        self._attempt = uuid4().hex
        self._producer_id = self._epoch = -1
        self._lock = Lock()
        self._claimed: dict[str, tuple[str, int]] = {}  # id and number of partitions
        self._pending: set[str] = set()
        self._has_changed = False
        self._stopped = Event()

    def claim_id(self) -> None:
        """Take the id over from an earlier producer.

        Raises ZooKeeperUnreachable, ProducerFenced when all epochs are used up, and the error of a leader
        that does not say how far the id got.
        """
        with self._connect() as (discovery, cluster):
            claim = discovery.ask(claim_name(self._name, 0, self._attempt))
            self._producer_id, self._epoch = claim.producer_id, claim.epoch
            for claimed in claim.topics:
                topic, _, topic_id = claimed.rpartition("/")
                topic_info = discovery.ask(topics.read(topic))
                if topic_info is not None and topic_info.topic_id == topic_id:
                    self._resume(cluster, topic, topic_id, range(len(topic_info.partitions)))

    def has(self, topic: str, topic_id: str, partitions: int) -> bool:
        """Return whether the topic is claimed with this many partitions; if not, begin to claim it."""
        with self._lock:
            known_id, known = self._claimed.get(topic, (topic_id, 0))
            if known_id != topic_id:
                self.error = StaleTopicId(
                    f"topic {topic} was deleted and created again under transactional_id="
                    f"{self._config.transactional_id}: make another producer with it"
                )
            elif known < partitions and topic not in self._pending:
                self._pending.add(topic)
                claim = partial(self._claim, topic, topic_id, range(known, partitions))
                Thread(target=claim, name="folkmoot-claim", daemon=True).start()
            return known_id == topic_id and known >= partitions

    def pop_changed(self) -> bool:
        """Return whether a topic was claimed since the last call."""
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopped.set()

    def _claim(self, topic: str, topic_id: str, partitions: range) -> None:
        while not self._stopped.is_set():
            try:
                with self._connect() as (discovery, cluster):
                    discovery.ask(note_starts(self._name, self._attempt, f"{topic}/{topic_id}", []))
                    self._resume(cluster, topic, topic_id, partitions)
                break
            except RetriableError as error:
                _log.warning("cannot claim topic %s yet: %s", topic, error)
                self._stopped.wait(RETRY_PAUSE)
            except Exception as error:
                self.error = (
                    error if isinstance(error, FolkmootError) else FolkmootError(str(error))
                )
                break
        with self._lock:
            self._pending.discard(topic)
        self._has_changed = True
        if not self._stopped.is_set():
            self._wake()

    def _resume(self, cluster: Cluster, topic: str, topic_id: str, partitions: range) -> None:
        """Continue where the id got to in each partition. Raises the error of a leader that does not say."""

        def entry(number: int, epoch: int) -> DescribeProducersEntry:
            return DescribeProducersEntry(topic, topic_id, number, epoch, self._producer_id)

        requests = ask_leaders(
            cluster,
            Api.DESCRIBE_PRODUCERS,
            {TopicPartition(topic, number): partial(entry, number) for number in partitions},
            lambda entries, timeout: DescribeProducersRequest(timeout, entries),
            self._config.request_timeout,
        )
        for error in requests.failed.values():
            raise error
        identities = {
            partition: Identity(self._producer_id, self._epoch, result.next_sequence)
            for partition, result in requests.results.items()
        }
        with self._lock:
            self.sequences.resume_at(identities)
            self._claimed[topic] = topic_id, partitions.stop

    @contextmanager
    def _connect(self) -> Iterator[tuple[ZooKeeperDiscovery, Cluster]]:
        config = self._config
        discovery = ZooKeeperDiscovery(
            connector(config.zookeeper), config.session_timeout, config.listener
        )
        try:
            discovery.open()
            with Cluster.of(config, discovery) as cluster:
                yield discovery, cluster
        finally:
            discovery.close()
