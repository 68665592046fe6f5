"""The batch format: golden bytes, and what a reader says to anything else."""

import random
from itertools import pairwise
from types import SimpleNamespace

import msgspec
import pytest

from folkmoot.protocol import checksum
from folkmoot.protocol.batch_header import (
    HEADER_BYTES,
    LEADER_BYTES,
    MAX_BODY_BYTES,
    MAX_OFFSET,
    MAX_PRODUCER_EPOCH,
    MAX_RECORDS,
    MAX_SEQUENCE,
    MAX_TIMESTAMP,
    NO_PRODUCER_ID,
    batch_length,
    check,
    following_sequence,
    leader_part,
    reseal,
    seal,
    split,
)
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.record_batch import columns_of, encode, pack, records_of
from tests.protocol.forged import castagnoli, opened, unpacked, unpacked_deltas
from tests.protocol.golden import ALL, GOLDEN, NO_KEYS, SPARSE, Golden, T
from tests.protocol.rows import rows
from tests.seeds import new_seed

golden_files = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)


def read(batch: bytes) -> Columns:
    return columns_of(check(batch), batch)


# -- golden bytes -----------------------------------------------------------------------------------


@golden_files
def test_batches_written_long_ago_are_read_to_what_they_were_made_of(golden: Golden) -> None:
    batch = golden.path.read_bytes()
    header = check(batch)
    columns = columns_of(header, batch)
    made = golden.columns
    stamps = golden.append_time if golden.stamps else made.timestamps
    assert rows(columns) == rows(msgspec.structs.replace(made, timestamps=stamps))
    assert (header.base_offset, header.leader_epoch) == (golden.base_offset, golden.leader_epoch)
    assert (header.append_time, header.uses_append_time) == (golden.append_time, golden.stamps)
    assert (header.codec, header.record_count) == (golden.codec, made.count)
    assert header.length == batch_length(batch) == len(batch)
    producer = {name: getattr(header, name) for name in golden.producer}
    assert producer == golden.producer


@golden_files
def test_a_second_reader_finds_the_same_in_the_golden_files(golden: Golden) -> None:
    batch = golden.path.read_bytes()
    fields, (keys, values, stamps, headers, offsets) = opened(batch)
    assert fields.pop("version") == 1
    header = check(batch)
    assert {name: getattr(header, name) for name in fields} == fields
    made = golden.columns
    times = [made.timestamps] * made.count if isinstance(made.timestamps, int) else made.timestamps
    assert unpacked(values, made.count) == made.values
    assert unpacked(keys, made.count) == (made.keys or [None] * made.count)
    deltas = unpacked_deltas(stamps, made.count)
    assert [fields["base_timestamp"] + delta for delta in deltas] == list(times)
    assert fields["max_timestamp"] == max(times)
    assert offsets == ([0, None] if made.offsets is None else [1, made.offsets])
    pairs = [] if made.headers is None else [[list(pair) for pair in row] for row in made.headers]
    assert headers == ([1, pairs] if pairs else [0, None])


@golden_files
def test_the_encoder_writes_the_golden_bytes(golden: Golden) -> None:
    """Compressed bytes may change with the library's version, and are only read back."""
    batch = golden.stamped()
    if golden.codec == Codec.NONE:
        assert batch == golden.path.read_bytes()
    else:
        assert rows(read(batch)) == rows(read(golden.path.read_bytes()))


def test_the_limits_are_what_the_fields_of_the_header_hold() -> None:
    limits = (MAX_OFFSET, MAX_PRODUCER_EPOCH, MAX_SEQUENCE, MAX_TIMESTAMP, NO_PRODUCER_ID)
    assert limits == (2**63 - 2, 2**15 - 1, 2**31 - 1, 2**61, -1)
    assert (MAX_RECORDS, MAX_BODY_BYTES) == (1_000_000, 2**25)


def test_a_batch_is_ordinary_unless_it_is_part_of_a_transaction_or_a_broker_s_own() -> None:
    header = check(GOLDEN[0].path.read_bytes())
    replace = msgspec.structs.replace
    found = [replace(header, attributes=bits).is_ordinary for bits in (0, 0x20, 0x08, 0x10)]
    assert found == [True, True, False, False]


def test_without_the_extension_the_checksum_is_that_of_the_whole_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nowhere = SimpleNamespace(find_spec=lambda *_: None)
    monkeypatch.setattr("folkmoot.protocol.checksum.PathFinder", nowhere)
    assert checksum._load()(b"123456789") == 0xE3069283
    monkeypatch.setattr("folkmoot.protocol.checksum.find_spec", lambda _: None)
    assert checksum._load()(b"123456789") == 0xE3069283


def test_the_checksum_is_crc_32c() -> None:
    """The check value of the catalogues, and RFC 3720's vector of 32 zeros."""
    assert castagnoli(b"123456789") == 0xE3069283
    assert castagnoli(bytes(32)) == 0x8A9136AA


# -- records ----------------------------------------------------------------------------------------


