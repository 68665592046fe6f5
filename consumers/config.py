"""Options of a consumer."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from msgspec import Meta

from folkmoot.consumers.assignors.assignor import Assignor
from folkmoot.consumers.assignors.next_plan import assignors_of
from folkmoot.coordination.discovery import ClientConfig
from folkmoot.protocol.addresses import check_cluster
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.names import check_name
from folkmoot.protocol.options import Bytes, Seconds
from folkmoot.protocol.records import K, V
from folkmoot.schemas.values.serialization import Deserializer

LEAST_PROCESSING_TIME: Final = 2.0
"""Seconds; a waiting consumer polls every second."""

OnDecodeError = Literal["raise", "skip", "raw"]
ON_DECODE_ERROR: Final = ("raise", "skip", "raw")

_Names = TypeVar("_Names")
_Duration = Annotated[Seconds, Meta(gt=0)]
_Size = Annotated[Bytes, Meta(gt=0)]


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig, Generic[K, V]):
    """Settings of a consumer; durations in seconds, sizes in bytes."""

    bootstrap: str | Sequence[str] = ()
    """Addresses of some brokers, "host:port,host:port" or a list, in place of `zookeeper`: for consumers
    without a group, which needs ZooKeeper."""
    group: str | None = None
    """The group to join; without one, partitions are assigned by hand and nothing is committed."""
    topics: Sequence[str] = ()
    """The topics whose partitions the group divides; members may want different ones."""
    pattern: str = ""
    """A regular expression: topics whose whole name matches are wanted, too, as soon as they exist."""
    instance_id: str | None = None
    """Makes a static member: a process that comes back with this id within `rejoin_timeout` gets the same
    partitions. It fences an older process with the same id."""
    rejoin_timeout: Annotated[Seconds, Meta(ge=0)] = 30.0
    """How long the partitions of an absent static member are kept."""
    assignors: Sequence[str | Assignor] = ("sticky",)
    """The assignors that this member supports, preferred first: "sticky", "range", "round-robin", or an
    object. The group leader's preference counts; the leader is the oldest member."""
    rack: str = ""
    """This consumer's rack: it reads from in-sync replicas in it, if there are any, otherwise from leaders.
    Sticky prefers partitions whose leader is in it."""
    client_id: str = "consumer"
    key_deserializer: Deserializer[K] | None = None
    """Makes the key of every record: a callable of one argument, or an object with
    `deserialize(topic, data)`. It is not called for None. None: keys are bytes. Batches and Arrow tables
    always have the bytes."""
    value_deserializer: Deserializer[V] | None = None
    """The same for values."""
    explicit_done: bool = False
    """A record counts as processed when `done` is called for it, from any thread and in any order, and not
    with the next one. Commits end before the first record that is not done."""
    auto_commit: bool = True
    """Commit processed offsets every `commit_interval`, with a partition's release, and on close."""
    commit_interval: _Duration = 5.0
    """Between two automatic commits."""
    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    """The start of partitions without a committed offset that existed when the group began; later ones are
    read from their start. If an offset is out of range, `"error"` raises, and the others read all that the
    log has."""
    guardian: bool = True
    """If the system allows it, a second process ends the session at once when this process dies. A killed
    member's partitions are owned again after 0.05 s, without it after 5 s (measured)."""
    revoke_timeout: _Duration = 2.0
    """How long this member may take to release a partition after the work under way: `on_revoke` and the
    last commit. After that it is released without them."""
    max_processing_time: Annotated[Seconds, Meta(ge=LEAST_PROCESSING_TIME)] | None = 300.0
    """How long a batch may take: the member keeps its partition for that time, even if the group moves
    it. If the
    application does not poll for this long, its partitions go to others until it does. None: it may stay
    away, and a moved partition is released after `revoke_timeout` in any case."""
    max_poll_records: Annotated[int, Meta(gt=0)] = 500
    """The most records of one `poll`."""
    fetch_max_wait: Annotated[Seconds, Meta(ge=0)] = 0.5
    """How long a broker may hold a fetch back for `fetch_min_bytes`."""
    fetch_min_bytes: Annotated[Bytes, Meta(ge=0)] = 1
    """A broker answers a fetch as soon as it has this much."""
    fetch_max_bytes: _Size = 8 * 1024 * 1024
    """The most bytes of one fetch, over all its partitions; one batch always comes whole."""
    partition_fetch_bytes: _Size = 1024 * 1024
    """The most bytes of one partition in one fetch."""
    buffer_bytes: _Size = 32 * 1024 * 1024
    """The size of the buffer, decompressed; no fetch is sent while it is full. One `poll` returns no more
    than this, apart from its last batch."""

    on_assign: Any = None
    """Called when partitions are ours, before they are fetched: it may `seek`, or return a start per
    partition."""
    on_revoke: Any = None
    """Called before partitions are released, while they are ours: it may `commit`. Also on close."""
    on_lost: Any = None
    """Called when partitions were lost without a release."""
    on_rebalance: Any = None
    """Called when the group has a new plan; for logs and displays."""
    on_decode_error: Any = "raise"
    """The way of a record that cannot be deserialized. "raise": its DeserializationError is raised, and the
    partition stops there until a `seek`. "skip": it is left out. "raw": it is handed out with the bytes. Or
    a callback with the error, called in the record's turn, which returns one of these; None means "skip"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, names in (("topics", self.topics), ("assignors", self.assignors)):
            if not isinstance(names_of(name, names), Collection):
                raise ConfigError(f"{name} must be a list of names, not {names!r}")
        for topic in self.topics:
            check_name("topic", topic)
        check_cluster(self.zookeeper, self.bootstrap)
        if self.group is not None and self.bootstrap:
            raise ConfigError(
                "a group's members find each other in ZooKeeper, and its offsets are there: give "
                f"zookeeper=… for group={self.group!r}, in place of bootstrap=…"
            )
        if self.group is not None:
            check_name("group", self.group)
        elif self.explicit_done:
            raise ConfigError("explicit_done needs a group to commit to: give group=…")
        if self.instance_id is not None:
            check_name("instance id", self.instance_id)
        if (self.topics or self.pattern) and self.group is None:
            raise ConfigError("topics are divided within a group: give group=…, or use assign()")
        check_pattern(self.pattern)
        assignors_of(self.assignors)


def names_of(name: str, names: _Names) -> _Names:
    """Return the names. Raises ConfigError for a string, whose letters would count as names."""
    if isinstance(names, str):
        raise ConfigError(f"{name} must be a list of names: {name}=[{names!r}]")
    return names


def check_pattern(pattern: str) -> None:
    """Raises ConfigError for an invalid regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"pattern {pattern!r} is no regular expression: {error}") from None
