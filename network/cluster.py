"""A client's view of the whole cluster: which brokers there are, who leads what, and how to ask them."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final, Protocol, Self

from folkmoot.network.broker_choice import LOOK_PAUSE, SILENCE, BrokerChoice
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

_log = thread_log(__name__)
_MISPLACED = {
    *(NotLeader.code, UnknownTopicOrPartition.code, StaleTopicId.code),
    NotEnoughReplicasAfterAppend.code,  # another one may lead
}


class ClusterConfig(ClientConfig, Protocol):
    """What the configuration of every client says about its way to brokers."""

    @property
    def listener(self) -> str: ...


class _ProducerId:
    """An id that a producer asks for: when, and what became of it."""

    def __init__(self) -> None:
        self.asking = -1
        """The number of the request that is under way."""
        self.at = -inf
        """When to ask again."""
        self.trouble: FolkmootError | None = None
        self._is_wanted = False
        self._number: int | None = None

    def due(self) -> float:
        return self.at if self._is_wanted and self.asking < 0 else inf

    def take(self) -> int | None:
        number, self._number = self._number, None
        self._is_wanted = number is None
        return number

    def answered(self, reply: Reply) -> None:
        self.asking = -1
        if reply.error is None:
            self._number, self._is_wanted, self.at = reply.response.producer_id, False, -inf
        elif str(self.trouble) != str(reply.error):
            _log.warning("no producer id yet: %s", reply.error)
        self.trouble = reply.error


class Cluster:
    """`Connections` that know where to send.

    Metadata is fetched inside `poll`, whenever it is due, from the broker that BrokerChoice names.
    `discover`, which reads ZooKeeper, or has fixed addresses, runs on the owner's thread, must not wait for
    long, and returns None while it looks. Producer ids are fetched in the same way. Replies to these
    requests are not given out; all others are, after what they say about leaders was taken in: an answer
    that names the leader counts at once, a wrong leader or a lost broker makes the cache ask again.

    A broker that owes an answer for SILENCE (its process stands still, the network is cut, or its followers
    have left it) may have been replaced: metadata is asked for, of another one if there is one. What is under
    way to it ends with BrokerUnreachable once metadata names it no more, or another leader in a newer epoch.

    Nothing is sent again here: who made a request decides. One thread owns it, `close` included.
    """

    def __init__(
        self,
        connections: Connections,
        discover: Callable[[], Sequence[str] | None],
        *,
        listener: str = "client",
        clock: Callable[[], float] = time.monotonic,
        found: Sequence[str] | None = None,
    ) -> None:
        """`found`: what `discover` has answered already, if it was asked."""
        self._connections = connections
        self.send = connections.send
        self.is_asked = connections.is_asked
        self._listener = listener
        self._metadata = metadata = Metadata(listener)
        self.leader_address = metadata.leader_address
        self.nearest_address = metadata.nearest_address
        self.leader_epoch = metadata.leader_epoch
        self.is_replicated = metadata.is_replicated
        self.topic_id = metadata.topic_id
        self.partitions = metadata.partitions
        self.is_missing = metadata.is_missing
        self.gone = metadata.gone
        self.want = metadata.want
        self.forget = metadata.forget
        self.refresh = metadata.expire
        self._leaderless = Leaderless()
        self._choice = BrokerChoice(metadata, discover, found)
        self._ids = _ProducerId()
        self._clock = clock
        self._asking = -1
        self._look_at = -inf
        self.version = 0
        """Grows whenever what is known of brokers or topics changes."""

    @classmethod
    def of(
        cls,
        config: ClusterConfig,
        discover: Callable[[], Sequence[str] | None],
        found: Sequence[str] | None = None,
        poller: Any = None,
    ) -> Self:
        """The cluster as a client with this configuration sees it. `poller`: what its owner waits with."""
        return cls(Connections.of(config, poller), discover, listener=config.listener, found=found)

    @property
    def leaderless(self) -> Waiting:
        """The partitions of wanted topics that nobody leads, and whom they wait for. From any thread."""
        return self._leaderless.waiting

    @property
    def trouble(self) -> FolkmootError | None:
        """Why there is no metadata, or None."""
        return self._choice.trouble

    @property
    def producer_id_trouble(self) -> FolkmootError | None:
        """Why no broker has given a producer id yet."""
        return self._ids.trouble

    def addresses(self) -> list[str]:
        """Where the brokers listen that are known."""
        return self._choice.addresses()

    @property
    def answers(self) -> int:
        """How often brokers have told of the topics that are wanted."""
        return self._metadata.answers

    # -- requests -----------------------------------------------------------------------------------

    def producer_id(self) -> int | None:
        """An id that no other producer has had or will have.

        None while a broker is asked for it: poll, then call again.
        """
        return self._ids.take()

    def report_damage(
        self, address: str, partition: TopicPartition, topic_id: str, offset: int
    ) -> None:
        """Tell the broker there that it sent no whole batch where `offset` should be.

        Nobody waits for the answer, or minds if the report is lost: the next reader will report.
        """
        entry = ReportDamageEntry(partition.topic, topic_id, partition.partition, offset)
        with suppress(FolkmootError):
            self.send(address, Api.REPORT_DAMAGE, ReportDamageRequest([entry]))

    def poll(self, timeout: float, wake: SupportsFileno | None = None) -> list[Reply]:
        """Replies, as `Connections.poll`; ends early, with nothing, when its own were dealt with."""
        try:
            return self._poll(timeout, wake)
        except BaseException:  # a node that is illegible, or Ctrl-C
            # An answer may be lost with it: none is waited for.
            self._asking = self._ids.asking = -1
            self._metadata.fail(self._clock())
            raise

    def _poll(self, timeout: float, wake: SupportsFileno | None) -> list[Reply]:
        now = self._clock()
        owed = self._connections.owed
        if (owed or self._choice.late) and self._look_at <= now:
            self._look_for_silence(now)
        if self._metadata.due() <= now:
            self._ask(now)
        if self._ids.due() <= now:
            self._ask_for_id(now)
        wait = min(timeout, max(0.0, self._due() - now))
        replies = []
        for reply in self._connections.poll(wait, wake):
            if reply.correlation_id == self._asking:
                self._answered(reply)
            elif reply.correlation_id == self._ids.asking:
                self._id_answered(reply)
            else:
                self._learn(reply)
                replies.append(reply)
        return replies

    def due(self) -> float:
        """When `poll` has something to do though nothing comes."""
        return min(self._due(), self._connections.next_event())

    def _due(self) -> float:
        look_at = self._look_at if self._connections.owed else inf
        return min(self._metadata.due(), self._ids.due(), look_at)

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
        address = self._choice.choose(now)
        if address is None:
            self._metadata.fail(now)
            return
        wait = self._choice.wait(address)
        try:
            self._asking = self.send(address, Api.METADATA, request, timeout=wait)
        except RetriableError as error:
            self._fail(address, error)

    def _look_for_silence(self, now: float) -> None:
        """Ask about brokers that owe answers, and give up what is under way to those that were replaced."""
        known = self.addresses()
        self._look_at = now + (LOOK_PAUSE if len(known) > 1 else SILENCE)
        self._choice.late = self._connections.late(now - SILENCE)
        if self._choice.late:
            self._metadata.expire()
        for address, requests in self._choice.late.items():
            error = BrokerUnreachable(f"broker {address} did not answer, and was replaced")
            for number, request in requests.items():
                if address not in known or self._metadata.has_moved(address, request):
                    self._connections.give_up(address, number, error)

    def _ask_for_id(self, now: float) -> None:
        """Ask any broker that was found; where there is none, `trouble` says why."""
        self._ids.at = now + ID_PAUSE
        address = self._choice.reachable(now)
        if address is not None:
            request, wait = InitProducerIdRequest(), self._choice.wait(address)
            with suppress(RetriableError):
                self._ids.asking = self.send(address, Api.INIT_PRODUCER_ID, request, timeout=wait)

    def _id_answered(self, reply: Reply) -> None:
        self._learn(reply)
        if isinstance(reply.error, RequestTimeout):
            self._choice.timed_out()
        self._ids.answered(reply)

    def _answered(self, reply: Reply) -> None:
        self._asking = -1
        if reply.error is not None:
            is_too_large = isinstance(reply.error, ResponseTooLarge)
            if not (is_too_large and self._metadata.ask_for_less(self._clock())):
                self._fail(reply.address, reply.error)
            return
        self._choice.answered(reply.address)
        names = {name for each in reply.response.brokers for name in each.listeners}
        if names and self._listener not in names:
            self._metadata.fail(self._clock())
            have = ", ".join(sorted(names))
            self._choice.note(
                ConfigError(f"no broker has a listener {self._listener!r}: they have {have}")
            )
            return
        self._metadata.update(reply.response, self._clock())
        self._leaderless.update(self._metadata.leaderless(), self._clock())
        self._choice.succeeded()
        self._ids.at = -inf
        if self.version != self._metadata.version:
            self.version, self._look_at = self._metadata.version, -inf

    def _fail(self, address: str, error: FolkmootError) -> None:
        now = self._clock()
        self._metadata.fail(now)
        self._choice.fail(address, error, now)

    def _learn(self, reply: Reply) -> None:
        if isinstance(reply.error, BrokerUnreachable):
            self._choice.avoid(reply.address, self._clock())
            self._metadata.expire()
        elif isinstance(reply.error, RequestTimeout):
            self._metadata.expire()
        elif reply.error is None and reply.response is not None:
            self._choice.answered(reply.address)
            for result in getattr(reply.response, "results", ()):
                if result.error in _MISPLACED:
                    where = TopicPartition(result.topic, result.partition)
                    self._metadata.doubt(where, reply.address, self._clock())
                    if result.leader is not None:
                        self._metadata.hint(where, result.leader, reply.address)
                        self.version = self._metadata.version
