"""What a broker and its logs can be told, each option with its range.

Every value is checked where the object is made; a ConfigError names the option.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from folkmoot.protocol.batch_header import HEADER_BYTES
from folkmoot.protocol.errors import ConfigError

DAY = 86_400.0
FOREVER = 1000 * 365 * DAY
MAX_BROKER_ID = 2**31 - 1
MAX_SEGMENT_BYTES = 1024 * 1024 * 1024
MAX_BATCH_BYTES = 64 * 1024 * 1024
CLEANUP_POLICIES = ("delete", "compact", "compact,delete")

_LISTENER = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:@\[\]]+):(?P<port>[0-9]{1,5})")
_ANY_ADDRESS = ("0.0.0.0", "[::]")


def _check_whole(option: str, value: int, lowest: int, highest: int) -> None:
    if type(value) is not int or not lowest <= value <= highest:
        raise ConfigError(
            f"{option}={value!r} is not allowed: use a whole number from {lowest} to {highest}"
        )


def _check_seconds(option: str, value: float, lowest: float, highest: float) -> None:
    if type(value) not in (int, float) or not lowest <= value <= highest:
        raise ConfigError(
            f"{option}={value!r} is not allowed: use {lowest:g} to {highest:g} seconds"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig:
    """How a partition's log lies on disk, and how long: each of these can be a topic's own."""

    segment_bytes: int = 256 * 1024 * 1024
    """A new segment is begun when the next append would make the active one larger than this."""

    segment_age: float = 7 * DAY
    """A new segment is begun when the active one's first batch was appended so many seconds ago."""

    retention: float | None = 7 * DAY
    """Segments whose last batch was appended so many seconds ago are deleted; None: never."""

    retention_bytes: int | None = None
    """The oldest segments are deleted as long as what is left is so much at least; None: never."""

    cleanup_policy: str = "delete"
    """delete: old segments go, by `retention`; compact: the last record of each key stays, older ones
    go; compact,delete: both."""

    delete_retention: float = DAY
    """Compaction keeps a tombstone (a key without a value) so many seconds, for readers to see it."""

    min_cleanable_dirty_ratio: float = 0.5
    """A log is compacted once this part of its bytes has not been yet."""

    min_compaction_lag: float = 0.0
    """What was appended less than so many seconds ago is not compacted."""

    max_compaction_lag: float | None = None
    """What was appended so many seconds ago is compacted whatever the ratio; None: by ratio alone."""

    index_interval_bytes: int = 4096
    """At least so many bytes of log lie between two entries of the offset index."""

    max_batch_bytes: int = 8 * 1024 * 1024
    """The largest batch taken from a producer, as it is on the wire."""

    flush_records: int | None = None
    """After so many records the log is flushed before the last is acknowledged; None: not by count."""

    flush_interval: float | None = None
    """What was appended is on disk after about so many seconds; None: by checkpoints alone."""

    producer_id_expiry: float = DAY
    """A producer is forgotten of which nothing came for so many seconds; more than it tries again for."""

    max_producers: int = 10_000
    """So many producers are remembered per partition, those that wrote last; 250 to 800 bytes each."""

    def __post_init__(self) -> None:
        _check_whole("segment_bytes", self.segment_bytes, 512, MAX_SEGMENT_BYTES)
        _check_seconds("segment_age", self.segment_age, 0.001, FOREVER)
        if self.flush_records is not None:
            _check_whole("flush_records", self.flush_records, 1, 2**31 - 1)
        if self.flush_interval is not None:
            _check_seconds("flush_interval", self.flush_interval, 0.01, FOREVER)
        if self.retention is not None:
            _check_seconds("retention", self.retention, 0.001, FOREVER)
        if self.retention_bytes is not None:
            _check_whole("retention_bytes", self.retention_bytes, 0, 2**62)
        _check_seconds("producer_id_expiry", self.producer_id_expiry, 1.0, FOREVER)
        _check_whole("max_producers", self.max_producers, 1, 1_000_000)
        if self.cleanup_policy not in CLEANUP_POLICIES:
            raise ConfigError(
                f"cleanup_policy={self.cleanup_policy!r} is not allowed: use one of "
                f"{' | '.join(CLEANUP_POLICIES)}"
            )
        _check_seconds("delete_retention", self.delete_retention, 0.0, FOREVER)
        if type(self.min_cleanable_dirty_ratio) not in (int, float) or not (
            0 <= self.min_cleanable_dirty_ratio <= 1
        ):
            raise ConfigError(
                f"min_cleanable_dirty_ratio={self.min_cleanable_dirty_ratio!r} is not allowed: "
                "use a number from 0 to 1"
            )
        _check_seconds("min_compaction_lag", self.min_compaction_lag, 0.0, FOREVER)
        if self.max_compaction_lag is not None:
            _check_seconds("max_compaction_lag", self.max_compaction_lag, 0.001, FOREVER)
            if self.max_compaction_lag < self.min_compaction_lag:
                raise ConfigError(
                    f"max_compaction_lag={self.max_compaction_lag:g} is below min_compaction_lag="
                    f"{self.min_compaction_lag:g}: no record could be compacted"
                )
        _check_whole("index_interval_bytes", self.index_interval_bytes, 1, MAX_SEGMENT_BYTES)
        _check_whole("max_batch_bytes", self.max_batch_bytes, HEADER_BYTES, MAX_BATCH_BYTES)

    @property
    def compacts(self) -> bool:
        """Whether older records of a key go."""
        return self.cleanup_policy != "delete"

    @property
    def deletes(self) -> bool:
        """Whether old segments go by `retention` and `retention_bytes`."""
        return self.cleanup_policy != "compact"

    @property
    def longest_active(self) -> float:
        """The age at which a segment is no longer appended to: only then can it be compacted."""
        if self.compacts and self.max_compaction_lag is not None:
            return min(self.segment_age, self.max_compaction_lag)
        return self.segment_age