def test_records_carry_offsets_timestamps_keys_and_headers() -> None:
    batch = encode(ALL)
    batch = leader_part(500, len(batch), 3, T) + batch[LEADER_BYTES:]
    first, second, third, fourth = records_of("flights", 2, check(batch), batch)
    assert (first.topic, first.partition, first.offset, first.timestamp) == ("flights", 2, 500, T)
    assert (first.key, first.header("trace"), first.append_time) == (b"N14228", None, False)
    assert first.headers == (("trace", b"\x01\x02"), ("trace", None))
    assert (second.key, second.value, second.headers) == (None, None, ())
    assert (third.key, third.headers, third.offset) == (b"", (("", b""),), 502)
    assert fourth.timestamp == T + 70_000


def test_records_of_a_compacted_batch_keep_their_offsets() -> None:
    batch = encode(SPARSE)
    header = check(batch)
    assert [record.offset for record in records_of("t", 0, header, batch)] == SPARSE.offsets
    assert (header.record_count, header.next_offset) == (3, 4_000_000_001)


def test_append_time_replaces_all_timestamps_and_rewrites_nothing() -> None:
    batch = encode(NO_KEYS)
    stamped = leader_part(7, len(batch), 1, T + 1, stamps=True) + batch[LEADER_BYTES:]
    records = records_of("t", 0, check(stamped), stamped)
    assert [(record.timestamp, record.append_time) for record in records] == [(T + 1, True)] * 3
    assert stamped[LEADER_BYTES:] == batch[LEADER_BYTES:]


def test_a_batch_is_read_from_any_buffer_and_leaves_it_free() -> None:
    batch = bytearray(b"before" + encode(ALL, Codec.NONE) + b"after")
    view = memoryview(batch)
    header = check(view, 6)
    read_back = columns_of(header, view[6:])
    view.release()
    assert rows(read_back) == rows(ALL)
    del read_back
    batch.clear()  # raises BufferError while anything points into it


def test_split_yields_the_batches_of_a_chunk() -> None:
    batches = [encode(columns, Codec.NONE) for columns in (ALL, NO_KEYS, SPARSE)]
    assert [bytes(part) for _, part in split(b"".join(batches))] == batches
    assert list(split(b"")) == []


# -- columns that say little take little --------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
def test_columns_with_one_value_are_collapsed_and_come_back_whole(codec: Codec) -> None:
    count = 1000
    columns = Columns(
        count=count,
        keys=[None] * count,
        values=[b"the same"] * count,
        timestamps=[T] * count,
        headers=[()] * count,
    )
    batch = encode(columns, codec)
    assert len(batch) < HEADER_BYTES + 60  # of which a codec may take 20 for itself
    back = read(batch)
    assert (back.keys, back.headers, back.timestamps) == (None, None, T)
    assert back.values == columns.values


@pytest.mark.parametrize("odd_one", [0, 1, 2])
def test_columns_that_differ_in_one_row_stay_whole(odd_one: int) -> None:
    keys: list[bytes | None] = [b"k", b"k", b"k"]
    keys[odd_one] = None
    stamps = [T, T, T]
    stamps[odd_one] = T + 1
    columns = Columns(count=3, keys=keys, values=keys, timestamps=stamps)
    assert rows(read(encode(columns))) == rows(columns)


def test_offsets_rise_within_random_sparse_batches() -> None:
    seed = new_seed()
    rng = random.Random(seed)
    for _ in range(50):
        offsets = sorted(rng.sample(range(1000), rng.randrange(1, 20)))
        values: list[bytes | None] = [b"v"] * len(offsets)
        columns = Columns(
            count=len(offsets), keys=None, values=values, timestamps=T, offsets=offsets
        )
        back = read(encode(columns)).offsets
        assert back == offsets
        assert all(earlier < later for earlier, later in pairwise(back))


# -- producers ----------------------------------------------------------------------------------------


def test_sequences_go_on_at_0_behind_the_highest() -> None:
    highest = 2**31 - 1
    assert following_sequence(0, 1) == 1
    assert following_sequence(highest, 1) == 0
    assert following_sequence(highest - 2, 5) == 2
    batch = encode(
        Columns(3, None, [b"a", b"b", b"c"], 0),
        producer_id=1,
        producer_epoch=0,
        base_sequence=highest - 1,
    )
    assert check(batch).last_sequence == 0


def test_a_batch_of_no_producer_says_so_in_all_three_fields() -> None:
    header = check(seal(pack(Columns(1, None, [b"a"], 0))))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)


@golden_files
def test_a_batch_signed_anew_has_the_same_records(golden: Golden) -> None:
    batch = golden.path.read_bytes()
    again = reseal(batch, 2**40, 7, 2**31 - 1)
    header = check(again)
    identity = (header.producer_id, header.producer_epoch, header.base_sequence)
    assert identity == (2**40, 7, 2**31 - 1)
    assert read(again) == read(batch)
    before = check(batch)
    identity = (before.producer_id, before.producer_epoch, before.base_sequence)
    assert reseal(again, *identity) == batch
