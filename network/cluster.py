"""A client's view of the whole cluster: its brokers, the leaders of partitions, and how to ask them."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final, Protocol, Self

from folkmoot.network.broker_choice import SILENCE, BrokerChoice
from folkmoot.network.client import ClientConfig, Connections, Reply, SupportsFileno
from folkmoot.network.leaderless import Leaderless, Waiting
from folkmoot.network.metadata import Metadata
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    ConfigError,
    FolkmootError,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    RequestTimeout,
    ResponseTooLarge,
    RetriableError,
    StaleTopicId,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import (
    Api,
    InitProducerIdRequest,
    ReportDamageEntry,
    ReportDamageRequest,
)
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import TopicPartition

ID_PAUSE: Final = 0.1
LOOK_PAUSE: Final = 0.3
"""Seconds between two looks for brokers that owe answers."""

_log = thread_log(__name__)
_MISPLACED = {
    *(NotLeader.code, UnknownTopicOrPartition.code, StaleTopicId.code),
    NotEnoughReplicasAfterAppend.code,  # another one may lead
}


class ClusterConfig(ClientConfig, Protocol):
    """The options of every client that concern its way to brokers."""

    @property
    def listener(self) -> str: ...


class _ProducerId:
    """The producer id that a cluster's owner waits for: a broker is asked for it, one at a time."""

    def __init__(self) -> None:
        self.is_needed = False
        self.number: int | None = None
        self.asking = -1
        """The number of the request under way."""
        self.ask_at = -inf
        self.error: FolkmootError | None = None
        """Why no broker has given one yet."""

    def take(self) -> int | None:
        """The id, if it is there; else it is needed from now on."""
        number, self.number = self.number, None
        self.is_needed = number is None
        return number

    def due(self) -> float:
        """When to ask for one that is needed."""
        return self.ask_at if self.asking < 0 else inf

    def handle(self, reply: Reply) -> None:
        self.asking = -1
        if reply.error is None:
            self.number, self.is_needed, self.ask_at = reply.response.producer_id, False, -inf
        elif str(self.error) != str(reply.error):
            _log.warning("no producer id yet: %s", reply.error)
        self.error = reply.error


