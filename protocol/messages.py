"""Every request and response between a client and a broker, each declared once.

All are positional on the wire (arrays, not maps). A field is never added, removed or reordered within
a version. A new version is a new declaration in `APIS`; the former one moves to `older`.
Results carry an error code of `protocol.errors` (0 = none) and a sentence; one entry's failure does
not fail its neighbours.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Annotated, Any, Final, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Meta

from folkmoot.protocol.names import Name

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=3600)]
TopicId = Annotated[str, Meta(max_length=64)]

MAX_ENTRIES = 10_000
MAX_REPORTS = 100
MAX_FETCH_BYTES = 32 * 1024 * 1024
"""The limit of batches in the answer to a FETCH, but for the first batch, which comes whole."""
EARLIEST = -2
LATEST = -1


class Api(IntEnum):
    """Number of an api in a request's envelope."""

    HELLO = 0
    METADATA = 1
    PRODUCE = 2
    FETCH = 3
    LIST_OFFSETS = 4
    DELETE_RECORDS = 5
    REPORT_DAMAGE = 6
    INIT_PRODUCER_ID = 7
    REPLICA_FETCH = 8
    LOG_SIZES = 9
    GET_SCHEMA = 11
    DESCRIBE_PRODUCERS = 12


class _Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Base of all messages."""


class _Entry(_Message, frozen=True):
    """Base of a request's entry for one partition."""

    topic: Name
    topic_id: TopicId
    partition: Count


class _Result(_Message, frozen=True):
    """Base of the outcome of one entry. `leader`, if there is such a field, is set with NotLeader when the
    broker knows the leader."""

    topic: str
    partition: Count
    error: Count
    message: str


class BrokerInfo(_Message, frozen=True):
    """A broker, its advertised addresses (listener name → "host:port"), and its rack."""

    broker_id: Int32
    listeners: dict[str, str]
    rack: str = ""


class HelloRequest(_Message, frozen=True):
    """First request on a connection, for the versions of all apis."""

    software: Annotated[str, Meta(max_length=200)]


class ApiVersions(_Message, frozen=True):
    """The versions of one api that a broker takes, both inclusive."""

    api: Int32
    lowest: Int32
    highest: Int32


class HelloResponse(_Message, frozen=True):
    """The broker's identity and limits."""

    broker_id: Int32
    max_batch_bytes: Count
    apis: list[ApiVersions]


class MetadataRequest(_Message, frozen=True):
    """Asks for the named topics, or for all (None)."""

    topics: Annotated[list[Name], Meta(max_length=MAX_ENTRIES)] | None


class PartitionMetadata(_Message, frozen=True):
    """A partition's leader (-1: none now), the leader's epoch, the replicas, and those in sync."""

    partition: Count
    leader: Int32
    leader_epoch: Int32
    replicas: list[Int32]
    isr: list[Int32] = []


class TopicMetadata(_Message, frozen=True):
    """A topic as the answering broker knows it; `error` UnknownTopicOrPartition if it does not."""

    topic: str
    error: Count
    topic_id: TopicId
    partitions: list[PartitionMetadata]


class MetadataResponse(_Message, frozen=True):
    """Live brokers and topics."""

    brokers: list[BrokerInfo]
    topics: list[TopicMetadata]


class ProduceEntry(_Entry, frozen=True):
    """One batch for one partition; the batch itself is the payload frame of the same position."""

    leader_epoch: Int32


class ProduceRequest(_Message, frozen=True):
    """Append batches. `acks`: 0 no answer, 1 the leader has it, -1 all in-sync replicas have it.

    Several entries for one partition are appended in the order given.
    """

    acks: Annotated[int, Meta(ge=-1, le=1)]
    timeout: Seconds
    entries: Annotated[list[ProduceEntry], Meta(max_length=MAX_ENTRIES)]


class ProduceResult(_Result, frozen=True):
    """The place of an appended batch."""

    base_offset: Int64
    append_time: Int64
    leader: BrokerInfo | None = None


class ProduceResponse(_Message, frozen=True):
    """One result per entry, in order."""

    results: list[ProduceResult]


class FetchEntry(_Entry, frozen=True):
    """Read a partition from `offset` on; a batch that contains the offset comes whole.

    A follower that is in sync answers as well, in its leader's epoch. `last_epoch` is the leader epoch of
    the record before `offset`, -1 if that is not known: LogTruncated if the two are not on this log.
    """

    leader_epoch: Int32
    offset: Int64
    max_bytes: Count
    last_epoch: Int32 = -1


