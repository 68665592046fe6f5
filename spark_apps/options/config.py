"""The options of the sources and the sink, from what Spark hands over: texts under lower-cased names.

A field is an option under its own name, holds it as the user wrote it, and is declared here once:
the checks, `docs/configuration.md` and the error for a slip are made of that (protocol/options.py).
"""

# ruff: noqa: N815 The names of options are Spark's.

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import msgspec
from msgspec import Meta

from folkmoot.protocol import options as declared
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.names import check_name
from folkmoot.protocol.records import TopicPartition

FORMAT = "folkmoot"
NO_GROUP: Final = ""
LATEST_SCHEMA: Final = "latest"
FROM_COLUMNS: Final = "columns"

_Seconds = Annotated[declared.Seconds, Meta(gt=0)]
_Milliseconds = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
_Count = Annotated[int, Meta(ge=1)]
_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_KAFKA_OPTIONS: Final = {
    "kafka.bootstrap.servers": "zookeeper",
    "kafka.group.id": "group",
    "groupidprefix": "group",
    "kafka.client.id": "clientId",
    "kafka.group.instance.id": "instanceId",
    "kafka.partition.assignment.strategy": "assignor",
    "kafka.max.poll.interval.ms": "maxProcessingTime",
}
"""Options of Spark's Kafka source, lower-cased, and what stands in their place."""


