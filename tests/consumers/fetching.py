"""A fetcher on a workbench: its cluster answers what the test says, its clock is moved by hand."""

import random
from typing import Any, cast

from crc32c import crc32c

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.fetched_batch import WORTH_A_THREAD_BYTES
from folkmoot.consumers.fetch.fetcher import Fetcher, Reader
from folkmoot.network.cluster import Cluster
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.batch_header import HEADER_BYTES, LEADER_BYTES
from folkmoot.protocol.columns import BinaryColumn, Columns
from folkmoot.protocol.records import Record, TopicPartition
from tests.consumers.fake_cluster import FakeCluster

ZERO, ONE, TWO = (TopicPartition("t", number) for number in range(3))
ALL = 1_000_000


class Bench(Reader):
    """A fetcher, its cluster, its clock."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        self.cluster = FakeCluster()
        config = ConsumerConfig(zookeeper="nowhere:1", **options)
        self.found: list[tuple[TopicPartition, int, bool]] = []
        self.cut: list[tuple[TopicPartition, int, int | None]] = []
        self.is_to_be_committed = False
        self.fetcher = Fetcher(
            *(config, cast(Cluster, self.cluster), lambda: self.now, self),
        )

    def begins(self, partition: TopicPartition, offset: int, by_policy: bool) -> bool:
        self.found.append((partition, offset, by_policy))
        return self.is_to_be_committed

    def is_cut(self, partition: TopicPartition, end: int, parts_at: int | None) -> None:
        self.cut.append((partition, end, parts_at))

    def poll(self) -> None:
        """Ask for what is missing, take the replies that are there."""
        self.fetcher.poll(1.0)

    def reading(self, *partitions: TopicPartition, offset: int = 0) -> None:
        for partition in partitions or (ZERO,):
            self.fetcher.add(partition, offset)
        self.poll()

    def fetched(self, *chunks: bytes, end: int = 1_000) -> None:
        """The oldest fetch is answered with these chunks."""
        self.cluster.answer(self.cluster.next(), *chunks, end=end)
        self.poll()

    def take(self, limit: int) -> list[Record]:
        view = self.fetcher.take_view(limit)
        return [] if view is None else view.records()

    def values(self, limit: int = ALL) -> list[bytes | None]:
        return [record.value for record in self.take(limit)]

    def everything(self) -> list[Record]:
        taken = []
        while some := self.take(ALL):
            taken += some
        return taken


def spoiled_body(data: bytes) -> bytes:
    """A batch whose checksums are right and whose body is not."""
    return with_body(data, bytes([0xC1]) * (len(data) - HEADER_BYTES))


def with_body(data: bytes, body: bytes) -> bytes:
    """A batch with another body, under right checksums."""
    header = batch_header.check(data)
    fields = data[LEADER_BYTES + 4 : HEADER_BYTES]
    crc = crc32c(fields + body).to_bytes(4, "big")
    leader = batch_header.leader_part(header.base_offset, HEADER_BYTES + len(body), 3, -1)
    return leader + crc + fields + body


def large(base: int, letter: bytes) -> bytes:
    """200 records, in zstd, that are worth a thread."""
    data = in_zstd(base, letter, 200)
    assert len(data) > WORTH_A_THREAD_BYTES
    return data


def in_zstd(base: int, letter: bytes, count: int) -> bytes:
    """So many records, each of 200 bytes when compressed."""
    chance = random.Random(base)
    cells = [letter + chance.randbytes(200) + bytes(600) for _ in range(count)]
    data = record_batch.encode(Columns(count, None, BinaryColumn.of(cells), 0))
    return batch_header.leader_part(base, len(data), 3, -1) + data[batch_header.LEADER_BYTES :]