class FetchRequest(_Message, frozen=True):
    """Read batches; the broker waits up to `max_wait` for `min_bytes` in all.

    At least one whole batch of the first partition that has data is sent, even beyond `max_bytes`.

    With `keep`, the broker keeps entries that the answer leaves out. The next fetch on the same
    connection continues with them, without naming them, if its `after` is the correlation id of this one.
    It must come soon, and only once; else it is refused with UnknownFetch.
    """

    max_wait: Seconds
    min_bytes: Count
    max_bytes: Count
    entries: Annotated[list[FetchEntry], Meta(max_length=MAX_ENTRIES)]
    keep: bool = False
    after: Int64 | None = None


class FetchResult(_Result, frozen=True):
    """The data of one entry; the payload frame of the same position holds whole batches, as stored.

    `log_start` and `high_watermark` bound what can be read now (-1 with an error that hides them). With
    LogTruncated the records of `diverging_epoch`, or of the latest epoch before it, end at
    `diverging_end` on this log.
    """

    log_start: Int64
    high_watermark: Int64
    leader: BrokerInfo | None = None
    diverging_epoch: Int32 = -1
    diverging_end: Int64 = -1


class FetchResponse(_Message, frozen=True):
    """One result and one (perhaps empty) payload frame per entry with news, in any order.

    An entry that is left out is at the end of its log, or found no room. So a fetch of thousands of
    partitions, one of which has a new record, is answered by one result. `has_session`: the broker keeps the
    other entries for the next fetch.
    """

    results: list[FetchResult]
    has_session: bool = False


class ListOffsetsEntry(_Entry, frozen=True):
    """Asks for the batch of the first record at or after `timestamp` (ms), or EARLIEST or LATEST."""

    timestamp: Int64


class ListOffsetsRequest(_Message, frozen=True):
    """Look offsets up."""

    entries: Annotated[list[ListOffsetsEntry], Meta(max_length=MAX_ENTRIES)]


class ListOffsetsResult(_Result, frozen=True):
    """Outcome of one entry. For a time, `offset` begins the first batch with a record of that time
    or later, or is the log's end if there is none.
    """

    offset: Int64
    leader: BrokerInfo | None = None


class ListOffsetsResponse(_Message, frozen=True):
    """One result per entry, in order."""

    results: list[ListOffsetsResult]


class DeleteRecordsEntry(_Entry, frozen=True):
    """Give up all records before `offset`; LATEST is the log's end."""

    leader_epoch: Int32
    offset: Annotated[int, Meta(ge=LATEST, le=2**63 - 1)]


class DeleteRecordsRequest(_Message, frozen=True):
    """Delete the oldest records, for good."""

    entries: Annotated[list[DeleteRecordsEntry], Meta(max_length=MAX_ENTRIES)]


class DeleteRecordsResult(_Result, frozen=True):
    """Outcome of one entry; `log_start` is the first offset that can be read now."""

    log_start: Int64
    leader: BrokerInfo | None = None


class DeleteRecordsResponse(_Message, frozen=True):
    """One result per entry, in order."""

    results: list[DeleteRecordsResult]


class ReportDamageEntry(_Entry, frozen=True):
    """A reader got no whole batch where `offset` should be."""

    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class ReportDamageRequest(_Message, frozen=True):
    """Have batches checked. The broker trusts only its own check, and answers after it."""

    entries: Annotated[list[ReportDamageEntry], Meta(max_length=MAX_REPORTS)]


class ReportDamageResult(_Result, frozen=True):
    """Outcome of one entry: no error means that it was checked, or found before."""

    leader: BrokerInfo | None = None


class ReportDamageResponse(_Message, frozen=True):
    """One result per entry, in order."""

    results: list[ReportDamageResult]


class LogSizesRequest(_Message, frozen=True):
    """Asks for the sizes of these topics, or of all, on this broker."""

    topics: Annotated[list[Name], Meta(max_length=MAX_ENTRIES)] | None


class LogSize(_Message, frozen=True):
    """The bytes of a partition's segments on that broker, and the start and end of its log there."""

    topic: str
    topic_id: str
    partition: Int32
    size: Int64
    log_start: Int64
    log_end: Int64


class LogSizesResponse(_Message, frozen=True):
    """One for each log, whether the broker leads it or not."""

    logs: list[LogSize]


class InitProducerIdRequest(_Message, frozen=True):
    """Asks for a producer id."""


class InitProducerIdResponse(_Message, frozen=True):
    """An id that no other producer has had or will have."""

    producer_id: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class DescribeProducersEntry(_Entry, frozen=True):
    """Asks what a producer has written to a partition."""

    leader_epoch: Int32
    producer_id: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class DescribeProducersRequest(_Message, frozen=True):
    """Asks how far producers got. An entry is answered when what it reports is committed."""

    timeout: Seconds
    entries: Annotated[list[DescribeProducersEntry], Meta(max_length=MAX_ENTRIES)]


class DescribeProducersResult(_Result, frozen=True):
    """The epoch that has written last, and the next sequence; -1 and 0 if the partition does not
    know the producer. Later batches of it come at `log_end` or behind."""

    producer_epoch: Int32
    next_sequence: Int32
    log_end: Int64
    leader: BrokerInfo | None = None


