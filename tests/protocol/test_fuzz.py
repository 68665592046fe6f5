"""Random and mutated input: whatever arrives, the outcome is a message or a typed error.

FOLKMOOT_FUZZ_CASES sets how many cases each test tries, FOLKMOOT_SEED repeats a run. With the
default the decoder of requests sees 315,000 inputs, and that of batches 210,000.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import msgpack
import msgspec
import pytest

from folkmoot.protocol import wire
from folkmoot.protocol.batch_header import HEADER_BYTES, BatchHeader, check, read_header, split
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.errors import (
    BY_CODE,
    CorruptBatch,
    FolkmootError,
    InvalidRequest,
    UnknownApi,
    UnsupportedCodec,
    UnsupportedVersion,
)
from folkmoot.protocol.messages import APIS, Api
from folkmoot.protocol.record_batch import columns_of, offsets_of, records_of
from folkmoot.protocol.record_iterator import PureRecordIterator
from folkmoot.protocol.records import Record
from tests.protocol.forged import forged
from tests.protocol.golden import GOLDEN
from tests.protocol.messages import REQUESTS, RESPONSES, random_value, with_one_part_replaced
from tests.protocol.twins import plain_columns
from tests.seeds import new_seed

INVALID = (InvalidRequest,)
CORRUPT = (CorruptBatch,)
CASES = int(os.environ.get("FOLKMOOT_FUZZ_CASES", "70000"))


@pytest.fixture
def rng() -> random.Random:
    seed = new_seed()
    return random.Random(seed)


def mutated(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """`data` with up to three bytes or stretches changed, dropped, repeated or taken from others."""
    changed = bytearray(data)
    random = rng.random  # a third of what randrange takes
    for _ in range(1 + int(random() * 3)):
        start = int(random() * (len(changed) + 1))
        end = min(len(changed), start + (1, 1, 2, 8, 50)[int(random() * 5)])
        match int(random() * 7):
            case 0:
                changed[start:end] = b""
            case 1:
                changed[start:start] = changed[start:end] * (1, 2, 100)[int(random() * 3)]
            case 2:
                changed[start:end] = rng.randbytes(end - start)
            case 3:
                del changed[start:]
            case 4:
                other = others[int(random() * len(others))]
                taken = int(random() * len(other))
                changed[start:end] = other[taken : taken + 50]
            case _:
                if start < len(changed):
                    changed[start] ^= 1 << int(random() * 8)
    return bytes(changed)


def outcome(
    allowed: tuple[type[FolkmootError], ...], read: Callable[..., Any], *arguments: Any
) -> Any:
    """What `read` returns, or None after an error that is allowed; others fail the test."""
    try:
        return read(*arguments)
    except allowed:
        return None


def read_request(frame: bytes) -> None:
    envelope = outcome(INVALID, wire.decode_envelope, frame)
    if envelope is None:
        return
    body = outcome((*INVALID, UnknownApi, UnsupportedVersion), wire.decode_body, envelope)
    if body is not None:
        again = wire.encode_request(Api(envelope.api), 0, "", body)
        assert wire.decode_body(wire.decode_envelope(again)) == body


def read_response(frame: bytes, api: Api) -> None:
    envelope = outcome(INVALID, wire.decode_response, frame)
    if envelope is None:
        return
    body = outcome(tuple(BY_CODE.values()), wire.response_body, api, envelope)
    if body is not None:
        again = wire.decode_response(wire.encode_response(0, body))
        assert wire.response_body(api, again) == body


def test_random_bytes_are_no_requests(rng: random.Random) -> None:
    for _ in range(CASES):
        data = rng.randbytes(rng.choice((0, 1, 5, 30, 300)))
        read_request(data)
        # A right start, so that more than the first byte is looked at.
        read_request(b"\x95" + bytes([rng.randrange(6)]) + b"\x00\x01\xa1c" + data)
        read_response(b"\x94\x01\x00\xa0" + data, rng.choice(list(Api)))


def test_mutated_requests_are_read_or_refused(rng: random.Random) -> None:
    frames = [
        wire.encode_request(api, 12345, "client", message)
        for api, messages in REQUESTS.items()
        for message in messages
    ]
    for _ in range(CASES // 2):
        read_request(mutated(rng, rng.choice(frames), frames))
        envelope = msgpack.unpackb(rng.choice(frames))
        read_request(msgpack.packb(with_one_part_replaced(rng, envelope)))


def test_mutated_responses_are_read_or_refused(rng: random.Random) -> None:
    frames = [
        (api, wire.encode_response(12345, message))
        for api, messages in RESPONSES.items()
        for message in messages
    ]
    plain = [frame for _, frame in frames]
    for _ in range(CASES // 2):
        api, frame = rng.choice(frames)
        read_response(mutated(rng, frame, plain), api)
        read_response(msgpack.packb(with_one_part_replaced(rng, msgpack.unpackb(frame))), api)


def test_random_values_never_pass_for_a_message_that_they_are_not(rng: random.Random) -> None:
    for _ in range(CASES // 4):
        value = random_value(rng)
        for api, spec in APIS.items():
            frame = msgpack.packb([api, 0, 1, "", value])
            envelope = wire.decode_envelope(frame)
            body = outcome(INVALID, wire.decode_body, envelope)
            if body is not None:
                assert msgspec.msgpack.encode(body) == msgspec.msgpack.encode(
                    msgspec.convert(value, spec.request)
                )


def test_mutated_batches_are_corrupt(rng: random.Random) -> None:
    batches = [golden.path.read_bytes() for golden in GOLDEN]
    for _ in range(2 * CASES):
        batch = rng.choice(batches)
        damaged = mutated(rng, batch, batches)
        if damaged[: len(batch)] == batch:
            continue
        header = outcome(CORRUPT, check, damaged)
        assert header is None or damaged[: header.length] in batches
        outcome(CORRUPT, lambda chunk: list(split(chunk)), damaged)


def by_the_twin(header: BatchHeader, columns: Columns) -> list[Record]:
    """The records of a batch, made in plain Python."""
    with plain_columns():
        offsets = offsets_of(header, columns)
        return list(PureRecordIterator("t", 0, offsets, columns, header.uses_append_time))


def test_mutated_bodies_under_a_right_checksum_are_read_or_refused(rng: random.Random) -> None:
    """What a broken or hostile producer could write: the checksum is right, the rest is not."""
    batches = [golden.path.read_bytes() for golden in GOLDEN]
    bodies = [batch[HEADER_BYTES:] for batch in batches]
    read = 0
    for _ in range(CASES):
        place = rng.randrange(len(batches))
        true = read_header(batches[place])
        body: Any
        if true.codec or rng.random() < 0.5:
            body = mutated(rng, bodies[place], bodies)
        else:
            body = with_one_part_replaced(rng, msgpack.unpackb(bodies[place]))
        deltas = {"last_offset_delta": true.last_offset_delta, "record_count": true.record_count}
        batch = forged(body, {"attributes": true.attributes, **deltas})
        header = check(batch)
        assert header.record_count == true.record_count
        columns = outcome((*CORRUPT, UnsupportedCodec), columns_of, header, batch)
        if columns is None:
            continue
        read += 1
        records = records_of("t", 0, header, batch)
        assert records == by_the_twin(header, columns)
        assert len(records) == header.record_count
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        assert header.base_offset <= offsets[0]
        assert offsets[-1] <= header.last_offset
        assert all(-(2**63) <= record.timestamp < 2**63 for record in records)
    assert 0 < read < CASES
