"""Envelopes: every message there and back, and every wrong one answered by a typed error."""

import struct
import tracemalloc
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgpack
import msgspec
import pytest
from msgspec import inspect

from folkmoot.protocol import messages, wire
from folkmoot.protocol.errors import (
    ConfigError,
    FolkmootError,
    InvalidRequest,
    NotLeader,
    ResponseTooLarge,
    StorageError,
    UnknownApi,
    UnknownServerError,
    UnsupportedVersion,
)
from folkmoot.protocol.messages import (
    APIS,
    MAX_ENTRIES,
    Api,
    FetchResponse,
    FetchResult,
    ListOffsetsResponse,
    ListOffsetsResult,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from tests.protocol.messages import REQUESTS, RESPONSES

MB = 1024 * 1024
every_request = pytest.mark.parametrize(
    ("api", "request_"), [(api, message) for api in REQUESTS for message in REQUESTS[api]]
)
every_response = pytest.mark.parametrize(
    ("api", "response"), [(api, message) for api in RESPONSES for message in RESPONSES[api]]
)


def request(frame: bytes) -> Any:
    return wire.decode_body(wire.decode_envelope(frame))


def frame_of(api: int, body: Any, *, version: int = 0, correlation_id: Any = 1) -> bytes:
    packed: bytes = msgpack.packb([api, version, correlation_id, "client", body])
    return packed


# -- there and back -----------------------------------------------------------------------------------


def test_every_api_has_an_example() -> None:
    assert set(REQUESTS) == set(RESPONSES) == set(APIS) == set(Api)
    for api, spec in APIS.items():
        assert {type(message) for message in REQUESTS[api]} == {spec.request}
        assert {type(message) for message in RESPONSES[api]} == {spec.response}


def test_apis_keep_their_numbers() -> None:
    names = ["HELLO", "METADATA", "PRODUCE", "FETCH", "LIST_OFFSETS", "DELETE_RECORDS"]
    names += ["REPORT_DAMAGE", "INIT_PRODUCER_ID", "REPLICA_FETCH", "LOG_SIZES"]
    numbers = {name: number for number, name in enumerate(names)}
    numbers |= {"GET_SCHEMA": 11, "DESCRIBE_PRODUCERS": 12}
    assert {api.name: api.value for api in Api} == numbers


def test_versions_of_an_api_have_no_gap() -> None:
    for spec in APIS.values():
        assert sorted(spec.versions) == list(range(spec.lowest, spec.highest + 1))


def test_the_handshake_is_the_same_bytes_for_ever() -> None:
    """Each side sends or reads it before it knows the other one's versions."""
    assert APIS[Api.HELLO] == messages.ApiSpec(messages.HelloRequest, messages.HelloResponse)
    request = wire.encode_request(Api.HELLO, 7, "me", messages.HelloRequest("x"))
    assert request.hex(" ") == "95 00 00 07 a2 6d 65 91 a1 78"
    answer = messages.HelloResponse(1, 300, [messages.ApiVersions(2, 0, 1)])
    assert wire.encode_response(7, answer).hex(" ") == ("94 07 00 a0 93 01 cd 01 2c 91 93 02 00 01")


@every_request
def test_requests_come_back_as_they_were(api: Api, request_: Any) -> None:
    frame = wire.encode_request(api, 2**63 - 1, "me", request_)
    for sent in (frame, bytearray(frame), memoryview(frame)):
        envelope = wire.decode_envelope(sent)
        head = (envelope.api, envelope.version, envelope.correlation_id, envelope.client_id)
        assert head == (api, APIS[api].highest, 2**63 - 1, "me")
        assert wire.decode_body(envelope) == request_


@every_response
def test_responses_come_back_as_they_were(api: Api, response: Any) -> None:
    envelope = wire.decode_response(wire.encode_response(7, response))
    assert (envelope.correlation_id, envelope.error, envelope.message) == (7, 0, "")
    assert wire.response_body(api, envelope) == response


@every_request
def test_any_messagepack_library_reads_a_request(api: Api, request_: Any) -> None:
    frame = wire.encode_request(api, 5, "me", request_)
    *head, body = msgpack.unpackb(frame)
    assert head == [api, 0, 5, "me"]
    assert msgpack.packb([*head, body]) == frame
    assert body == msgspec.to_builtins(request_)


def test_an_error_comes_back_as_its_class() -> None:
    envelope = wire.decode_response(wire.encode_error(9, NotLeader("ask broker 2")))
    assert envelope.correlation_id == 9
    with pytest.raises(NotLeader, match="ask broker 2"):
        wire.response_body(Api.FETCH, envelope)


@pytest.mark.parametrize("error", [ConfigError("local"), FolkmootError("plain")], ids=repr)
def test_an_error_without_a_code_travels_as_unknown(error: FolkmootError) -> None:
    envelope = wire.decode_response(wire.encode_error(9, error))
    with pytest.raises(UnknownServerError, match=str(error)):
        wire.response_body(Api.FETCH, envelope)


@pytest.mark.parametrize("text", ["x" * 100_000, "\udcff in a file's name", "é" * 2000])
def test_an_error_with_any_text_can_be_answered(text: str) -> None:
    frame = wire.encode_error(1, NotLeader(text))
    assert len(frame) < 4500
    assert wire.decode_response(frame).error == NotLeader.code


# -- wrong requests -----------------------------------------------------------------------------------


def test_an_unknown_api_or_version_still_has_a_correlation_id_to_answer_to() -> None:
    for number in (250, -1, 2**64 - 1):
        envelope = wire.decode_envelope(frame_of(number, [], correlation_id=77))
        assert envelope.correlation_id == 77
        with pytest.raises(UnknownApi, match=str(number)):
            wire.decode_body(envelope)
    for version in (1, -1, 2**63):
        envelope = wire.decode_envelope(frame_of(2, [], version=version, correlation_id=78))
        assert envelope.correlation_id == 78
        with pytest.raises(UnsupportedVersion, match="only 0 to 0"):
            wire.decode_body(envelope)


def test_a_wrong_body_still_has_a_correlation_id_to_answer_to() -> None:
    envelope = wire.decode_envelope(frame_of(2, {"acks": "all"}, correlation_id=79))
    assert envelope.correlation_id == 79
    with pytest.raises(InvalidRequest, match="PRODUCE"):
        wire.decode_body(envelope)


ENTRY = ["t", "id", 0, 0]


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (0, []),
        (0, ["x" * 201]),
        (0, ["x", "y"]),
        (0, {"software": "x"}),
        (1, ["topics"]),
        (1, [["../etc"]]),
        (1, [["."]]),
        (1, [[b"bytes"]]),
        (1, [["t"] * (MAX_ENTRIES + 1)]),
        (2, [2, 1.0, []]),
        (2, [-2, 1.0, []]),
        (2, [True, 1.0, []]),
        (2, [1, -1.0, []]),
        (2, [1, float("nan"), []]),
        (2, [1, float("inf"), []]),
        (2, [1, 3600.1, []]),
        (2, [1, 1.0, [["t", "id", -1, 0]]]),
        (2, [1, 1.0, [["t", "id", 2**31, 0]]]),
        (2, [1, 1.0, [["t", "id", 0, 2**31]]]),
        (2, [1, 1.0, [["t", "i" * 65, 0, 0]]]),
        (2, [1, 1.0, [["t/u", "id", 0, 0]]]),
        (2, [1, 1.0, [[*ENTRY, 0]]]),
        (2, [1, 1.0, [ENTRY] * (MAX_ENTRIES + 1)]),
        (3, [1.0, 1, 1, [[*ENTRY, 2**63, 1]]]),
        (3, [1.0, 1, -1, []]),
        (3, [1.0, 1, 1, [[*ENTRY, 0, -1]]]),
        (4, [[["t", "id", 0, 0.5]]]),
        (4, [[["t", "id", 0, None]]]),
    ],
)
def test_a_body_outside_its_declaration_is_refused(api: int, body: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(frame_of(api, body))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "envelope",
    [
        None,
        [],
        {},
        [0, 0, 1, "c"],
        [0, 0, 1, "c", ["x"], None],
        ["0", 0, 1, "c", ["x"]],
        [0, None, 1, "c", ["x"]],
        [0, 0, -1, "c", ["x"]],
        [0, 0, 2**63, "c", ["x"]],
        [0, 0, 1, b"c", ["x"]],
        [0, 0, 1, "c" * 250, ["x"]],
        [0.0, 0, 1, "c", ["x"]],
    ],
)
def test_what_is_no_envelope_is_refused(envelope: Any) -> None:
    with pytest.raises(InvalidRequest):
        wire.decode_envelope(msgpack.packb(envelope))