class DescribeProducersResponse(_Message, frozen=True):
    """One result per entry, in order."""

    results: list[DescribeProducersResult]


class ReplicaFetchEntry(_Entry, frozen=True):
    """A follower's position: the leader epoch that it follows, the epoch of its last record (-1: it
    has none), and its log's end. All before that end counts as replicated, and all before `deleted_before` as
    deleted for good. With `is_damaged` the log continues behind that end, but is damaged there: the leader
    takes the follower out of the ISR, and answers then."""

    leader_epoch: Count
    last_epoch: Annotated[int, Meta(ge=-1, le=2**31 - 1)]
    log_end: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    deleted_before: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    is_damaged: bool = False


class ReplicaFetchRequest(_Message, frozen=True):
    """A follower asks a leader for what follows its own logs' ends; `nonce` is of its registration.

    Entries name partitions that have moved: the leader keeps the others from one fetch of a connection to
    the next, until it has answered them. With `begins` it forgets them. A fetch that waits is answered
    when the follower's next one comes, so that the leader learns at once what has moved.
    """

    replica: Int32
    nonce: Annotated[str, Meta(max_length=64)]
    begins: bool
    max_wait: Seconds
    max_bytes: Count
    entries: Annotated[list[ReplicaFetchEntry], Meta(max_length=MAX_ENTRIES)]


class ReplicaFetchResult(_Result, frozen=True):
    """The answer to the position (`leader_epoch`, `log_end`); the payload frame holds what follows it.

    `diverging_end` is -1 if the position is on the leader's log. Else the records of `diverging_epoch`, or
    of the latest epoch before it, end there on the leader's log. `has_committed`: all that was committed
    before this leader epoch lies before `log_end`.
    """

    leader_epoch: Int32
    log_end: Int64
    diverging_epoch: Int32
    diverging_end: Int64
    log_start: Int64
    high_watermark: Int64
    has_committed: bool


class ReplicaFetchResponse(_Message, frozen=True):
    """One result and one (perhaps empty) payload frame per entry with news."""

    results: list[ReplicaFetchResult]


class GetSchemaRequest(_Message, frozen=True):
    """Asks any broker for a registered schema, by its id in a context or by its GUID in any.

    It fails with SchemaNotFound, ZooKeeperUnreachable.
    """

    schema_id: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UUID
    context: Annotated[str, Meta(pattern=r"^\.", max_length=512)] = "."


class GetSchemaResponse(_Message, frozen=True):
    """The text as it was registered, and the texts of all schemas that it refers to, directly or not: each
    before those that name it."""

    schema: str
    references: list[str]


class ApiSpec(NamedTuple):
    """The request and the response of an api, in its highest version and in the older ones it still has.

    Other code knows only the highest version: `wire` converts from and to older ones, field by field and by
    name. So a field that one version lacks has a default in the other, and payload frames do not change.
    HELLO has one version for ever: it is sent before the versions are known.
    """

    request: type[Any]
    response: type[Any]
    highest: int = 0
    older: Mapping[int, tuple[type[Any], type[Any]]] = {}
    """Version → request and response, without a gap up to `highest`."""

    @property
    def versions(self) -> dict[int, tuple[type[Any], type[Any]]]:
        """Each version → its request and response."""
        return {**self.older, self.highest: (self.request, self.response)}

    @property
    def lowest(self) -> int:
        return min(self.versions)


APIS: dict[Api, ApiSpec] = {
    Api.HELLO: ApiSpec(HelloRequest, HelloResponse),
    Api.METADATA: ApiSpec(MetadataRequest, MetadataResponse),
    Api.PRODUCE: ApiSpec(ProduceRequest, ProduceResponse),
    Api.FETCH: ApiSpec(FetchRequest, FetchResponse),
    Api.LIST_OFFSETS: ApiSpec(ListOffsetsRequest, ListOffsetsResponse),
    Api.DELETE_RECORDS: ApiSpec(DeleteRecordsRequest, DeleteRecordsResponse),
    Api.REPORT_DAMAGE: ApiSpec(ReportDamageRequest, ReportDamageResponse),
    Api.INIT_PRODUCER_ID: ApiSpec(InitProducerIdRequest, InitProducerIdResponse),
    Api.REPLICA_FETCH: ApiSpec(ReplicaFetchRequest, ReplicaFetchResponse),
    Api.LOG_SIZES: ApiSpec(LogSizesRequest, LogSizesResponse),
    Api.GET_SCHEMA: ApiSpec(GetSchemaRequest, GetSchemaResponse),
    Api.DESCRIBE_PRODUCERS: ApiSpec(DescribeProducersRequest, DescribeProducersResponse),
}

API_OF: Final = {spec.request: api for api, spec in APIS.items()}
"""The api of a request, by its type in the highest version."""
