from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ClusterMetadata, TopicPartition

class NewTopic:
    def __init__(
        self, topic: str, num_partitions: int = ..., replication_factor: int = ..., **options: Any
    ) -> None: ...

class OffsetSpec:
    @classmethod
    def latest(cls) -> OffsetSpec: ...

class ListOffsetsResultInfo:
    offset: int

class AdminClient:
    def __init__(self, config: Mapping[str, Any]) -> None: ...
    def create_topics(self, new_topics: Sequence[NewTopic]) -> dict[str, Future[None]]: ...
    def delete_topics(self, topics: Sequence[str]) -> dict[str, Future[None]]: ...
    def list_topics(self, topic: str = ..., timeout: float = ...) -> ClusterMetadata: ...
    def list_offsets(
        self, topic_partition_offsets: Mapping[TopicPartition, OffsetSpec]
    ) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]: ...