@dataclass(frozen=True, slots=True)
class Listener:
    """An address that a broker binds, and the one under which clients are to find it.

    They differ where a network lies between (containers). Port 0 binds a free port; an advertised
    port 0 is the port that was bound. IPv6 hosts are written in brackets.
    """

    name: str
    bind_host: str
    bind_port: int
    advertised_host: str
    advertised_port: int

    def __post_init__(self) -> None:
        if not _LISTENER.fullmatch(self.name):
            raise ConfigError(f"listener name {self.name!r} is not allowed: use a-z, 0-9, '-', '_'")
        for option, port in (("port", self.bind_port), ("advertised port", self.advertised_port)):
            _check_whole(f"listener {self.name}: {option}", port, 0, 65535)
        for host in (self.bind_host, self.advertised_host):
            if not _ADDRESS.fullmatch(f"{host}:0"):
                raise ConfigError(f"listener {self.name}: {host!r} is not a host")
        if self.advertised_host in _ANY_ADDRESS:
            raise ConfigError(
                f"listener {self.name}: {self.advertised_host} is no address that a client can "
                f"reach: add one, as in {self.name}={self.bind_host}:{self.bind_port}@HOST:PORT"
            )

    @classmethod
    def parse(cls, text: str) -> "Listener":
        """A listener written `NAME=BINDHOST:PORT[@ADVERTISEDHOST:PORT]`."""
        name, _, addresses = text.partition("=")
        bound_text, at, advertised_text = addresses.partition("@")
        bound = _ADDRESS.fullmatch(bound_text)
        advertised = _ADDRESS.fullmatch(advertised_text) if at else bound
        if bound is None or advertised is None:
            raise ConfigError(
                f"listener {text!r} is not understood: write NAME=HOST:PORT or NAME=HOST:PORT@HOST:PORT"
            )
        return cls(
            name, bound["host"], int(bound["port"]), advertised["host"], int(advertised["port"])
        )

    def advertised(self, bound_port: int) -> str:
        """The "host:port" for the broker's znode, once `bound_port` is known."""
        return f"{self.advertised_host}:{self.advertised_port or bound_port}"


DEFAULT_LISTENER = Listener("client", "127.0.0.1", 0, "127.0.0.1", 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig:
    """One broker process."""

    broker_id: int
    """Names the broker in its cluster, for good: it is written into the data directory."""

    data: Path
    """Directory of the logs, made if missing, used by one broker at a time."""

    zookeeper: str
    """The cluster's address: ZooKeeper's connect string with its chroot."""

    listeners: tuple[Listener, ...] = (DEFAULT_LISTENER,)
    """Where the broker answers; clients use the listener `client` unless told another."""

    session_timeout: float = 6.0
    """Seconds after which ZooKeeper takes a silent broker for dead."""

    rack: str = ""
    """Where the broker stands; members of a group may prefer what is led near them."""

    open_segments: int = 1_000
    """How many segments may have files open at a time, up to five each."""

    scrub_period: float = 7 * DAY
    """Every sealed segment is read, and compared with its checksums, once in so many seconds."""

    compaction_memory_bytes: int = 64 * 1024 * 1024
    """What compaction may take to remember keys, 96 bytes each; what has more takes several passes."""

    compaction_bytes_per_second: int = 64 * 1024 * 1024
    """The most that compaction reads and writes."""

    log: LogConfig = LogConfig()
    """For topics that have no settings of their own."""

    def __post_init__(self) -> None:
        _check_whole("broker_id", self.broker_id, 0, MAX_BROKER_ID)
        if not isinstance(self.data, Path):
            raise ConfigError(f"data={self.data!r} is not a path")
        for option in ("rack", "zookeeper"):
            text: object = getattr(self, option)
            if not isinstance(text, str):
                raise ConfigError(f"{option}={text!r} is not allowed: use a text")
        if not self.zookeeper.strip() or self.zookeeper.startswith("/"):
            raise ConfigError(
                f"zookeeper={self.zookeeper!r} is not allowed: use HOST:PORT[,HOST:PORT]...[/chroot]"
            )
        names = [listener.name for listener in self.listeners]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"listeners={names!r} is not allowed: name each once, at least one")
        _check_seconds("scrub_period", self.scrub_period, 1.0, FOREVER)
        _check_whole("open_segments", self.open_segments, 1, 1_000_000)
        _check_whole("compaction_memory_bytes", self.compaction_memory_bytes, 4096, 2**40)
        _check_whole("compaction_bytes_per_second", self.compaction_bytes_per_second, 1024, 2**40)
        _check_seconds("session_timeout", self.session_timeout, 0.5, 300.0)