_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark itself, which it passes on."""


class Bound(NamedTuple):
    """A side of what is read: an end of the log, unless offsets or times (ms) of partitions are given.

    `time` is that of all partitions. Offsets may be EARLIEST or LATEST. With `lenient` a time behind
    the last record is the log's end; else it is an error.
    """

    default_offset: int
    offsets: Mapping[TopicPartition, int] = {}
    time: int | None = None
    times: Mapping[TopicPartition, int] = {}
    lenient: bool = True


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """What all take. The same option of Spark's Kafka source or sink."""

    zookeeper: str = ""
    """Connect string of ZooKeeper with its chroot. Required."""
    clientId: str = "spark"
    """The name that brokers see, and the beginning of the member's name."""
    listener: str = "client"
    """Which of the brokers' listeners to connect to, in the driver and in executors."""

    def __post_init__(self) -> None:
        if not self.zookeeper:
            raise ConfigError(f"format {FORMAT} needs option 'zookeeper'")
        check_name("client id", self.clientId)
        declared.check_options(self)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From what Spark hands over; names in any case. Raises ConfigError, InvalidName."""
        known = {field.name.lower(): field.name for field in fields(cls)}
        texts: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() in _SPARK_OPTIONS:
                continue
            if name.lower() not in known:
                raise _unknown(name, list(known.values()))
            texts[known[name.lower()]] = value.strip()
        return cls(**declared.parse(cls, texts))


@dataclass(frozen=True, kw_only=True)
class SourceConfig(ClusterConfig):
    """Options of both sources."""

    subscribe: str = ""
    """Topics to read, separated by commas. Exactly one of `subscribe`, `subscribePattern` and `assign`."""
    subscribePattern: str = ""
    """A regular expression: topics whose whole name matches."""
    assign: str = ""
    """Partitions to read, as JSON: `{"flights": [0, 1]}`. A stream of these belongs to no group."""
    startingOffsets: str = "earliest"
    """`earliest`, `latest`, or offsets as JSON, `{"flights": {"0": 23, "1": -2}}`: -2 is the earliest, -1
    the latest; a partition that is not named begins at the earliest."""
    startingTimestamp: _Milliseconds | None = None
    """Begin at the first record of that time, in milliseconds since 1970, or later. Counts before the
    two that follow here and before `startingOffsets`."""
    startingOffsetsByTimestamp: str = ""
    """The same for each partition, as JSON: `{"flights": {"0": 1735689600000}}`."""
    startingOffsetsByTimestampStrategy: Literal["error", "latest"] = "error"
    """If a partition has no record at or after that time: end with an error, or begin at its end."""
    minPartitions: _Count | None = None
    """At least this many tasks, if there are as many records."""
    maxRecordsPerPartition: _Count | None = None
    """How many records one task reads at most."""
    includeHeaders: bool = False
    """Add the column `headers`."""
    failOnDataLoss: bool = True
    """End with an error if records are gone before they were read; else continue after them, with a
    warning."""
    valueFormat: Literal["binary", "avro"] = "binary"
    """The format of values: bytes, or Avro with the id of a schema, whose fields become the columns."""
    readerSchema: str = LATEST_SCHEMA
    """The schema whose fields are the columns: `latest` of the subject when the query is made, the id of
    one, `subject:version`, or a schema in JSON."""
    subject: str = ""
    """The subject of `latest`, in whose context ids are. Without it `<topic>-value`, where one topic is
    read."""
    onDecodeError: Literal["fail", "null", "deadLetter"] = "fail"
    """A value that cannot be read ends the query, or is a row of nulls, with columns `_error` and `_raw`,
    or its record goes to `deadLetterTopic` and is no row."""
    deadLetterTopic: str = ""
    """The topic for records that cannot be read, with headers for their origin and the error. It must
    exist."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("subscribe", "subscribePattern", "assign")
        used = [f"'{each}'" for each in names if getattr(self, each)]
        if not used:
            raise ConfigError(f"format {FORMAT} needs option 'subscribe', or one in its place")
        if len(used) > 1:
            raise ConfigError(f"options {' and '.join(used)} exclude each other: give one of them")
        if self.subscribe and not self.topics:
            raise ConfigError("option 'subscribe' names no topic")
        for topic in self.topics:
            check_name("topic", topic)
        if self.assign and not self.assigned:
            raise ConfigError("option 'assign' names no partition")
        self._check_partitions(self.starting(), "startingOffsets")
        self._check_values()

    def _check_values(self) -> None:
        """Raises ConfigError for options of typed columns that do not go together."""
        _check_typed(self, ("readerSchema", "subject", "onDecodeError", "deadLetterTopic"))
        is_named = not (self.readerSchema.isdecimal() or is_json(self.readerSchema))
        if self.valueFormat == "avro" and is_named:
            self.schema_version()
        if (self.onDecodeError == "deadLetter") != bool(self.deadLetterTopic):
            raise ConfigError(
                "onDecodeError=deadLetter and option 'deadLetterTopic' belong together: give both"
            )
        if not self.deadLetterTopic:
            return
        check_name("topic", self.deadLetterTopic)
        if self.subscribePattern:
            # Not at the top, as below.
            from folkmoot.consumers.config import check_pattern

            check_pattern(self.subscribePattern)
        if self.reads(self.deadLetterTopic):
            raise ConfigError(
                f"option 'deadLetterTopic' is {self.deadLetterTopic!r}, which is read itself: "
                "name another topic"
            )

    @property
    def subject_of_ids(self) -> str | None:
        """The subject whose context ids belong to, also those of values; None is the default one."""
        if self.subject or self.readerSchema.isdecimal() or is_json(self.readerSchema):
            return self.subject or None
        return self.schema_version()[0]

    def schema_version(self) -> tuple[str, str]:
        """Subject and version, where `readerSchema` names these. Raises ConfigError."""
        if self.readerSchema != LATEST_SCHEMA:
            return _subject_version("readerSchema", self.readerSchema, "latest")
        if not self.subject and (len(self.topics) != 1 or self.subscribePattern):
            raise ConfigError(
                "values of several topics need option 'subject', or 'readerSchema' with another word "
                "than latest"
            )
        return self.subject or f"{self.topics[0]}-value", LATEST_SCHEMA

    @property
    def topics(self) -> tuple[str, ...]:
        """Those that are named, in the order in which they are."""
        if self.assign:
            return tuple(dict.fromkeys(each.topic for each in self.assigned))
        names = (name.strip() for name in self.subscribe.split(","))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """The partitions of `assign`, in order. Raises ConfigError."""
        if not self.assign:
            return ()
        found = _json("assign", self.assign, dict[str, list[Annotated[int, Meta(ge=0)]]])
        return tuple(
            sorted({TopicPartition(t, each) for t, numbers in found.items() for each in numbers})
        )

    def reads(self, topic: str) -> bool:
        """Return whether it is one of the topics to read."""
        pattern = self.subscribePattern
        return topic in self.topics or (bool(pattern) and re.fullmatch(pattern, topic) is not None)

    def starting(self) -> Bound:
        """Where reading begins. Raises ConfigError."""
        lenient = self.startingOffsetsByTimestampStrategy == "latest"
        return _bound(self, "starting", EARLIEST)._replace(lenient=lenient)

    def _check_partitions(self, bound: Bound, name: str) -> None:
        """Raises ConfigError for partitions of topics, or partitions, that are not read."""
        if self.subscribePattern:
            return
        for each in (*bound.offsets, *bound.times):
            if each.topic not in self.topics or (self.assign and each not in self.assigned):
                raise ConfigError(f"option {name!r} names {each}, which is not read")


