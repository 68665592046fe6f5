"""A client's view of the whole cluster: connections, who leads what, and how brokers are found."""

import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Self

from folkmoot.network.client import Connections, Reply, SupportsFileno
from folkmoot.network.metadata import MAX_AGE, Metadata
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    FolkmootError,
    NotLeader,
    RequestTimeout,
    ResponseTooLarge,
    RetriableError,
    StaleTopicId,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import Api, ReportDamageEntry, ReportDamageRequest
from folkmoot.protocol.records import TopicPartition

METADATA_TIMEOUT: Final = 5.0
AVOID_FOR: Final = 2.0

_log = logging.getLogger(__name__)
_Bytes = bytes | bytearray | memoryview
_MISPLACED = {NotLeader.code, UnknownTopicOrPartition.code, StaleTopicId.code}


class Cluster:
    """`Connections` that know where to send.

    Metadata is fetched inside `poll`, whenever the cache says that it is due, from any broker that
    was not unreachable within the last AVOID_FOR seconds, nor for metadata since there was any. When
    there is none, `discover` is called for addresses (clients: it reads ZooKeeper; Spark executors:
    fixed ones); it runs on the owner's thread and must end by itself. Replies to metadata requests
    are not given out; all others are, after what they say about leaders was taken in: an answer that
    names the leader counts at once, a wrong leader or a lost broker makes the cache ask again.

    Nothing is sent again here: whoever made a request decides. `version` grows with every change of
    the metadata. `trouble` is why there is none, or None. One thread owns it, `close` included.
    """

    def __init__(
        self,
        connections: Connections,
        discover: Callable[[], Sequence[str]],
        *,
        listener: str = "client",
        max_age: float = MAX_AGE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self.send = connections.send
        self.in_flight = connections.in_flight
        self.max_batch_bytes = connections.max_batch_bytes
        self._discover = discover
        self._clock = clock
        self._metadata = Metadata(listener, max_age)
        self._found: list[str] = []
        self._avoid: dict[str, float] = {}
        # Where metadata was not to be had since it last was: without this, addresses of brokers that
        # have all moved would be tried by turns for ever, each while the others are avoided.
        self._failed: set[str] = set()
        self._asking = -1
        self.version = 0
        self.trouble: FolkmootError | None = None

    # -- what is known ------------------------------------------------------------------------------

    def leader_address(self, partition: TopicPartition) -> str | None:
        """Where to send for this partition; None if that is not known (yet): poll, then look again."""
        return self._metadata.leader_address(partition)

    def leader_epoch(self, partition: TopicPartition) -> int:
        return self._metadata.leader_epoch(partition)

    def topic_id(self, topic: str) -> str | None:
        return self._metadata.topic_id(topic)

    def partitions(self, topic: str) -> range:
        """The topic's partitions; none as long as they are not known."""
        return self._metadata.partitions(topic)

    def is_missing(self, topic: str) -> bool:
        """Whether a broker has said, most recently, that the topic does not exist."""
        return self._metadata.is_missing(topic)

    def want(self, topic: str) -> None:
        self._metadata.want(topic)

    def forget(self, topic: str) -> None:
        self._metadata.forget(topic)

    def refresh(self) -> None:
        """Ask for metadata again within the next polls."""
        self._metadata.expire()

    # -- requests -----------------------------------------------------------------------------------

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
        """Replies, as `Connections.poll`; ends early, with nothing, when metadata was dealt with."""
        now = self._clock()
        if self._metadata.due() <= now:
            self._ask(now)
        wait = min(timeout, max(0.0, self._metadata.due() - now))
        replies = []
        for reply in self._connections.poll(wait, wake):
            if reply.correlation_id == self._asking:
                self._answered(reply)
            else:
                self._learn(reply)
                replies.append(reply)
        return replies

    def close(self, *, linger: float = 0.0) -> None:
        """As `Connections.close`."""
        self._connections.close(linger=linger)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- metadata -----------------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        request = self._metadata.ask(now)
        address = self._reachable(now) or self._discovered(now)
        if address is None:
            self._metadata.fail(now)
            return
        try:
            self._asking = self._connections.send(
                address, Api.METADATA, request, timeout=METADATA_TIMEOUT
            )
        except RetriableError as error:
            self._fail(address, error)

    def _reachable(self, now: float) -> str | None:
        """Some broker, not one that has just failed."""
        known = {*self._metadata.addresses(), *self._found} - self._failed
        usable = sorted(address for address in known if self._avoid.get(address, now) <= now)
        return random.choice(usable) if usable else None

    def _discovered(self, now: float) -> str | None:
        """Some broker that was found just now, even if it has just failed, if there is no other."""
        try:
            self._found = list(self._discover())
        except RetriableError as error:
            self._note(error)
            return None
        if not self._found:
            self._note(BrokerUnreachable("no broker is registered: is one running?"))
            return None
        self._failed.difference_update(self._found)
        usable = [address for address in self._found if self._avoid.get(address, now) <= now]
        return random.choice(usable or self._found)

    def _answered(self, reply: Reply) -> None:
        self._asking = -1
        if reply.error is not None:
            is_too_large = isinstance(reply.error, ResponseTooLarge)
            if not (is_too_large and self._metadata.ask_for_less(self._clock())):
                self._fail(reply.address, reply.error)
            return
        self._avoid.pop(reply.address, None)
        self._metadata.update(reply.response, self._clock())
        self._failed.clear()
        self.version += 1
        self.trouble = None

    def _fail(self, address: str, error: FolkmootError) -> None:
        now = self._clock()
        self._avoid[address] = now + AVOID_FOR
        self._failed.add(address)
        self._metadata.fail(now)
        self._note(error)

    def _note(self, error: FolkmootError) -> None:
        if self.trouble is None or str(self.trouble) != str(error):
            _log.warning("no metadata: %s", error)
        self.trouble = error

    def _learn(self, reply: Reply) -> None:
        if isinstance(reply.error, BrokerUnreachable):
            self._avoid[reply.address] = self._clock() + AVOID_FOR
            self._metadata.expire()
        elif isinstance(reply.error, RequestTimeout):
            self._metadata.expire()
        elif reply.error is None and reply.response is not None:
            self._avoid.pop(reply.address, None)
            for result in getattr(reply.response, "results", ()):
                if result.error in _MISPLACED:
                    self._metadata.expire()
                    if result.leader is not None:
                        self._metadata.hint(
                            TopicPartition(result.topic, result.partition), result.leader
                        )
                        self.version += 1
