"""What a reader says to a batch that is damaged, contradicts itself or is beyond the limits."""

from typing import Any

import pytest

from folkmoot.protocol import columns as columns_module
from folkmoot.protocol.batch_header import (
    HEADER_BYTES,
    LEADER_BYTES,
    MAX_BODY_BYTES,
    MAX_OFFSET,
    MAX_RECORDS,
    MAX_TIMESTAMP,
    check,
    read_header,
    split,
)
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import BatchTooLarge, CorruptBatch, UnsupportedCodec
from folkmoot.protocol.record_batch import columns_of, encode
from tests.protocol.forged import BODY, forged
from tests.protocol.golden import ALL, GOLDEN, NO_KEYS, Golden, T
from tests.protocol.rows import rows

golden_files = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)


def read(batch: bytes) -> Columns:
    return columns_of(check(batch), batch)


# -- damage -----------------------------------------------------------------------------------------


@golden_files
def test_a_batch_cut_off_anywhere_is_corrupt(golden: Golden) -> None:
    batch = golden.path.read_bytes()
    for end in range(len(batch)):
        with pytest.raises(CorruptBatch):
            check(batch[:end])
    for end in range(1, len(batch)):
        with pytest.raises(CorruptBatch):
            list(split(batch + batch[:end]))


@golden_files
def test_every_flipped_bit_is_found(golden: Golden) -> None:
    batch = golden.path.read_bytes()
    for bit in range(len(batch) * 8):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch):
            check(damaged)


@golden_files
def test_every_flipped_bit_of_the_leaders_part_is_found_by_the_header_alone(golden: Golden) -> None:
    batch = golden.path.read_bytes()
    for bit in range(LEADER_BYTES * 8):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch):
            read_header(damaged)


@golden_files
def test_what_follows_a_batch_does_not_change_it(golden: Golden) -> None:
    batch = golden.path.read_bytes()
    padded = b"\x00" * 3 + batch + b"\xff" * 100
    assert check(padded, 3) == check(batch)
    assert columns_of(check(padded, 3), padded[3:]) == read(batch)


def test_a_body_cut_off_anywhere_is_corrupt_even_under_a_right_checksum() -> None:
    body = encode(ALL, Codec.NONE)[HEADER_BYTES:]
    four = {"record_count": 4, "last_offset_delta": 3}
    assert read(forged(body, four)).values == ALL.values
    for end in range(len(body)):
        with pytest.raises(CorruptBatch):
            read(forged(body[:end], four))
    with pytest.raises(CorruptBatch):
        read(forged(body + b"\x00", four))


def test_a_position_past_the_end_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="too few"):
        read_header(b"", 5)


# -- contradictions under a right checksum ------------------------------------------------------------


def test_the_forged_batch_itself_is_fine() -> None:
    assert read(forged()).values == [b"a", b"b"]
    assert read(forged(compressed=True)).values == [b"a", b"b"]


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 0},
        {"version": 2},
        {"reserved": 1},
        {"reserved_too": 1},
        *({"attributes": 1 << bit} for bit in range(6, 16)),
        *({"flags": 1 << bit} for bit in range(1, 32)),
        {"length": HEADER_BYTES - 1},
        {"length": 0},
        {"length": 2**32 - 1},
        {"base_offset": -1},
        {"base_offset": MAX_OFFSET},
        {"max_timestamp": -1},
        {"max_timestamp": MAX_TIMESTAMP + 1},
        {"base_timestamp": -MAX_TIMESTAMP - 1},
        {"record_count": 0},
        {"record_count": 3},
        {"record_count": MAX_RECORDS + 1, "last_offset_delta": MAX_RECORDS},
        {"record_count": 2**32 - 1, "last_offset_delta": 2**32 - 1},
    ],
    ids=str,
)
def test_a_header_that_contradicts_itself_is_corrupt(changes: dict[str, int]) -> None:
    with pytest.raises(CorruptBatch):
        check(forged(changes=changes))


def test_the_last_offset_that_there_can_be_is_read() -> None:
    header = check(forged(changes={"base_offset": MAX_OFFSET - 1}))
    assert header.next_offset == 2**63 - 1


@pytest.mark.parametrize("codec", range(len(Codec), 8))
def test_an_unknown_codec_says_so(codec: int) -> None:
    batch = forged(changes={"attributes": codec})
    with pytest.raises(UnsupportedCodec, match=str(codec)):
        read(batch)