class Cluster:
    """`Connections` that know the leaders of partitions.

    Metadata is fetched inside `poll`, whenever it is due, from the broker that BrokerChoice names.
    `discover`, which reads ZooKeeper, or has fixed addresses, runs on the owner's thread, must not wait for
    long, and returns None while it looks. Producer ids are fetched in the same way. `poll` gives out all
    other replies. It also learns from them: an answer that names the leader counts at once, and a wrong
    leader or a lost broker has metadata asked for.

    A broker that owes an answer for SILENCE may have been replaced: its process stands still, the network is
    cut, or its followers have left it. Then another one is asked for metadata. Once that lacks the silent
    broker, or names another leader in a newer epoch, its connection ends, and all requests under way to it
    fail with BrokerUnreachable.

    Requests are never repeated here. One thread owns it, `close` included.
    """

    def __init__(
        self,
        connections: Connections,
        discover: Callable[[], Sequence[str] | None],
        *,
        listener: str = "client",
        clock: Callable[[], float] = time.monotonic,
        discovered: Sequence[str] | None = None,
    ) -> None:
        """`discovered`: the last answer of `discover`, if it was asked."""
        self._connections = connections
        self.send = connections.send
        self.has_in_flight = connections.has_in_flight
        self._listener = listener
        self._metadata = metadata = Metadata(listener)
        self.leader_address = metadata.leader_address
        self.nearest_address = metadata.nearest_address
        self.leader_epoch = metadata.leader_epoch
        self.is_replicated = metadata.is_replicated
        self.topic_id = metadata.topic_id
        self.partitions = metadata.partitions
        self.is_missing = metadata.is_missing
        self.topics_missing_for = metadata.topics_missing_for
        self.want = metadata.want
        self.forget = metadata.forget
        self.refresh = metadata.expire
        self._leaderless = Leaderless()
        self._choice = BrokerChoice(metadata, discover, discovered)
        self.addresses = self._choice.addresses
        self._clock = clock
        self._asking = -1
        """The number of the metadata request under way."""
        self._producer_id = _ProducerId()
        self._look_at = -inf
        self.version = 0
        """Grows with each change of known brokers or topics."""

    @classmethod
    def of(
        cls,
        config: ClusterConfig,
        discover: Callable[[], Sequence[str] | None],
        discovered: Sequence[str] | None = None,
        poller: Any = None,
    ) -> Self:
        """The cluster as a client with this configuration sees it; its owner waits with `poller`."""
        return cls(
            Connections.of(config, poller),
            discover,
            listener=config.listener,
            discovered=discovered,
        )

    @property
    def leaderless(self) -> Waiting:
        """The partitions without a leader, and the brokers that they wait for. From any thread."""
        return self._leaderless.waiting

    @property
    def metadata_error(self) -> FolkmootError | None:
        """Why there is no metadata, or None."""
        return self._choice.metadata_error

    @property
    def answers(self) -> int:
        """The number of answers with metadata."""
        return self._metadata.answers

    # -- requests -----------------------------------------------------------------------------------

    def producer_id(self) -> int | None:
        """A unique producer id. None while a broker is asked for it: poll, then call again."""
        return self._producer_id.take()

    @property
    def producer_id_error(self) -> FolkmootError | None:
        """Why no broker has given a producer id yet."""
        return self._producer_id.error

    def report_damage(
        self, address: str, partition: TopicPartition, topic_id: str, offset: int
    ) -> None:
        """Report to a broker that it sent no whole batch at `offset`.

        The report may be lost: the next reader reports again.
        """
        entry = ReportDamageEntry(partition.topic, topic_id, partition.partition, offset)
        with suppress(FolkmootError):
            self.send(address, Api.REPORT_DAMAGE, ReportDamageRequest([entry]))

    def poll(self, timeout: float, wake: SupportsFileno | None = None) -> list[Reply]:
        """Replies, as `Connections.poll`; ends early, with none, after replies to its own requests."""
        now = self._clock()
        try:
            if (self._connections.owed or self._choice.late) and self._look_at <= now:
                self._check_silence(now)
            if self._metadata.pace.due() <= now:
                self._ask(now)
            if self._producer_id.is_needed and self._producer_id.due() <= now:
                self._ask_for_id(now)
            wait = min(timeout, max(0.0, self._due() - now))
            replies = []
            for reply in self._connections.poll(wait, wake):
                if reply.correlation_id == self._asking:
                    self._handle_metadata(reply)
                    continue
                self._learn(reply)
                if reply.correlation_id == self._producer_id.asking:
                    self._producer_id.handle(reply)
                else:
                    replies.append(reply)
            return replies
        except BaseException:  # an illegible node, or Ctrl-C: an answer may be lost with it
            self._asking = self._producer_id.asking = -1
            self._metadata.fail(self._clock())
            raise

    def due(self) -> float:
        """The time of the next `poll` that acts without any message."""
        return min(self._due(), self._connections.next_event())

    def _due(self) -> float:
        id_at = self._producer_id.due() if self._producer_id.is_needed else inf
        return min(
            self._metadata.pace.due(), id_at, self._look_at if self._connections.owed else inf
        )

    def close(self, *, linger: float = 0.0) -> None:
        """As `Connections.close`."""
        self._connections.close(linger=linger)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- inside -------------------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        request = self._metadata.ask(now)
        address = self._choice.choose()
        if address is None:
            self._metadata.fail(now)
            return
        try:
            self._asking = self.send(address, Api.METADATA, request, timeout=self._choice.wait())
        except RetriableError as error:
            self._fail(address, error)

    def _check_silence(self, now: float) -> None:
        """Ask about brokers that owe answers, and end the connections to those that were replaced."""
        self._look_at = now + LOOK_PAUSE
        known, late = self.addresses(), self._connections.late(now - SILENCE)
        self._choice.late = late.keys()
        for address, requests in late.items():
            self._metadata.expire()
            if address not in known or any(
                self._metadata.has_moved(address, request) for request in requests
            ):
                self._connections.drop(address, "it did not answer, and was replaced")

    def _ask_for_id(self, now: float) -> None:
        """Ask any known broker; where there is none, `metadata_error` has the reason."""
        self._producer_id.ask_at = now + ID_PAUSE
        address = self._choice.reachable()
        if address is not None:
            request, wait = InitProducerIdRequest(), self._choice.wait()
            with suppress(RetriableError):
                self._producer_id.asking = self.send(
                    address, Api.INIT_PRODUCER_ID, request, timeout=wait
                )

    def _handle_metadata(self, reply: Reply) -> None:
        now, self._asking = self._clock(), -1
        if reply.error is not None:
            is_too_large = isinstance(reply.error, ResponseTooLarge)
            if not (is_too_large and self._metadata.ask_for_less(now)):
                self._fail(reply.address, reply.error)
            return
        self._choice.failed.pop(reply.address, None)
        names = {name for broker in reply.response.brokers for name in broker.listeners}
        if names and self._listener not in names:
            self._metadata.fail(now)
            have = ", ".join(sorted(names))
            self._choice.note(
                ConfigError(f"no broker has a listener {self._listener!r}: they have {have}")
            )
            return
        self._metadata.update(reply.response, now)
        self._leaderless.update(self._metadata.leaderless(), now)
        self._choice.succeeded()
        self._producer_id.ask_at = -inf
        if self.version != self._metadata.version:
            self.version, self._look_at = self._metadata.version, -inf

    def _fail(self, address: str, error: FolkmootError) -> None:
        self._metadata.fail(self._clock())
        self._choice.fail(address, error)

    def _learn(self, reply: Reply) -> None:
        if isinstance(reply.error, BrokerUnreachable | RequestTimeout):
            self._metadata.expire()
            if isinstance(reply.error, BrokerUnreachable):
                self._choice.avoid(reply.address)
            elif reply.correlation_id == self._producer_id.asking:
                self._choice.timed_out()
        elif reply.error is None and reply.response is not None:
            self._choice.failed.pop(reply.address, None)
            for result in getattr(reply.response, "results", ()):
                if result.error in _MISPLACED:
                    partition = TopicPartition(result.topic, result.partition)
                    leader, now = result.leader, self._clock()
                    self._metadata.refused(partition, reply.address, leader, now)
                    self.version = self._metadata.version