def test_a_frame_cut_off_or_continued_anywhere_is_refused() -> None:
    for api, message in chain.from_iterable(((a, m) for m in ms) for a, ms in REQUESTS.items()):
        frame = wire.encode_request(api, 1, "me", message)
        for wrong in (*(frame[:end] for end in range(len(frame))), frame + b"\x00"):
            with pytest.raises(InvalidRequest):
                request(wrong)


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="utf-8"):
        wire.decode_envelope(frame_of(0, ["x"]).replace(b"client", b"cli\xffnt"))
    with pytest.raises(InvalidRequest, match="utf-8"):
        request(frame_of(0, ["name"]).replace(b"name", b"n\xffme"))
    with pytest.raises(InvalidRequest, match="utf-8"):
        wire.decode_response(msgpack.packb([1, 0, "name", None]).replace(b"name", b"n\xffme"))


@pytest.mark.parametrize(
    "nest", [b"\x91", b"\x81\xa1a", b"\x81\x91"], ids=["lists", "maps", "keys"]
)
@pytest.mark.parametrize("depth", [2_000, 1_000_000])
def test_deep_nesting_is_refused(nest: bytes, depth: int) -> None:
    head = frame_of(2, None)[:-1]
    for tail in (nest * depth + b"\xc0", nest * depth):
        with pytest.raises(InvalidRequest):
            request(head + tail)


