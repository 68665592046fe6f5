"""One example of every request and response, and a builder of random MessagePack values."""

import random
from typing import Any
from uuid import UUID

from folkmoot.protocol.messages import (
    LATEST,
    Api,
    ApiVersions,
    BrokerInfo,
    DeleteRecordsEntry,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
    DescribeProducersEntry,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResult,
    FetchEntry,
    FetchRequest,
    FetchResponse,
    FetchResult,
    GetSchemaRequest,
    GetSchemaResponse,
    HelloRequest,
    HelloResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsEntry,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    LogSize,
    LogSizesRequest,
    LogSizesResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    ProduceEntry,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    ReplicaFetchEntry,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
    ReportDamageEntry,
    ReportDamageRequest,
    ReportDamageResponse,
    ReportDamageResult,
    TopicMetadata,
)

BROKER = BrokerInfo(1, {"client": "127.0.0.1:4000", "inside": "broker-1:4000"})

REQUESTS: dict[Api, list[Any]] = {
    Api.HELLO: [HelloRequest("folkmoot 0.1")],
    Api.METADATA: [MetadataRequest(None), MetadataRequest(["a", "b"]), MetadataRequest([])],
    Api.PRODUCE: [
        ProduceRequest(1, 30.0, [ProduceEntry("flights", "id-1", 0, 5)]),
        ProduceRequest(-1, 0.5, [ProduceEntry("a", "", n, -1) for n in range(3)]),
    ],
    Api.FETCH: [
        FetchRequest(0.5, 1, 2**20, [FetchEntry("a", "x", 0, 1, 2**40, 2**20, 1)]),
        FetchRequest(0.5, 1, 2**20, [], keep=True, after=2**40),
    ],
    Api.LIST_OFFSETS: [ListOffsetsRequest([ListOffsetsEntry("a", "x", 0, LATEST)])],
    Api.DELETE_RECORDS: [DeleteRecordsRequest([DeleteRecordsEntry("a", "x", 0, 1, 2**40)])],
    Api.REPORT_DAMAGE: [ReportDamageRequest([ReportDamageEntry("a", "x", 0, 2**40)])],
    Api.INIT_PRODUCER_ID: [InitProducerIdRequest()],
    Api.GET_SCHEMA: [
        GetSchemaRequest(1),
        GetSchemaRequest(2**31 - 1, ".c"),
        GetSchemaRequest(UUID(int=1)),
    ],
    Api.LOG_SIZES: [LogSizesRequest(None), LogSizesRequest(["a", "b"])],
    Api.REPLICA_FETCH: [
        ReplicaFetchRequest(
            2, "nonce", True, 0.5, 2**20, [ReplicaFetchEntry("a", "x", 0, 3, 2, 7, 0)]
        ),
        ReplicaFetchRequest(
            2, "nonce", False, 0.5, 2**20, [ReplicaFetchEntry("a", "x", 0, 3, -1, 0, 0, True)]
        ),
    ],
    Api.DESCRIBE_PRODUCERS: [
        DescribeProducersRequest(1.5, [DescribeProducersEntry("a", "x", 0, 1, 2**40)])
    ],
}

RESPONSES: dict[Api, list[Any]] = {
    Api.HELLO: [HelloResponse(1, 2**20, [ApiVersions(0, 0, 0), ApiVersions(1, 0, 3)])],
    Api.METADATA: [
        MetadataResponse(
            [BROKER, BrokerInfo(2, {}, "a")],
            [
                TopicMetadata("a", 0, "id", [PartitionMetadata(0, 1, 3, [1, 2], [1])]),
                TopicMetadata("b", 3, "", []),
            ],
        )
    ],
    Api.PRODUCE: [
        ProduceResponse([ProduceResult("a", 0, 0, "", 17, -1)]),
        ProduceResponse([ProduceResult("a", 0, 5, "ask broker 1", -1, -1, BROKER)]),
    ],
    Api.FETCH: [
        FetchResponse(
            [FetchResult("a", 0, 0, "", 0, 2**40), FetchResult("a", 1, 4, "gone", 5, 9, None, 1, 7)]
        ),
        FetchResponse([], has_session=True),
    ],
    Api.LIST_OFFSETS: [ListOffsetsResponse([ListOffsetsResult("a", 0, 0, "", 12)])],
    Api.DELETE_RECORDS: [DeleteRecordsResponse([DeleteRecordsResult("a", 0, 0, "", 12)])],
    Api.REPORT_DAMAGE: [ReportDamageResponse([ReportDamageResult("a", 0, 0, "")])],
    Api.INIT_PRODUCER_ID: [InitProducerIdResponse(2**40)],
    Api.GET_SCHEMA: [GetSchemaResponse('"long"', []), GetSchemaResponse('"a.B"', ["{}", "ü"])],
    Api.LOG_SIZES: [LogSizesResponse([LogSize("a", "x", 3, 2**40, 5, 17)])],
    Api.REPLICA_FETCH: [
        ReplicaFetchResponse([ReplicaFetchResult("a", 0, 0, "", 3, 7, -1, -1, 0, 5, True)]),
        ReplicaFetchResponse([ReplicaFetchResult("a", 0, 22, "not yet", 3, 7, 2, 4, 0, 5, False)]),
    ],
    Api.DESCRIBE_PRODUCERS: [
        DescribeProducersResponse([DescribeProducersResult("a", 0, 0, "", 3, 2**31 - 1, 2**40)])
    ],
}

_EDGES = [0, 1, -1, 2**7, 2**15, 2**31, -(2**31) - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
_SCALARS = [None, True, False, 0.0, -1.5, float("nan"), float("inf"), "", "a", "..", b"", b"\xff"]


def random_value(rng: random.Random, depth: int = 3) -> Any:
    """Anything that MessagePack can say."""
    kind = rng.randrange(10)
    if kind < 3:
        return rng.choice(_EDGES)
    if kind < 6 or depth == 0:
        return rng.choice(_SCALARS)
    size = rng.choice((0, 1, 2, 5, 20))
    if kind == 6:
        return {str(n): random_value(rng, depth - 1) for n in range(size)}
    if kind == 7:
        return rng.choice(("x", "é", "\n")) * rng.choice((1, 250, 5000))
    return [random_value(rng, depth - 1) for _ in range(size)]


def with_one_part_replaced(rng: random.Random, value: Any) -> Any:
    """The same nested lists with one element, at any depth, replaced, dropped or doubled."""
    if not isinstance(value, list) or not value or rng.random() < 0.15:
        return random_value(rng)
    place = rng.randrange(len(value))
    middle: list[Any]
    match rng.randrange(8):
        case 0:
            middle = []
        case 1:
            middle = [value[place]] * 2
        case _:
            middle = [with_one_part_replaced(rng, value[place])]
    return [*value[:place], *middle, *value[place + 1 :]]
