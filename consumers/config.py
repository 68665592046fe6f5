"""What a consumer can be told."""

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
"""While it waits for records a consumer shows itself every second."""

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
    without a group, which ZooKeeper keeps."""
    group: str | None = None
    """The group to join; without one, partitions are assigned by hand and nothing is committed."""
    topics: Sequence[str] = ()
    """The topics whose partitions the group divides; members may want different ones."""
    pattern: str = ""
    """A regular expression: topics whose whole name matches are wanted, too, as soon as they exist."""
    instance_id: str | None = None
    """Makes a static member: who comes back under it within `rejoin_timeout` finds what it had. Of two
    processes with one id the younger counts."""
    rejoin_timeout: Annotated[Seconds, Meta(ge=0)] = 30.0
    """How long a static member's partitions are kept for it when it is gone."""
    assignors: Sequence[str | Assignor] = ("sticky",)
    """Ways of dividing that this member supports, preferred first: "sticky", "range", "round-robin", or
    an object. The one that the eldest member prefers counts."""
    rack: str = ""
    """Where this consumer stands: it reads from in-sync replicas of that rack, if there are any, else from
    leaders; and of equal choices, sticky prefers partitions whose leader stands there."""
    client_id: str = "consumer"
    key_deserializer: Deserializer[K] | None = None
    """Makes the key of every record: a callable of one argument, or an object with
    `deserialize(topic, data)`. It is not asked about None. None: keys are bytes. Batches and Arrow tables
    have the bytes in any case."""
    value_deserializer: Deserializer[V] | None = None
    """The same for values."""
    explicit_done: bool = False
    """A record counts as processed when `done` is called for it, from any thread and in any order, and not
    when the next one is asked for. What is committed ends in front of the first record that is not done."""
    auto_commit: bool = True
    """Commit what was processed every `commit_interval`, when a partition is given up, and on close."""
    commit_interval: _Duration = 5.0
    """Between two automatic commits."""
    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    """Where to start without a committed offset in partitions that were there when the group began;
    partitions that appeared later are read from their start. Where an offset is out of range, `"error"`
    raises, and the others read all that the log has."""
    guardian: bool = True
    """Where the system allows it, a process beside this one ends its session at once if this one dies. With
    it a killed member's partitions are owned again after 0.05 s, without it after 5 s (measured)."""
    revoke_timeout: _Duration = 2.0
    """How long this member may take to give a partition up, once it is done with what is under way:
    `on_revoke` and the last commit. It is given up without them after that."""
    max_processing_time: Annotated[Seconds, Meta(ge=LEAST_PROCESSING_TIME)] | None = 300.0
    """How long a batch may take, in which its partition is kept though the group wants it elsewhere. If the
    application does not ask for records for so long, its partitions go to others until it does; None: it
    may stay away, and what the group wants goes after `revoke_timeout` whatever is under way."""
    max_poll_records: Annotated[int, Meta(gt=0)] = 500
    """How many records one `poll` hands out at most."""
    fetch_max_wait: Annotated[Seconds, Meta(ge=0)] = 0.5
    """How long a broker may hold a fetch back for `fetch_min_bytes`."""
    fetch_min_bytes: Annotated[Bytes, Meta(ge=0)] = 1
    """A broker answers a fetch as soon as there is so much."""
    fetch_max_bytes: _Size = 8 * 1024 * 1024
    """Of one fetch, over all its partitions; one batch comes whole in any case."""
    partition_fetch_bytes: _Size = 1024 * 1024
    """Of one partition in one fetch."""
    buffer_bytes: _Size = 32 * 1024 * 1024
    """Fetched ahead, not yet handed out, decompressed; nothing more is fetched beyond it. One `poll` hands
    out no more than this but for its last batch."""

    on_assign: Any = None
    """Called when partitions are ours, before anything of them is fetched: it may `seek`, or return where
    to go on, per partition."""
    on_revoke: Any = None
    """Called while partitions are still ours and about to go: it may `commit`. On close, too."""
    on_lost: Any = None
    """Called when partitions are no longer ours and were not given up in order."""
    on_rebalance: Any = None
    """Called when the group has a new plan; for logs and displays."""
    on_decode_error: Any = "raise"
    """What becomes of a record that cannot be deserialized: its DeserializationError is raised and the
    partition stops there until a `seek` ("raise"), it is left out ("skip"), or it is handed out with the
    bytes in place of what should have been made of them ("raw"). Or what a callback says, which is called
    with the error when the record's turn has come; None means "skip"."""

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
            raise ConfigError("explicit_done says what is committed: give group=…")
        if self.instance_id is not None:
            check_name("instance id", self.instance_id)
        if (self.topics or self.pattern) and self.group is None:
            raise ConfigError("topics are divided within a group: give group=…, or use assign()")
        check_pattern(self.pattern)
        assignors_of(self.assignors)


def names_of(name: str, names: _Names) -> _Names:
    """The same. Raises ConfigError for one name alone, each letter of which would count as a name."""
    if isinstance(names, str):
        raise ConfigError(f"{name} must be a list of names: {name}=[{names!r}]")
    return names


def check_pattern(pattern: str) -> None:
    """Raise ConfigError for what is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"pattern {pattern!r} is no regular expression: {error}") from None
