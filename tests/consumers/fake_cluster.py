"""A cluster that exists only as requests waiting for the test to answer them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from folkmoot.network.client import Reply
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.errors import FolkmootError, Overloaded
from folkmoot.protocol.messages import (
    Api,
    BrokerInfo,
    FetchResponse,
    FetchResult,
    ListOffsetsResponse,
    ListOffsetsResult,
)
from folkmoot.protocol.records import TopicPartition

LEADER = "one:1"


class Asked(NamedTuple):
    """A request that was sent."""

    number: int
    address: str
    api: Api
    request: Any

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(entry.topic, entry.partition) for entry in self.request.entries]


class FakeCluster:
    """Takes requests, hands out the replies that the test has put in, and counts what it is told."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, str] = {}
        self.nearest: dict[TopicPartition, str] = {}
        self.leaderless: dict[TopicPartition, tuple[int, ...]] = {}
        self.ids: dict[str, str | None] = {}
        self.missing: set[str] = set()
        self.asked: list[Asked] = []
        self.timeouts: list[float] = []
        self.overloaded = False
        self.replicated = False
        self.reports: list[tuple[str, TopicPartition, str, int]] = []
        self.refreshed = 0
        self.forgotten: list[str] = []
        self.version = 1
        self._sent = 0
        self._replies: list[Reply] = []

    # -- what the fetcher calls ---------------------------------------------------------------------

    def leader_address(self, partition: TopicPartition) -> str | None:
        return self.leaders.get(partition, LEADER)

    def nearest_address(self, partition: TopicPartition, rack: str) -> str | None:
        return self.nearest.get(partition, self.leader_address(partition))

    def leader_epoch(self, partition: TopicPartition) -> int:
        return 3

    def topic_id(self, topic: str) -> str | None:
        return self.ids.get(topic, f"id of {topic}")

    def is_missing(self, topic: str) -> bool:
        return topic in self.missing

    def refresh(self) -> None:
        self.refreshed += 1

    def forget(self, topic: str) -> None:
        self.forgotten.append(topic)

    def is_replicated(self, partition: TopicPartition) -> bool:
        return self.replicated

    def report_damage(
        self, address: str, partition: TopicPartition, topic_id: str, offset: int
    ) -> None:
        self.reports.append((address, partition, topic_id, offset))

    def send(self, address: str, api: Api, request: Any, *, timeout: float) -> int:
        if self.overloaded:
            raise Overloaded("too much")
        self._sent += 1
        self.asked.append(Asked(self._sent, address, api, request))
        return self._sent

    def poll(self, timeout: float, wake: object = None) -> list[Reply]:
        self.timeouts.append(timeout)
        replies, self._replies = self._replies, []
        return replies

    # -- what the test calls ------------------------------------------------------------------------

    def next(self) -> Asked:
        """The oldest request that nobody has answered."""
        return self.asked.pop(0)

    def answer(
        self,
        asked: Asked,
        *chunks: bytes,
        error: int = 0,
        end: int = 1_000,
        leader: BrokerInfo | None = None,
        parts: tuple[int, int] = (-1, -1),
        log_start: int = 0,
    ) -> None:
        """Answer a fetch: one chunk for each partition (none: nothing new). `parts` with LogTruncated."""
        payloads = chunks or (b"",) * len(asked.partitions)
        results = [
            FetchResult(*partition, error, "as told", log_start, end, leader, *parts)
            for partition in asked.partitions
        ]
        self._reply(asked, FetchResponse(results), payloads)

    def answer_some(
        self, asked: Asked, chunks: dict[TopicPartition, bytes], *, has_session: bool = False
    ) -> None:
        """Answer a fetch, leaving out partitions at their ends, which may be kept for the next one."""
        results = [FetchResult(*partition, 0, "", 0, 1_000) for partition in chunks]
        self._reply(asked, FetchResponse(results, has_session), list(chunks.values()))

    def answer_each(self, asked: Asked, partitions: Sequence[TopicPartition]) -> None:
        """Answer a fetch with nothing new of these, whoever has asked for them."""
        results = [FetchResult(*partition, 0, "", 0, 1_000) for partition in partitions]
        self._reply(asked, FetchResponse(results), [b""] * len(results))

    def found(self, asked: Asked, *offsets: int, error: int = 0) -> None:
        """Answer a look-up."""
        results = [
            ListOffsetsResult(*partition, error, "as told", offset)
            for partition, offset in zip(asked.partitions, offsets, strict=True)
        ]
        self._reply(asked, ListOffsetsResponse(results), ())

    def fail(self, asked: Asked, error: FolkmootError) -> None:
        self._replies.append(Reply(asked.number, asked.address, asked.api, None, error, []))

    def _reply(self, asked: Asked, response: Any, payloads: Sequence[bytes]) -> None:
        views = [memoryview(payload) for payload in payloads]
        reply = Reply(asked.number, asked.address, asked.api, response, None, views)
        self._replies.append(reply)


def a_batch(base: int, *values: bytes, times: int | list[int] = 1_000, epoch: int = 3) -> bytes:
    """A batch as a broker stores it, its first record at offset `base`."""
    data = record_batch.encode(Columns(len(values), None, values, times), codec=0)
    return batch_header.leader_part(base, len(data), epoch, -1) + data[batch_header.LEADER_BYTES :]


def spoiled(data: bytes) -> bytes:
    """The same with its last bit flipped."""
    return data[:-1] + bytes([data[-1] ^ 1])