# -- limits -------------------------------------------------------------------------------------------


def test_an_envelope_beyond_the_limit_is_refused_unread() -> None:
    with pytest.raises(InvalidRequest, match="exceeds"):
        wire.decode_envelope(bytes(wire.MAX_ENVELOPE_BYTES + 1))


@pytest.mark.parametrize(
    "junk", [b"\x80", b"\x90", b"\xc0", b"\xa0"], ids=["{}", "[]", "nil", "''"]
)
def test_junk_in_a_body_is_never_made_into_objects(junk: bytes) -> None:
    """As objects, 4 million empty maps would be 280 MB and hold the broker up for half a second."""
    count = 4_000_000
    many = struct.pack(">BI", 0xDD, count) + junk * count
    for api, start in ((1, b"\x91"), (2, b"\x93\x01\xcb" + bytes(8)), (4, b"\x91"), (0, b"\x91")):
        frame = frame_of(api, None)[:-1] + start + many
        tracemalloc.start()
        try:
            with pytest.raises(InvalidRequest):
                request(frame)
            assert tracemalloc.get_traced_memory()[1] < MB
        finally:
            tracemalloc.stop()


def test_the_largest_requests_fit_an_envelope() -> None:
    names = [f"{n:0249d}" for n in range(MAX_ENTRIES)]
    frame = wire.encode_request(Api.METADATA, 2**62, "c" * 249, MetadataRequest(names))
    assert request(frame) == MetadataRequest(names)
    assert len(frame) < wire.MAX_ENVELOPE_BYTES
    assert wire.MAX_FRAMES == 1 + MAX_ENTRIES


def test_an_answer_about_more_than_it_can_say_says_less_and_arrives() -> None:
    topic = "t" * 200
    results = [
        FetchResult(topic, number, 3, f"{topic}-{number} does not exist", -1, -1)
        for number in range(MAX_ENTRIES)
    ]
    frame = wire.encode_response(7, FetchResponse(results, has_session=False))
    assert len(frame) <= wire.MAX_ENVELOPE_BYTES
    found = wire.response_body(Api.FETCH, wire.decode_response(frame)).results
    assert [(each.partition, each.error) for each in found] == [(n, 3) for n in range(MAX_ENTRIES)]


@pytest.mark.parametrize(
    ("kind", "lowest", "highest"),
    [
        (messages.Int32, -(2**31), 2**31 - 1),
        (messages.Int64, -(2**63), 2**63 - 1),
        (messages.Count, 0, 2**31 - 1),
        (messages.Seconds, 0, 3600),
    ],
)
def test_numbers_have_the_range_of_their_kind(kind: Any, lowest: int, highest: int) -> None:
    for number in (lowest, highest):
        assert msgspec.convert(number, kind) == number
    for number in (lowest - 1, highest + 1):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(number, kind)


def test_an_answer_larger_than_an_envelope_is_answered_by_a_typed_error() -> None:
    partitions = [PartitionMetadata(number, 1, 0, [1]) for number in range(100)]
    topics = [TopicMetadata("t" * 200, 0, "id", partitions) for _ in range(10_000)]
    frame = wire.encode_response(7, MetadataResponse([], topics))
    envelope = wire.decode_response(frame)
    assert envelope.correlation_id == 7
    with pytest.raises(ResponseTooLarge, match="ask for less"):
        wire.response_body(Api.METADATA, envelope)


def test_what_an_answer_says_of_an_error_can_be_sent_whatever_a_file_is_called() -> None:
    error = StorageError("/d\udcff/t-1 cannot be read")
    result = ListOffsetsResult("t", 1, error.code, wire.message_of(error), -1)
    frame = wire.encode_response(7, ListOffsetsResponse([result]))
    (found,) = wire.response_body(Api.LIST_OFFSETS, wire.decode_response(frame)).results
    assert found.message == "/d?/t-1 cannot be read"


def unbounded(kind: inspect.Type, path: str) -> Iterator[str]:
    """Where a value of this type may have any number of items or characters."""
    sized = inspect.ListType | inspect.DictType | inspect.StrType | inspect.BytesType
    if isinstance(kind, sized) and kind.max_length is None:
        yield path
    if isinstance(kind, inspect.StructType):
        for field in kind.fields:
            yield from unbounded(field.type, f"{path}.{field.name}")
    elif isinstance(kind, inspect.ListType):
        yield from unbounded(kind.item_type, path)
    elif isinstance(kind, inspect.DictType):
        yield from unbounded(kind.key_type, path)
        yield from unbounded(kind.value_type, path)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from unbounded(each, path)


@pytest.mark.parametrize("api", APIS)
def test_a_request_takes_no_more_items_or_characters_than_it_declares(api: Api) -> None:
    request = APIS[api].request
    assert not list(unbounded(inspect.type_info(request), request.__name__))