NO_PAIRS: list[Any] = [None, 0, b"", "", {}, [], [0], [1, [], 0], [True, None], [0.0, None]]
BAD_PACKED: list[Any] = [
    *(None, b"", b"\x01", b"\x01\x01", b"\x01\x01\x01x", b"\x01\x01\x01xyz", b"\x00xy"),
    *(
        b"\x02\x01\x00\x01x",
        b"\x03" + bytes(6),
        b"\x08" + bytes(16),
        b"\x04" + b"\xfe\xff\xff\xff" * 2,
    ),
    *("\x01\x00\x00", 5),
]
BAD_PACKED_TIMES: list[Any] = [
    *(None, b"", b"\x01", b"\x01\x01", b"\x01abc", b"\x02abc", b"\x03" + bytes(6), b"\x00"),
    *(b"\x08" + bytes(15) + b"\xff", b"\x08" + bytes(15) + b"\x41", "\x01ab"),
]
WRONG_COLUMNS: list[tuple[int, object]] = [
    *((column, [1, []]) for column in range(5)),
    *((column, [1, [b"a", b"b"]]) for column in range(2)),
    *((column, [1, b"\x01\x01\x01ab"]) for column in range(2)),
    *((column, [2, [b"a", b"b"]]) for column in range(2)),
    *((column, [0, [b"a", b"b"]]) for column in range(2)),
    *((column, [1, b"ab"]) for column in range(2)),
    *((column, [1, None]) for column in range(2)),
    *((column, [0, "text"]) for column in range(2)),
    *((column, [0, 1]) for column in range(2)),
    *((column, no_pair) for column in range(5) for no_pair in NO_PAIRS),
    *((column, [0, {}]) for column in range(5)),
    *((column, [2, wrong]) for column in range(2) for wrong in BAD_PACKED),
    *((column, [2, b"\x01\x00\x00"]) for column in range(3, 5)),
    *((2, [2, wrong]) for wrong in BAD_PACKED_TIMES),
    (2, [0, None]),
    (2, [0, -1]),
    (2, [0, 2**62 + 1]),
    (2, [0, 2**64 - 1]),
    (2, [0, 0.5]),
    (2, [0, b"0"]),
    (2, [0, True]),
    (2, [1, 0]),
    (2, [1, [0, 1]]),
    (2, [2, 0]),
    (3, [0, []]),
    (3, [0, [[], []]]),
    (3, [1, [[], None]]),
    (3, [1, [[], [["a"]]]]),
    (3, [1, [[], [["a", b"", b""]]]]),
    (3, [1, [[], [[b"a", b""]]]]),
    (3, [1, [[], [["a", "b"]]]]),
    (3, [1, [[], {"a": b"b"}]]),
    (4, [0, 0]),
    (4, [1, [0]]),
    (4, [1, [0, 0]]),
    (4, [1, [1, 0]]),
    (4, [1, [0, 2]]),
    (4, [1, [-1, 1]]),
    (4, [1, [0, 2**32]]),
    (4, [1, [None, 1]]),
]


@pytest.mark.parametrize(("column", "wrong"), WRONG_COLUMNS, ids=str)
def test_a_column_of_wrong_type_or_length_is_corrupt(column: int, wrong: object) -> None:
    body: list[object] = list(BODY)
    body[column] = wrong
    with pytest.raises(CorruptBatch):
        read(forged(body))


@pytest.mark.parametrize("body", [[], BODY[:4], [*BODY, [0, None]], {}, None, 5, b"bytes", "text"])
def test_a_body_that_is_not_five_columns_is_corrupt(body: Any) -> None:
    with pytest.raises(CorruptBatch):
        read(forged(body))


def test_a_header_name_that_is_not_utf_8_is_corrupt() -> None:
    batch = forged([*BODY[:3], [1, [[], [["name", b""]]]], BODY[4]])
    damaged = batch[HEADER_BYTES:].replace(b"name", b"na\xffe")
    with pytest.raises(CorruptBatch, match="utf-8"):
        read(forged(damaged))


def test_fewer_records_than_offsets_need_to_say_which_are_left() -> None:
    with pytest.raises(CorruptBatch, match="gaps"):
        read(forged(changes={"last_offset_delta": 2}))
    batch = forged([*BODY[:4], [1, [0, 2]]], {"last_offset_delta": 2})
    assert read(batch).offsets == [0, 2]


# -- limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        Columns(count=0, keys=None, values=[], timestamps=T),
        Columns(count=0, keys=None, values=[], timestamps=[]),
        Columns(count=2, keys=None, values=[b""], timestamps=T),
        Columns(count=2, keys=[b""], values=[b"", b""], timestamps=T),
        Columns(count=2, keys=None, values=[b"", b""], timestamps=[T]),
        Columns(count=2, keys=None, values=[b"", b""], timestamps=T, headers=[()]),
        Columns(count=2, keys=None, values=[b"", b""], timestamps=T, offsets=[0]),
        Columns(count=2, keys=None, values=[b"", b""], timestamps=T, offsets=[1, 1]),
        Columns(count=2, keys=None, values=[b"", b""], timestamps=T, offsets=[-1, 1]),
        Columns(count=2, keys=None, values=[b"", b""], timestamps=T, offsets=[0, 2**32]),
        Columns(count=1, keys=None, values=[b""], timestamps=MAX_TIMESTAMP + 1),
        Columns(count=2, keys=None, values=[b"", b""], timestamps=[0, -MAX_TIMESTAMP - 1]),
    ],
)
def test_what_no_reader_would_take_is_not_written(columns: Columns) -> None:
    with pytest.raises(CorruptBatch):
        encode(columns)


def test_the_extremes_of_timestamps_and_offsets_are_written_and_read() -> None:
    columns = Columns(
        count=2,
        keys=None,
        values=[b"", b"x"],
        timestamps=[MAX_TIMESTAMP, -MAX_TIMESTAMP],
        offsets=[0, 2**32 - 1],
    )
    assert rows(read(encode(columns))) == rows(columns)


def test_more_records_than_a_batch_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "MAX_RECORDS", 3)
    encode(NO_KEYS)
    with pytest.raises(BatchTooLarge, match="4 records"):
        encode(ALL)


def test_a_body_larger_than_readers_take_is_refused() -> None:
    value = bytes(MAX_BODY_BYTES)
    with pytest.raises(BatchTooLarge, match="limit"):
        encode(Columns(count=1, keys=None, values=[value], timestamps=T))
    batch = encode(Columns(count=1, keys=None, values=[value[100:]], timestamps=T))
    assert read(batch).values == [value[100:]]
