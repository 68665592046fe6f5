"""The options of topics, with their ranges. A ConfigError names the wrong option."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from folkmoot.protocol.batch_header import HEADER_BYTES
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.options import (
    NONE,
    Bytes,
    Ratio,
    Seconds,
    build,
    check_options,
    parse,
    unknown_option,
)

DAY: Final = 86_400.0
FOREVER: Final = 1000 * 365 * DAY
MAX_SEGMENT_BYTES: Final = 1024 * 1024 * 1024
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
FSYNC: Final = "fsync"
PAGE_CACHE: Final = "page-cache"

Age = Annotated[Seconds, Meta(ge=0.001, le=FOREVER)]
Lag = Annotated[Seconds, Meta(ge=0, le=FOREVER)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig:
    """How a partition's log is stored, and how long: each option can be set for a topic."""

    segment_bytes: Annotated[Bytes, Meta(ge=512, le=MAX_SEGMENT_BYTES)] = 256 * 1024 * 1024
    """A new segment begins when the next append would make the active one larger than this."""

    segment_age: Age = 7 * DAY
    """A new segment begins this many seconds after the first append to the active one."""

    retention: Age | None = 7 * DAY
    """Segments are deleted this many seconds after their last append; None: never."""

    retention_bytes: Annotated[Bytes, Meta(ge=0, le=2**62)] | None = None
    """The oldest segments are deleted while at least this many bytes are left; None: never."""

    cleanup_policy: Literal["delete", "compact", "compact,delete"] = "delete"
    """delete: remove old segments, by `retention`; compact: keep the last record of each key;
    compact,delete: both."""

    delete_retention: Lag = DAY
    """Compaction keeps a tombstone (a key without a value) this many seconds, for readers to see it."""

    min_cleanable_dirty_ratio: Ratio = 0.5
    """A log is compacted when this part of its bytes has not been compacted yet."""

    min_compaction_lag: Lag = 0.0
    """Records are not compacted for this many seconds after their append."""

    max_compaction_lag: Age | None = None
    """Records are compacted after this many seconds whatever the ratio; None: by ratio alone."""

    index_interval_bytes: Annotated[Bytes, Meta(ge=1, le=MAX_SEGMENT_BYTES)] = 64 * 1024
    """Bytes of log between two entries of a segment's index, at least."""

    max_batch_bytes: Annotated[Bytes, Meta(ge=HEADER_BYTES, le=MAX_BATCH_BYTES)] = 8 * 1024 * 1024
    """The largest batch that is accepted from a producer, in bytes on the wire."""

    durability: Literal["fsync", "page-cache"] | None = None
    """fsync: records count when they are on disk, by group commit; page-cache: when they are written.
    None: fsync for topics with several replicas, page-cache for others."""

    min_in_sync: Annotated[int, Meta(ge=1, le=100)] | None = None
    """With fewer replicas in sync nothing is committed; None: 2 of three or more replicas, else 1."""

    flush_interval: Annotated[Seconds, Meta(ge=0.01, le=FOREVER)] | None = None
    """Seconds until records are on disk, about; None: by checkpoints alone."""

    producer_id_expiry: Annotated[Seconds, Meta(ge=1, le=FOREVER)] = DAY
    """A silent producer is forgotten after this many seconds; more than it retries for."""

    max_producers: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Producers remembered per partition, the last ones that wrote; 250 to 800 bytes each."""

    delete_delay: Lag = 60.0
    """The files of a deleted topic are removed after this many seconds."""

    value_schema: str | None = None
    """A subject: batches are refused unless their header names a live version of it; None: no check."""

    def __post_init__(self) -> None:
        check_options(self)
        subject = self.value_schema
        if subject is not None and not (0 < len(subject) <= 512 and subject.isprintable()):
            raise ConfigError(
                f"value_schema={subject[:80]!r} is not allowed: use a subject, 1 to 512 printable "
                "characters"
            )
        if self.max_compaction_lag is not None and (
            self.max_compaction_lag < self.min_compaction_lag
        ):
            raise ConfigError(
                f"max_compaction_lag={self.max_compaction_lag:g} is below min_compaction_lag="
                f"{self.min_compaction_lag:g}: no record could be compacted"
            )

    def least_in_sync(self, replicas: int) -> int:
        """The number of replicas that must be in sync for a commit."""
        wanted = (2 if replicas >= 3 else 1) if self.min_in_sync is None else self.min_in_sync
        return min(wanted, replicas)

    @property
    def compacts(self) -> bool:
        """True if older records of a key are removed."""
        return self.cleanup_policy != "delete"

    @property
    def deletes(self) -> bool:
        """True if old segments are removed by `retention` and `retention_bytes`."""
        return self.cleanup_policy != "compact"


def as_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """A topic's own options as texts, for its node. Raises ConfigError for an unknown or wrong one."""
    build(LogConfig, options)
    return {name: _text(value) for name, value in options.items()}


def build_changes(
    own: Mapping[str, str], changes: Mapping[str, Any], unset: Iterable[str]
) -> dict[str, str | None]:
    """Changes of a topic's own options as texts, None to remove one. Raises ConfigError."""
    texts: dict[str, str | None] = {**as_texts(changes)}
    known = {field.name for field in dataclasses.fields(LogConfig)} | set(own)
    for name in unset:
        if name in texts:
            raise ConfigError(f"{name} cannot be set and removed at once")
        if name not in known:
            raise unknown_option(name, known)
        texts[name] = None
    after = {**own, **texts}
    topic_config(LogConfig(), {name: text for name, text in after.items() if text is not None})
    return texts


def topic_config(defaults: LogConfig, options: Mapping[str, str]) -> LogConfig:
    """A broker's defaults, overridden by a topic's own options as texts. Raises ConfigError."""
    return dataclasses.replace(defaults, **parse(LogConfig, options))


def own_options(config: LogConfig) -> dict[str, str]:
    """The options of a broker that are not the built-in defaults, as texts."""
    plain = LogConfig()
    return {
        field.name: _text(getattr(config, field.name))
        for field in dataclasses.fields(LogConfig)
        if getattr(config, field.name) != getattr(plain, field.name)
    }


def effective(
    own: Mapping[str, str], brokers: Mapping[int, Mapping[str, str]], replicas: int
) -> list[tuple[str, str, str]]:
    """All options in force for a topic → option, value, source, in the order of `LogConfig`.

    The source is "topic", "brokers" (all of them), "broker 3" if they differ, or "default". `brokers` has the
    `own_options` of those with replicas; a partition has `replicas` of them.
    """
    rows: list[tuple[str, str, str]] = []
    unset = {
        "durability": FSYNC if replicas > 1 else PAGE_CACHE,
        "min_in_sync": str(LogConfig().least_in_sync(replicas)),
    }
    for field in dataclasses.fields(LogConfig):
        name, default = field.name, _text(field.default)
        values = {broker: options.get(name, default) for broker, options in brokers.items()}
        if name in own:
            found = [(own[name], "topic")]
        elif len(set(values.values())) > 1:
            found = [(value, f"broker {broker}") for broker, value in sorted(values.items())]
        else:
            value = next(iter(values.values()), default)
            found = [(value, "default" if value == default else "brokers")]
        rows += ((name, unset.get(name, v) if v == NONE else v, source) for v, source in found)
    return rows


def _text(value: Any) -> str:
    return NONE if value is None else str(value)