@dataclass(frozen=True, kw_only=True)
class StreamConfig(SourceConfig):
    """Options of a stream."""

    group: str = NO_GROUP
    """The group to be a member of. Required, unless there is `assign`."""
    maxOffsetsPerTrigger: _Count | None = None
    """How many records a micro-batch holds at most, divided in proportion to lag. Without it batches begin
    small and grow as far as `maxBytesPerTrigger` and `revokeTimeout` allow."""
    maxBytesPerTrigger: Annotated[declared.Bytes, Meta(ge=1)] = 256 * 1024 * 1024
    """How much a micro-batch holds at most, about: as the records lie in the log, compressed."""
    minOffsetsPerTrigger: _Count | None = None
    """Begin no micro-batch with fewer records than this, within `maxTriggerDelay`."""
    maxTriggerDelay: _Seconds = 900.0
    """After this time without a micro-batch a smaller one begins."""
    revokeTimeout: _Seconds = 30.0
    """How long other members wait for a partition of this one, after `maxProcessingTime` for a running
    micro-batch. Batches are made so small that they take a third of it."""
    maxProcessingTime: Annotated[declared.Seconds, Meta(ge=2.0)] = 300.0
    """If Spark does not ask for a micro-batch for this time, this member's partitions go to others until it
    does. Must be longer than the interval of the trigger."""
    instanceId: str = ""
    """Makes a static member: a query that comes back under it within `rejoinTimeout` finds its partitions."""
    rejoinTimeout: Annotated[declared.Seconds, Meta(ge=0)] = 30.0
    """How long a static member's partitions are kept for it when it is gone."""
    assignor: Literal["sticky", "range", "round-robin"] = "sticky"
    """How to divide partitions. The assignor of the group leader counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.assign and self.group:
            raise ConfigError("option 'assign' reads partitions without a group: leave 'group' out")
        if self.assign:
            return
        if not self.group:
            raise ConfigError(f"format {FORMAT} needs option 'group'")
        # Not at the top: Spark loads this module in processes that need no more of it.
        from folkmoot.consumers.config import ConsumerConfig

        ConsumerConfig[bytes, bytes](
            zookeeper=self.zookeeper,
            group=self.group,
            topics=self.topics,
            pattern=self.subscribePattern,
            instance_id=self.instanceId or None,
            assignors=(self.assignor,),
        )


@dataclass(frozen=True, kw_only=True)
class BatchConfig(SourceConfig):
    """Options of a batch read."""

    endingOffsets: str = "latest"
    """`latest`, or offsets as JSON, where -1 is the latest: the first records not to be read. A partition
    that is not named is read to its end."""
    endingTimestamp: _Milliseconds | None = None
    """End before the first record of that time, in milliseconds since 1970, or later. Counts before the
    two others."""
    endingOffsetsByTimestamp: str = ""
    """The same for each partition, as JSON."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ending = self.ending()
        if ending.default_offset == EARLIEST or EARLIEST in ending.offsets.values():
            raise ConfigError("option 'endingOffsets' is the earliest: then nothing would be read")
        self._check_partitions(ending, "endingOffsets")
        if self.subscribePattern:
            # Not at the top, as above.
            from folkmoot.consumers.config import check_pattern

            check_pattern(self.subscribePattern)

    def ending(self) -> Bound:
        """Where reading ends. Raises ConfigError."""
        return _bound(self, "ending", LATEST)


@dataclass(frozen=True, kw_only=True)
class SinkConfig(ClusterConfig):
    """Options of a write, streamed or not."""

    topic: str = ""
    """The topic of all rows. Without it a column `topic` is required; with it that column is ignored."""
    valueFormat: Literal["binary", "avro"] = "binary"
    """The format of values: the bytes of column `value`, or Avro with the id of a schema, made of all
    columns but `_key`, `_topic`, `_partition`, `_timestamp`, `_headers` and `_offset`."""
    subject: str = ""
    """The subject of the schema that values are written by. Without it `<topic>-value`, of option `topic`."""
    writerSchema: str = FROM_COLUMNS
    """That schema: `columns`, which is made of the columns and registered if it is compatible; `latest` of
    the subject; the id of one; `subject:version`; or a schema in JSON, registered likewise."""
    compression: str = "zstd"
    """Codec of the batches: `zstd`, `none`, `lz4`, `gzip` or `snappy`."""
    maxRecordBytes: Annotated[declared.Bytes, Meta(gt=0)] = 1024 * 1024
    """Key, value and headers of one row may be this large."""
    deliveryTimeout: _Seconds = 120.0
    """After this time an unacknowledged row has failed, and its task with it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topic:
            check_name("topic", self.topic)
        _check_typed(self, ("writerSchema", "subject"))
        if self.valueFormat == "avro" and self.is_registering:
            self.writer_subject()
        elif self.valueFormat == "avro" and not self.writerSchema.isdecimal():
            self.schema_version()
        # Not at the top: Spark loads this module in processes that need no more of it.
        from folkmoot.producers.config import ProducerConfig

        ProducerConfig[bytes, bytes](zookeeper=self.zookeeper, **self.producer())

    @property
    def is_registering(self) -> bool:
        """Return whether `writerSchema` may be new to the subject."""
        return self.writerSchema == FROM_COLUMNS or is_json(self.writerSchema)

    @property
    def follows_latest(self) -> bool:
        """Return whether `writerSchema` may mean another one tomorrow."""
        return self.writerSchema.rpartition(":")[2] == LATEST_SCHEMA

    def writer_subject(self) -> str:
        """Raises ConfigError where it is not known."""
        if not self.subject and not self.topic:
            raise ConfigError(
                "rows that say their topics themselves need option 'subject', or 'writerSchema' with an id "
                "or subject:version"
            )
        return self.subject or f"{self.topic}-value"

    @property
    def subject_of_ids(self) -> str | None:
        """The subject whose context an id belongs to; None is the default one."""
        return self.subject or None

    def schema_version(self) -> tuple[str, str]:
        """Subject and version, where `writerSchema` names these. Raises ConfigError."""
        if self.writerSchema == LATEST_SCHEMA:
            return self.writer_subject(), LATEST_SCHEMA
        return _subject_version("writerSchema", self.writerSchema, "columns, latest")

    def producer(self) -> dict[str, Any]:
        """The producer's options."""
        return {
            "client_id": self.clientId,
            "listener": self.listener,
            "compression": self.compression,
            "max_record_bytes": self.maxRecordBytes,
            "delivery_timeout": self.deliveryTimeout,
        }


