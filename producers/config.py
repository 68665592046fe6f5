"""The options of a producer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Generic, Literal

from msgspec import Meta

from folkmoot.coordination.discovery import ClientConfig
from folkmoot.producers.partitioner import STRATEGIES, Choose, Strategy
from folkmoot.protocol.addresses import check_cluster
from folkmoot.protocol.batch_header import MAX_BODY_BYTES
from folkmoot.protocol.compression import Codec, check_level
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.names import check_name
from folkmoot.protocol.options import Bytes, Seconds
from folkmoot.protocol.records import K, V
from folkmoot.schemas.values.serialization import Serializer, serializer

# Bytes of the records of a batch, without the overhead: a batch may grow to twice its batch_bytes.
_ROOM_BYTES: Final = MAX_BODY_BYTES - 2 * 1024 * 1024
Positive = Annotated[Seconds, Meta(gt=0)]


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig, Generic[K, V]):
    """Settings of a producer; durations in seconds, sizes in bytes."""

    bootstrap: str | Sequence[str] = ()
    """Addresses of some brokers, "host:port,host:port" or a list, in place of `zookeeper`."""
    client_id: str = "producer"
    acks: Literal[0, 1, -1, "all"] = "all"
    """When a record counts as delivered: sent (0), with the leader (1), with all in-sync replicas."""
    idempotent: bool | None = None
    """Batches sent again are recognised, and written once. None: yes, unless acks=0."""
    transactional_id: str | None = None
    """A producer of this name fences an earlier one: brokers refuse what that one still sends."""
    compression: str = "zstd"
    """Codec of the batches: "zstd", "none" or "gzip", or of the extra `codecs` "lz4" or "snappy"."""
    compression_level: int | None = None
    """The codec's level, in its own numbers; None: the fastest that is worth it."""
    key_serializer: Serializer[K] | None = None
    """Makes bytes of keys: a callable of one argument, or an object with `serialize(topic, value)`. It
    is not called for None. None: keys are bytes already."""
    value_serializer: Serializer[V] | None = None
    """The same for values."""
    partitioner: Strategy | Choose = "key-hash"
    """Places records that name no partition: "key-hash", "sticky", "round-robin", or a function."""
    linger: Annotated[Seconds, Meta(ge=0)] = 0.005
    """How long a record may wait for others to share its batch."""
    batch_bytes: Annotated[Bytes, Meta(gt=0, le=_ROOM_BYTES // 2)] = 512 * 1024
    """A batch of this size, before compression, is sent without lingering; at most 15 MiB. It may grow
    to twice this size, and is sent in halves if, compressed, it exceeds the topic's `max_batch_bytes`."""
    max_record_bytes: Annotated[Bytes, Meta(gt=0, le=_ROOM_BYTES)] = 1024 * 1024
    """Key, value and headers of one record may be this large; at most 30 MiB."""
    buffer_bytes: Annotated[Bytes, Meta(gt=0)] = 64 * 1024 * 1024
    """Records not yet acknowledged; `send` blocks while there are more."""
    max_block: Annotated[Seconds, Meta(ge=0)] = 60.0
    """How long `send` may block, for room in the buffer or for a topic to be known."""
    max_in_flight: Annotated[int, Meta(gt=0, le=60)] = 5
    """Requests in flight to one broker. A partition has up to five batches in flight if the producer
    is idempotent, else one; its order is kept either way."""
    delivery_timeout: Positive = 120.0
    """After this long a record that is not acknowledged has failed."""
    retry_backoff: Annotated[Seconds, Meta(ge=0)] = 0.1
    """Pause before a batch is sent again; doubles with every attempt, up to one second."""
    switch_interval: Positive | None = None
    """How long a thread that computes may keep Python from the thread that sends: `sys.setswitchinterval`
    of the whole process, made shorter if it is longer (Python's own is 0.005). None leaves it alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cluster(self.zookeeper, self.bootstrap)
        if self.idempotent and self.acks == 0:
            raise ConfigError(
                "idempotent=True is not allowed with acks=0: without answers nothing is sent again"
            )
        if self.transactional_id is not None:
            check_name("transactional id", self.transactional_id)
            if self.bootstrap or not self.is_idempotent:
                raise ConfigError(
                    f"transactional_id={self.transactional_id!r} is kept in ZooKeeper, and needs "
                    "idempotence: give zookeeper=, and neither acks=0 nor idempotent=False"
                )
        if self.linger >= self.delivery_timeout:
            raise ConfigError(
                f"linger={self.linger:g} is not allowed: records would fail before they are sent; "
                f"use less than delivery_timeout={self.delivery_timeout:g}"
            )
        check_level(Codec.named(self.compression), self.compression_level)
        for field in ("key", "value"):
            serializer(field, getattr(self, f"{field}_serializer"))
        if not callable(self.partitioner) and self.partitioner not in STRATEGIES:
            raise ConfigError(
                f"partitioner={self.partitioner!r} is not known: use one of {', '.join(STRATEGIES)}, "
                "or a function of topic, keys and number of partitions"
            )

    @property
    def longest_wait(self) -> float:
        """By then every record is delivered or has failed."""
        return self.delivery_timeout + self.request_timeout

    @property
    def wire_acks(self) -> int:
        return -1 if self.acks == "all" else self.acks

    @property
    def is_idempotent(self) -> bool:
        return self.acks != 0 if self.idempotent is None else self.idempotent