def is_json(text: str) -> bool:
    """Return whether what says a schema is one itself."""
    return text[:1] in ("{", "[", '"')


def _subject_version(name: str, value: str, words: str) -> tuple[str, str]:
    subject, _, version = value.rpartition(":")
    if not subject or not (version.isdecimal() or version == LATEST_SCHEMA):
        raise ConfigError(
            f"option {name!r} is {value!r}: use {words}, an id, subject:version, or a schema in JSON"
        )
    return subject, version


def _check_typed(config: "SourceConfig | SinkConfig", names: tuple[str, ...]) -> None:
    """Raises ConfigError for options of typed columns where there are none."""
    defaults = {each.name: each.default for each in fields(config)}
    for name in names:
        if config.valueFormat != "avro" and getattr(config, name) != defaults[name]:
            raise ConfigError(f"option {name!r} means nothing without valueFormat=avro")


def _bound(config: SourceConfig, prefix: str, default_offset: int) -> Bound:
    """The three options of one side, of which the first that is given counts."""
    offsets, by_time = f"{prefix}Offsets", f"{prefix}OffsetsByTimestamp"
    time, times, text = (getattr(config, each) for each in (f"{prefix}Timestamp", by_time, offsets))
    if time is not None:
        return Bound(default_offset, time=time)
    if times:
        return Bound(default_offset, times=_by_partition(by_time, times, 0))
    if text.lower() in _ENDS:
        return Bound(_ENDS[text.lower()])
    if not text.startswith("{"):
        raise ConfigError(
            f"option {offsets!r} is {text!r}: use earliest, latest, or JSON as in "
            '{"flights": {"0": 23}}'
        )
    return Bound(default_offset, _by_partition(offsets, text, EARLIEST))


def _by_partition(name: str, text: str, least: int) -> dict[TopicPartition, int]:
    found = _json(name, text, dict[str, dict[str, Annotated[int, Meta(le=2**63 - 1)]]])
    numbers: dict[TopicPartition, int] = {}
    for topic, each in found.items():
        for partition, number in each.items():
            if not partition.isdecimal() or number < least:
                raise ConfigError(
                    f"option {name!r} says {partition}: {number} of topic {topic}: use a partition's "
                    f"number and at least {least}"
                )
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def _json(name: str, text: str, kind: Any) -> Any:
    try:
        return msgspec.convert(json.loads(text), kind)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise ConfigError(f"option {name!r} is no JSON of the kind it takes: {error}") from None


def _unknown(name: str, known: list[str]) -> ConfigError:
    ours = _KAFKA_OPTIONS.get(name.lower())
    if ours is None and not name.lower().startswith("kafka."):
        lowered = {each.lower(): each for each in known}
        near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
        hint = f"did you mean {lowered[near[0]]!r}?" if near else f"known are {', '.join(known)}"
        return ConfigError(f"option {name!r} is not known to format {FORMAT}: {hint}")
    advice = f"use {ours!r}" if ours else f"known are {', '.join(known)}"
    return ConfigError(
        f"option {name!r} is one of Kafka's, which format {FORMAT} does not read: {advice}"
    )
